"""The loop: from noise, along the levels of a hyperschedule, to text. The only one.

A step knows the levels before and after it. The rule says which places of the active window can change; the network is
fed the newly settled tokens and the window, through its cache, and its head runs at those places alone; worthless
positions are never fed, and a step in which nothing can change costs nothing. Knows a network as a trunk, a head and a
cache, and no text.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from hdlm.sampling.autoregressive import Autoregressive
from hdlm.sampling.canvas import Canvas
from hdlm.sampling.chances import Chance, look_ahead
from hdlm.sampling.dice import Dice
from hdlm.sampling.rule import Moment, Prediction, Rule
from hdlm.sampling.shaping import Shaping
from hdlm.theory import checks
from hdlm.theory.hyperschedule import Flat, Hyperschedule, Quench, Step
from hdlm.theory.layout import Layout, Slots, inference_layout, next_token_layout, stack_layouts
from hdlm.theory.reading import NextTokenReading, Reading


class Network(Protocol):
    """What the loop needs of a network."""

    def trunk(self, slots: Slots, *, cache: Any = None) -> Tensor:
        """Features [batch, slots, width]."""
        ...

    @property
    def head(self) -> Any:
        """From features [..., width] to outputs [..., N]."""
        ...

    def new_cache(self, batch: int, capacity: int) -> Any:
        """An empty cache, with `settled`, the number of positions that it holds per row."""
        ...


@dataclass
class Stats:
    """What generation took.

    `slots`: inputs to the trunk, all rows together; `reused_slots`: those that the cache saved.
    `skipped_calls`: steps in which nothing could change, or nothing had, so that the network was not called.
    `head_slots`: places at which the vocabulary was scored.
    """

    network_calls: int = 0
    skipped_calls: int = 0
    slots: int = 0
    reused_slots: int = 0
    head_slots: int = 0
    tokens: int = 0
    seconds: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        """New tokens per second of wall clock."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    def to_json(self) -> dict[str, float]:
        """All numbers by name."""
        return vars(self) | {"tokens_per_second": self.tokens_per_second}

    def __add__(self, other: "Stats") -> "Stats":
        return Stats(**{name: value + getattr(other, name) for name, value in vars(self).items()})


@dataclass(frozen=True)
class Frame:
    """The state after one step, for those who watch.

    `tokens` [batch, length]; `where` [batch, W] the active window's places; `before` [batch, W] what they held before
    the step; `window_levels` [W] their levels after the
    step; `window_changed` [batch, W] which of them hold another token than before; `confidence` [batch, W] the
    probability that the network gave the token of a place when it was asked, NaN where it was not; `given`
    [batch, length] what was there from the beginning.
    """

    step: int
    tokens: Tensor
    before: Tensor
    where: Tensor
    window_levels: Tensor
    window_changed: Tensor
    confidence: Tensor
    given: Tensor
    max_level: int
    rows: tuple[int, ...] = ()

    def _spread(self, values: Tensor, before: Any, after: Any) -> Tensor:
        """`values` [batch, W] or [W] at their places, other values left and right of the window: [batch, length]."""
        index = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        base = torch.where(index < self.where[:, :1], before, after).to(values.dtype)
        return base.scatter(1, self.where, values.expand_as(self.where))

    @property
    def levels(self) -> Tensor:
        """Noise levels after the step, [batch, length]; 0 where a token is given."""
        return self._spread(self.window_levels, 0, self.max_level).masked_fill(self.given, 0)

    @property
    def settled(self) -> Tensor:
        """Tokens that are final, [batch, length]."""
        return self.levels == 0

    @property
    def changed(self) -> Tensor:
        """Places that this step gave another state, [batch, length]."""
        return self._spread(self.window_changed, False, False)


