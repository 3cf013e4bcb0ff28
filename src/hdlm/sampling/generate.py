"""The loop: from noise, along the levels of a hyperschedule, to text. The only one.

What the network will be asked about is planned a stretch of steps ahead (`plan.py`). Each call feeds the newly settled
tokens and the window, through the cache; the head runs at the places in question alone; worthless positions are never
fed, and steps in which nothing can happen cost nothing. Knows a network as a trunk, a head and a cache, and no text.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from hdlm.sampling.autoregressive import Autoregressive
from hdlm.sampling.beside import Beside, on_device
from hdlm.sampling.canvas import Canvas
from hdlm.sampling.chances import MOST_STEPS, Stretch, look_ahead
from hdlm.sampling.dice import Dice
from hdlm.sampling.frame import Frame, Stats
from hdlm.sampling.plan import Plan, foresee
from hdlm.sampling.recorded import desk_for, leave
from hdlm.sampling.rule import Places, Prediction, Rule
from hdlm.sampling.shaping import Shaping
from hdlm.theory import checks
from hdlm.theory.hyperschedule import Block, Custom, Flat, Hyperschedule, Quench, Slide, Step
from hdlm.theory.layout import Layout, Slots, inference_layout, next_token_layout, stack_layouts
from hdlm.theory.reading import NextTokenReading, Reading

_MOST_SHAPES = 16  # of uncached windows that are worth recording


class Network(Protocol):
    """What the loop needs of a network."""

    def trunk(self, slots: Slots, *, cache: Any = None) -> Tensor:
        """Features [batch, slots, width]."""
        ...

    @property
    def head(self) -> Any:
        """From features [..., width] to outputs [..., N]."""
        ...

    def new_cache(self, batch: int, capacity: int, *, fixed: bool = False) -> Any:
        """An empty cache; `fixed`: whose passes never ask the device anything."""
        ...


@dataclass
class Run:
    """One batch on its way through a schedule.

    `reads_noise`: whether the network makes use of noise times. `block`: the width of the blocks that a block-causal
    network's settled tokens see. `watched`: give a frame a step, with the network's confidence; rows then keep step.
    `recorded`: calls are recorded and played back (`recorded.py`), where that can be; None: on CUDA.
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
    recorded: bool | None = None
    dtype: torch.dtype = torch.float32
    stats: Stats = field(default_factory=Stats)

    def __post_init__(self) -> None:
        self.rule.check(self.reading)
        device = self.canvas.tokens.device
        self.tokens = self.canvas.tokens.clone()
        self.ended = torch.zeros(self.canvas.batch, dtype=torch.bool, device=device)
        self._starts = torch.tensor(self.canvas.starts, device=device).unsqueeze(1)
        self._times = torch.ones(self.tokens.shape, dtype=self.dtype, device=device)
        self._cache = None
        self.held = [0] * self.canvas.batch  # positions in the cache
        self.next_token = isinstance(self.schedule, Quench) and self.shifted
        if self.next_token:  # from full noise to clean in one step: any rule is one draw
            self.reading, self.rule = NextTokenReading(self.reading.process), Autoregressive()
        self._layout: tuple[Any, Layout, int] | None = None
        self._checked = 0
        self._masked = self.reading.process.is_mask(self.tokens)  # as foreseen
        self._desk = desk_for(self) if self._can_record() else None
        self._cache = self.new_cache() if self._desk is None else self._desk.cache

    def _can_record(self) -> bool:
        wanted = self.tokens.is_cuda if self.recorded is None else self.recorded
        plain = not self.watched and self.rule.foresees(self.reading) and not self.dice.flawed
        if isinstance(self.schedule, Flat):
            return wanted and plain
        if not self.cached:  # every window has a shape of its own
            few = isinstance(self.schedule, Block) and len(self.schedule.windows()) <= _MOST_SHAPES
            return wanted and plain and few
        return wanted and plain and isinstance(self.schedule, Quench | Block | Slide)

    def new_cache(self, **settings: Any) -> Any:
        """A cache for this run; None where nothing is settled before the end, or none is wanted."""
        if not self.cached or isinstance(self.schedule, Flat):
            return None
        return self.network.new_cache(self.canvas.batch, self.canvas.length + 1, **settings)

    @property
    def most_calls(self) -> int:
        """No stretch of a schedule that can be recorded has more steps."""
        return MOST_STEPS + self.schedule.max_level

    def shares_level(self, step: Step) -> bool:
        """Whether all of a step's window is at one level."""
        if isinstance(self.schedule, Custom):  # its steps in one window may differ in this
            return False
        return bool((step.levels == step.levels[0]).all())

    def held_after(self, step: Step) -> list[int]:
        """Positions that the cache holds in each row after a call in a step's window."""
        if self._cache is None:
            return [0] * self.canvas.batch
        return [start + step.start + int(self.next_token) for start in self.canvas.starts]

    def has_ended(self, upto: int) -> bool:
        """Whether every row has a settled EOS among the schedule's first `upto` positions."""
        if self.eos_id is None:
            return False
        if upto > self._checked:
            index = self._starts + torch.arange(self._checked, upto, device=self.tokens.device)
            fresh = ~self.canvas.given.gather(1, index)
            self.ended |= ((self.tokens.gather(1, index) == self.eos_id) & fresh).any(1)
            self._checked = upto
        return bool(self.ended.all())

    @torch.no_grad()
    def take(self, stretch: Stretch, beside: Beside) -> Iterator[Frame]:
        """Take all steps of a stretch; a frame for each if somebody watches."""
        foreseen = self.rule.foresees(self.reading)
        if not foreseen:
            beside.hand_over(stretch)
        for part in [stretch] if foreseen else stretch.one_by_one():
            with beside if foreseen else nullcontext():
                plan = self.plan(part, foreseen=foreseen)
                tables = self._desk.lay_out(self, plan) if self._desk is not None else None
            self.stats.skipped_calls += len(part.steps)
            if foreseen:
                beside.hand_over(plan, plan.stretch, tables or {})
            if self._desk is not None and tables is not None:
                with on_device(self.tokens.device):
                    self._desk.play(self, plan, tables)
                continue
            for call, step in enumerate(plan.steps):
                if self.has_ended(step.start):
                    return
                frame = self.call(plan, call, step, settles=not foreseen)
                if frame is not None:
                    yield frame

    def plan(self, stretch: Stretch, *, foreseen: bool) -> Plan:
        """The calls of a stretch."""
        where = self._where(stretch.first, stretch.width)
        with checks.trusted():
            if not foreseen:
                self._masked.scatter_(1, where, self.reading.process.is_mask(self.tokens.gather(1, where)))
            masked = self._masked.gather(1, where)
            free = ~(self.canvas.given.gather(1, where) | self.ended.unsqueeze(1))
            packed = not self.watched and len(stretch.steps) > 1
            plan = foresee(stretch, self.rule, self.reading, self.dice, masked=masked, free=free, packed=packed)
            self._masked.scatter_(1, where, plan.masked)
        return plan

    def finish(self) -> None:
        """Free what others can use; the tokens stay."""
        if self._desk is not None:
            leave(self, self._desk)
            self._desk = self._cache = None

    def _where(self, first: int, width: int) -> Tensor:
        """Places [batch, width] in the rows' own tokens."""
        return self._starts + torch.arange(first, first + width, device=self.tokens.device)

    def call(self, plan: Plan, call: int, step: Step, *, settles: bool = False) -> Frame | None:
        """One call of the network, if it is asked anything, and what it leads to."""
        with checks.trusted(), on_device(self.tokens.device):
            return self._call(plan, call, step, settles=settles)

    def count_call(self, step: Step, *, fed: int, scored: int) -> None:
        """Note a call in a step's window that fed so many slots and scored so many places."""
        self.stats.network_calls += 1
        self.stats.skipped_calls -= 1
        self.stats.head_slots += scored
        self.stats.slots += fed
        self.stats.reused_slots += sum(self.held)
        self.stats.keys += sum(self.held) + fed if self._cache is not None else 0
        for start, held in zip(self.canvas.starts, self.held, strict=True):
            # Settled slots see what is before them and themselves, the window's slots everything.
            slots = fed // self.canvas.batch
            new = slots if self.next_token else start + step.start - held
            self.stats.pairs += new * held + new * (new + 1) // 2 + (slots - new) * (held + slots)
        self.held = self.held_after(step)

    def _call(self, plan: Plan, call: int, step: Step, *, settles: bool) -> Frame | None:
        chosen = slice(plan.offsets[call], plan.offsets[call + 1])
        chosen = self._of_rows_that_go_on(plan, chosen)
        row, asked = plan.row[chosen], len(plan.row[chosen]) > 0
        place = plan.place[chosen] + plan.stretch.first
        column = self._starts[row, 0] + place
        where = self._where(step.start, step.stop - step.start) if self.watched or settles else None
        before = self.tokens.gather(1, where) if where is not None else None
        prediction = drawn = None
        if asked:
            times = plan.stretch.t[plan.step_of[call], 0, step.start - plan.stretch.first :][
                :, : step.stop - step.start
            ]
            features, fed = self._features(step, times, row, column)
            xt, t = self.tokens[row, column], plan.t[chosen]
            prediction = Prediction(self.network.head(features), xt, t, self.reading, self.shaping)
            s, event, token, number = (x[chosen] for x in (plan.s, plan.event, plan.token, plan.number))
            places = Places(self.reading.process, self.dice, xt, t, s, event, token, row, number, place)
            drawn = self.rule.draw(places, prediction).to(self.tokens.dtype)
            self.tokens[row, column] = drawn
            self.count_call(step, fed=fed, scored=len(row))
        if where is None or before is None:
            return None
        if settles:
            is_asked = torch.zeros_like(before, dtype=torch.bool)
            is_asked[row, place - step.start] = True
            after = self.rule.settle(plan.moment, is_asked, before, self.tokens.gather(1, where), prediction)
            self.tokens.scatter_(1, where, after)
        return self._frame(step, where, before, (row, place - step.start), prediction) if self.watched else None

    def _of_rows_that_go_on(self, plan: Plan, chosen: slice) -> slice | Tensor:
        """The places of a call, less those of rows that have ended since the plan was made."""
        if self.eos_id is None or not self.ended.any():
            return chosen
        return chosen.start + (~self.ended[plan.row[chosen]]).nonzero().squeeze(1)

    def _frame(self, step: Step, where: Tensor, before: Tensor, asked: tuple[Tensor, Tensor], prediction) -> Frame:
        after = self.tokens.gather(1, where)
        confidence = torch.full(where.shape, torch.nan, device=where.device)
        if prediction is not None:
            now = after[asked]
            said = prediction.p0.gather(-1, now.clamp(max=prediction.p0.shape[-1] - 1).unsqueeze(-1)).squeeze(-1)
            confidence[asked] = torch.where(self.reading.process.is_mask(now), torch.nan, said).float()
        levels, top = step.next_levels.to(where.device), self.schedule.max_level
        changed = after != before
        return Frame(
            step.index, self.tokens.clone(), before, where, levels, changed, confidence, self.canvas.given, top
        )

    def _features(self, step: Step, times: Tensor, row: Tensor, column: Tensor) -> tuple[Tensor, int]:
        """What the head reads for the tokens at (row, column), [n, width], with the window at `times` [batch, W].

        And how many slots were fed.
        """
        layout, fed = self._layout_of(step, tuple(self.held))
        window = self._where(step.start, step.stop - step.start)
        self._times.scatter_(1, window, times.to(self.dtype))
        slots = layout.fill(
            self.tokens, self.tokens, self._times, self.reading.process, bos_id=self.bos_id, known=self.canvas.given
        )
        features = self.network.trunk(slots, cache=self._cache)
        # Slot k of a row stands at position held + k, and position j is where token j is predicted.
        return features[row, column - torch.tensor(self.held, device=row.device)[row]], fed

    def _layout_of(self, step: Step, held: tuple[int, ...]) -> tuple[Layout, int]:
        """What the pass sees, and its slots in all rows: one layout, or a stack where prompts differ in length."""
        shared = self.shares_level(step)
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
        if self.next_token:
            return next_token_layout(start, cached=held)
        return inference_layout(
            start, stop, shifted=self.shifted, cached=held, block=self.block, one_level_a_window=shared
        )


def generate(run: Run, *, progress: Callable[[int], None] | None = None) -> Iterator[Frame]:
    """All steps of a run, a frame each where it is watched; ends early when every row has ended.

    `progress` is told now and then how many steps have been taken since it was told last.
    """
    schedule = run.schedule
    stretches = look_ahead(schedule.walk(), run.reading.process, run.dice, max_level=schedule.max_level)
    beside = Beside(run.tokens.device)
    while True:
        # Planning asks the device for numbers: beside what it is doing, so that it need not finish that first.
        with beside:
            stretch = next(stretches, None)
        if stretch is None or run.has_ended(stretch.steps[0].start):
            break
        yield from run.take(stretch, beside)
        if progress is not None:
            progress(len(stretch.steps))
    run.has_ended(schedule.length)
    run.finish()
