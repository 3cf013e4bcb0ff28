"""The loop: from noise, along the levels of a hyperschedule, to text.

At each step the network sees the settled tokens (through the cache: only those that are new) and the window, predicts
its clean tokens, and the rule takes them from one noise level to the next. `fast/` does the same with less work.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hdlm.config.sampling import DrawSettings
from hdlm.sampling.results import Frame, Stats
from hdlm.sampling.rng import SampleRNG, StepRandom
from hdlm.sampling.rule import Prediction, Rule, State, Times
from hdlm.theory import checks
from hdlm.theory.hyperschedule import Hyperschedule, Step
from hdlm.theory.layout import Slots, step_layout
from hdlm.theory.reading import Reading


@dataclass
class Run:
    """One batch on its way through a schedule: rows of `tokens` [batch, length]; those in `given` never change.

    `network`: has `trunk(slots, cache=)` to features, `head(features)` to outputs, and `new_cache(batch, capacity)`.
    `starts`: where the schedule begins in each row; all before it is settled, what is given after it lies in a window.
    `block`: the width of the blocks that a block-causal network's settled tokens see. `next_token`: settled slots
    predict the next one (autoregression). `logprobs`, `likeliest`: that frames have. `drafts`: see `speculative.py`.
    """

    network: Any
    reading: Reading
    rule: Rule
    schedule: Hyperschedule
    rng: SampleRNG
    tokens: Tensor
    given: Tensor
    starts: tuple[int, ...]
    settings: DrawSettings = field(default_factory=DrawSettings)
    shifted: bool = False
    bos_id: int | None = None
    eos_id: int | None = None
    block: int | None = None
    dtype: torch.dtype = torch.float32
    logprobs: bool = False
    likeliest: int = 0
    drafts: Reading | None = None
    stats: Stats = field(default_factory=Stats)

    def __post_init__(self) -> None:
        self.tokens = self.tokens.clone()
        self.ended = torch.zeros(len(self.starts), dtype=torch.bool, device=self.tokens.device)
        self.next_token = self.schedule.autoregressive and self.shifted
        self._offset = torch.tensor(self.starts, device=self.tokens.device).unsqueeze(1)
        self._checked, self.witness = 0, torch.zeros((), dtype=torch.float64, device=self.tokens.device)

    def columns(self, start: int, stop: int) -> Tensor:
        """Where the schedule's positions start..stop-1 lie in the rows: [batch, stop - start]."""
        return self._offset + torch.arange(start, stop, device=self.tokens.device)

    def note_ends(self, settled: int) -> bool:
        """Mark the rows with a new EOS among the schedule's first `settled` positions; whether that is every row."""
        if self.eos_id is None:
            return False
        if settled > self._checked:
            index = self.columns(self._checked, settled)
            fresh = ~self.given.gather(1, index)
            self.ended |= ((self.tokens.gather(1, index) == self.eos_id) & fresh).any(1)
            self._checked = settled
        return bool(self.ended.all())


@torch.no_grad()
def sample(
    run: Run, predict: "Predictor", *, watched: bool = True, progress: Callable[[int], None] | None = None
) -> Iterator[Frame]:
    """Take all steps, with a frame each for those who watch, until every row has ended. `progress` is told of each."""
    process, schedule, device = run.reading.process, run.schedule, run.tokens.device
    for step in schedule.walk():
        if run.note_ends(step.start):
            break
        with checks.trusted():
            window = run.columns(step.start, step.stop)
            before = run.tokens.gather(1, window)
            t = step.levels.to(device).double() / schedule.max_level  # [W]
            s = step.next_levels.to(device).double() / schedule.max_level
            free = ~run.given.gather(1, window) & ~run.ended.unsqueeze(1) & (t > 0)
            state, times = State(before, process.is_mask(before), free), Times(process, s, t)
            random = run.rng.step(step.index, torch.arange(step.start, step.stop, device=device))
            prediction = predict(step, state, times, random)
            after = torch.where(free, run.rule.step(state, prediction, times, random).to(before.dtype), before)
            run.tokens.scatter_(1, window, after)
        if watched:
            said, doubt = (prediction.probability(x).where(after != before, torch.nan) for x in (after, before))
            seen = (run.tokens.clone(), window, before, step.next_levels.to(device), said, doubt, run.given)
            yield Frame(step.index, *seen, schedule.max_level, **prediction.told(after, run.logprobs, run.likeliest))
        if progress is not None:
            progress(1)
    run.note_ends(schedule.length)


class Predictor:
    """Asks the network about the windows of a run, through its cache where there is one."""

    def __init__(self, run: Run) -> None:
        batch, length = run.tokens.shape
        cached = run.settings.cache and run.schedule.has_prefix
        self.run, self.held = run, [0] * batch  # positions in the cache
        self.cache = run.network.new_cache(batch, length + 1) if cached else None  # and BOS

    def __call__(self, step: Step, state: State, times: Times, random: StepRandom) -> Prediction:
        """The network's view of the whole window, [batch, W]."""
        t = times.t.expand_as(state.tokens)
        outputs = self.run.network.head(self.features(step, t))
        return Prediction(outputs, state.tokens, t, self.run.reading, self.run.settings, self.run.witness)

    def features(self, step: Step, t: Tensor, *, scored: int | None = None) -> Tensor:
        """What the head reads for a window at times t [batch, W], to score all or `scored` of it: [batch, W, width]."""
        run, window, tokens = self.run, self.run.columns(step.start, step.stop), self.run.tokens
        rows = tuple((x + step.start, x + step.stop, held) for x, held in zip(run.starts, self.held, strict=True))
        shared, next_token = run.schedule.one_level_a_window, run.next_token
        layout, fed = step_layout(rows, run.shifted, next_token=next_token, block=run.block, one_level_a_window=shared)
        # Only the window's times are read: settled slots are at 0 whatever stands here. The tokens hold both kinds.
        noise = torch.ones(tokens.shape, dtype=run.dtype, device=tokens.device).scatter_(1, window, t.to(run.dtype))
        process, layout = run.reading.process, layout.to(tokens.device)
        slots = layout.fill(tokens, tokens, noise, process, bos_id=run.bos_id, known=run.given)
        features = self.trunk(slots)
        # Slot k of a row stands at position held + k; token j is predicted at position j (shifted: where j - 1 stands).
        slot = (window - torch.tensor(self.held, device=window.device).unsqueeze(1)).unsqueeze(-1)
        self.note_call(step, fed, scored=window.numel() if scored is None else scored)
        return features.gather(1, slot.expand(-1, -1, features.shape[-1]))

    def trunk(self, slots: Slots) -> Tensor:
        """Features [batch, slots, width] of a pass."""
        return self.run.network.trunk(slots, cache=self.cache)

    def held_after(self, step: Step) -> list[int]:
        """Positions that the cache holds in each row after a call in a step's window; autoregression feeds one more."""
        after = [start + step.start + int(self.run.next_token) for start in self.run.starts]
        return self.held if self.cache is None else after

    def note_call(self, step: Step, fed: list[int], *, scored: int) -> None:
        """Count a call in a step's window; the settled slots that it fed are in the cache from now on."""
        settled = [start + step.start - held for start, held in zip(self.run.starts, self.held, strict=True)]
        calls = list(zip(self.held, fed if self.run.next_token else settled, fed, strict=True))
        self.run.stats.add_call(calls, scored=scored, cached=self.cache is not None)
        self.held = self.held_after(step)