@dataclass
class Run:
    """One batch on its way through a schedule. `advance` takes one step; `generate` takes them all.

    `block`: the width of the blocks that a block-causal network's settled tokens see. `watched`: frames tell the
    network's confidence.
    """

    network: Network
    canvas: Canvas
    schedule: Hyperschedule
    rule: Rule
    reading: Reading
    dice: Dice
    shifted: bool
    bos_id: int | None = None
    eos_id: int | None = None
    shaping: Shaping = field(default_factory=Shaping)
    cached: bool = True
    reads_noise: bool = True
    block: int | None = None
    watched: bool = True
    dtype: torch.dtype = torch.float32
    stats: Stats = field(default_factory=Stats)

    def __post_init__(self) -> None:
        self.rule.check(self.reading)
        device = self.canvas.tokens.device
        self.tokens = self.canvas.tokens.clone()
        self.ended = torch.zeros(self.canvas.batch, dtype=torch.bool, device=device)
        self._starts = torch.tensor(self.canvas.starts, device=device).unsqueeze(1)
        self._times = torch.ones(self.tokens.shape, dtype=self.dtype, device=device)
        cached = self.cached and not isinstance(self.schedule, Flat)  # a flat window has nothing settled to keep
        self._cache = self.network.new_cache(self.canvas.batch, self.canvas.length + 1) if cached else None
        self._next_token = isinstance(self.schedule, Quench) and self.shifted
        if self._next_token:  # from full noise to clean in one step: any rule is one draw
            self.reading, self.rule = NextTokenReading(self.reading.process), Autoregressive()
        self._layout: tuple[Any, Layout, int] | None = None
        self._features: tuple[Any, Tensor] | None = None
        self._checked = 0

    def has_ended(self, upto: int) -> bool:
        """Whether every row has a settled EOS among the schedule's first `upto` positions."""
        if self.eos_id is None or upto == self._checked:
            return False
        index = self._starts + torch.arange(self._checked, upto, device=self.tokens.device)
        fresh = ~self.canvas.given.gather(1, index)
        self.ended |= ((self.tokens.gather(1, index) == self.eos_id) & fresh).any(1)
        self._checked = upto
        return bool(self.ended.all())

    @torch.no_grad()
    def advance(self, chance: Chance) -> Frame:
        """Take one step."""
        where = self._starts + chance.positions
        xt = self.tokens.gather(1, where)
        free = ~(self.canvas.given.gather(1, where) | self.ended.unsqueeze(1)) & (chance.t > 0)
        moment = Moment(self.reading, chance, self.dice, xt, free)
        confidence = torch.full(where.shape, torch.nan, device=xt.device)
        with checks.trusted():
            asked = self.rule.candidates(moment) & free
            prediction = None
            if asked.any():
                outputs = self.network.head(self._window_features(chance)[asked])
                prediction = Prediction(outputs, xt[asked], moment.at(chance.t, asked), self.reading, self.shaping)
                self.stats.head_slots += len(outputs)
            else:
                self.stats.skipped_calls += 1
            after = torch.where(free, self.rule.update(moment, asked, prediction), xt)
            if prediction is not None and self.watched:
                drawn = after[asked]
                said = prediction.p0.gather(-1, drawn.clamp(max=prediction.p0.shape[-1] - 1).unsqueeze(-1)).squeeze(-1)
                said = torch.where(self.reading.process.is_mask(drawn), torch.nan, said)
                confidence = confidence.masked_scatter(asked, said.float())
        changed = after != xt
        self.tokens.scatter_(1, where, after)
        if self._features is not None and (self.reads_noise or changed.any()):
            self._features = None
        step, top = chance.step, self.schedule.max_level
        levels = step.next_levels.to(xt.device)
        return Frame(step.index, self.tokens.clone(), xt, where, levels, changed, confidence, self.canvas.given, top)

    def _window_features(self, chance: Chance) -> Tensor:
        """What the head reads for each active position, [batch, W, width]; kept while nothing changes."""
        step = chance.step
        key = (step.start, step.stop)
        if self._features is not None and self._features[0] == key:
            self.stats.skipped_calls += 1
            return self._features[1]
        held = tuple(self._cache.settled) if self._cache is not None else (0,) * self.canvas.batch
        layout, fed = self._layout_of(step, held)
        window = self._starts + chance.positions
        self._times.scatter_(1, window, chance.t.to(self.dtype).expand_as(window))
        slots = layout.fill(
            self.tokens, self.tokens, self._times, self.reading.process, bos_id=self.bos_id, known=self.canvas.given
        )
        features = self.network.trunk(slots, cache=self._cache)
        self.stats.network_calls += 1
        self.stats.slots += fed
        self.stats.reused_slots += sum(held)
        # Slot k of a row stands at position held + k, and position j is where token j is predicted.
        slot = window - torch.tensor(held, device=self.tokens.device).unsqueeze(1)
        features = features.gather(1, slot.unsqueeze(-1).expand(-1, -1, features.shape[-1]))
        self._features = (key, features)
        return features

    def _layout_of(self, step: Step, held: tuple[int, ...]) -> tuple[Layout, int]:
        """What the pass sees, and its slots in all rows: one layout, or a stack where prompts differ in length."""
        shared = bool((step.levels == step.levels[0]).all())
        key = (step.start, step.stop, held, shared)
        if self._layout is None or self._layout[0] != key:
            rows = list(zip(self.canvas.starts, held, strict=True))
            places = {row: (row[0] + step.start, row[0] + step.stop, row[1]) for row in set(rows)}
            layouts = {row: self._row_layout(*place, shared) for row, place in places.items()}
            layout = layouts[rows[0]] if len(layouts) == 1 else stack_layouts([layouts[row] for row in rows])
            fed = sum(len(layouts[row]) for row in rows)
            self._layout = (key, layout.to(self.tokens.device), fed)
        return self._layout[1:]

    def _row_layout(self, start: int, stop: int, held: int, shared: bool) -> Layout:
        if self._next_token:
            return next_token_layout(start, cached=held)
        return inference_layout(
            start, stop, shifted=self.shifted, cached=held, block=self.block, one_level_a_window=shared
        )


def generate(run: Run) -> Iterator[Frame]:
    """All steps of a run, one frame each; ends early when every row has ended."""
    schedule = run.schedule
    for chance in look_ahead(schedule.walk(), run.reading.process, run.dice, max_level=schedule.max_level):
        if run.has_ended(chance.step.start):
            return
        yield run.advance(chance)
    run.has_ended(schedule.length)
