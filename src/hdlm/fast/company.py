"""Texts of many requests in one call of the network, each at a step of its own: continuous batching.

Texts whose calls have about the same shape are a lane, which has one cache, with a row for each. In a turn every text
of a lane goes on, by steps that need no network, to the next one that does. What has been settled since is fed first,
to the rows that have any, so that nobody else waits for it; then one call takes the windows of all. Rules are applied
to texts that are drawn alike together. The tokens are those of `sampling/company.py`; what does not fit goes its way
there.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from hdlm.fast.predictor import SparsePrediction
from hdlm.fast.trunk import fast_head, fast_trunk
from hdlm.nn.cache import Cache
from hdlm.sampling.company import Company, Seat
from hdlm.sampling.loop import Run
from hdlm.sampling.results import Frame
from hdlm.sampling.rng import EVENT, TOKEN, StepRandom
from hdlm.sampling.rule import Prediction, State, Thinned, Times
from hdlm.theory import checks
from hdlm.theory.hyperschedule import Step
from hdlm.theory.layout import Layout, build_layout, inference_layout, next_token_layout, stack_layouts
from hdlm.theory.random import keyed_uniform

_SPARED = 16  # steps in a row that a text takes at most in a turn without asking the network


class FastCompany(Company):
    """`Company`, in which most texts share their calls."""

    def __init__(self, open: Callable[[Run], Iterator[Frame]]) -> None:
        super().__init__(open)
        self._lanes: dict[tuple[bool, int], Lane] = {}

    def __len__(self) -> int:
        return super().__len__() + sum(len(lane.seats) for lane in self._lanes.values())

    def join(self, seat: Seat) -> None:
        run = seat.run
        odd = run.drafts is not None or run.rng.flawed or run.block is not None or not run.settings.cache
        if odd or (isinstance(run.rule, Thinned) and not run.rule.foresees(run.reading)):
            super().join(seat)
            return
        key = (run.next_token, 1 << (run.schedule.width - 1).bit_length())
        if key not in self._lanes:
            self._lanes[key] = Lane(run)
        self._lanes[key].join(seat)

    def leave(self, seat: Seat) -> None:
        super().leave(seat)
        for key, lane in list(self._lanes.items()):
            lane.leave(seat)
            if not lane.seats:
                del self._lanes[key]

    @torch.no_grad()
    def turn(self) -> list[Seat]:
        moved = super().turn()
        for lane in list(self._lanes.values()):
            before = lane.calls
            with checks.trusted():
                found = lane.turn()
            self.calls += lane.calls - before
            moved += found
            for seat in found:
                if seat.over:
                    self.leave(seat)
        return moved


@dataclass(eq=False)
class Group:
    """Texts of a lane that are drawn alike and have windows of the same size, at a step each: tensors [n, W]."""

    seats: list[Seat]
    steps: list[Step]
    rows: Tensor
    window: Tensor
    levels: Tensor
    state: State
    times: Times
    random: StepRandom
    needed: Tensor

    def members(self) -> Iterator[tuple[int, Seat, Step]]:
        """Each one's row in the lane, seat and step."""
        return zip(self.rows.tolist(), self.seats, self.steps, strict=True)

    @property
    def run(self) -> Run:
        """A run like those of all of them."""
        return self.seats[0].run

    def at(self, chosen: list[int]) -> "Group":
        """Some of them."""
        if len(chosen) == len(self.seats):
            return self
        state, times, random = self.state, self.times, self.random
        return Group(
            [self.seats[n] for n in chosen],
            [self.steps[n] for n in chosen],
            self.rows[chosen],
            self.window[chosen],
            self.levels[chosen],
            State(state.tokens[chosen], state.masked[chosen], state.free[chosen]),
            Times(times.process, times.s[chosen], times.t[chosen]),
            random.at(chosen),
            self.needed[chosen],
        )

    def prediction(self, outputs: Tensor | None) -> Prediction:
        """The network's view, of outputs [needed positions, N]; None: it was not asked."""
        needed = self.needed if outputs is not None else self.needed & False
        return SparsePrediction(self.run, outputs, needed, self.state, self.times.t)


class Lane:
    """Texts whose calls have about the same shape; row r of `tokens` and of the cache is that of `seats[r]`."""

    def __init__(self, run: Run) -> None:
        self.run = run  # one like all of them, but for schedule, rule and settings
        self.seats: list[Seat] = []
        self.calls = 0
        self._walks: dict[Seat, Iterator[Step]] = {}
        self._numbers: dict[Seat, tuple[int, int, int, int]] = {}  # seed, key, where it starts, highest level
        length = run.tokens.shape[1]
        self.tokens = run.tokens.new_zeros(1, length)
        self.given = torch.zeros_like(self.tokens, dtype=torch.bool)
        self.cache: Cache = run.network.new_cache(1, length + 1)  # and BOS

    def join(self, seat: Seat) -> None:
        """Give a text the next row."""
        row, length = len(self.seats), seat.run.tokens.shape[1]
        self._make_room(row + 1, length)
        self.tokens[row, :length], self.given[row, :length] = seat.run.tokens[0], seat.run.given[0]
        self.cache.settled[row] = 0
        self.seats.append(seat)
        self._walks[seat], run = seat.run.schedule.walk(), seat.run
        self._numbers[seat] = run.rng.seed, int(run.rng.keys[0]), run.starts[0], run.schedule.max_level
        self._point(row)

    def leave(self, seat: Seat) -> None:
        """Let a text go; the last row takes its place."""
        if seat not in self._walks:
            return
        row, last = self.seats.index(seat), len(self.seats) - 1
        del self._walks[seat], self._numbers[seat]
        seat.run.tokens = seat.run.tokens.clone()
        moved = self.seats.pop()
        if row != last:
            self.cache.move(last, row)
            self.tokens[row], self.given[row] = self.tokens[last].clone(), self.given[last].clone()
            self.seats[row] = moved
            self._point(row)

    def _make_room(self, rows: int, length: int) -> None:
        """At least so many rows of so many tokens: twice as many as there were, where there are too few."""
        held, capacity = self.tokens.shape
        if rows <= held and length <= capacity:
            return
        rows, length = (held if rows <= held else max(rows, 2 * held)), max(length, capacity)
        for name in ("tokens", "given"):
            old = getattr(self, name)
            new = old.new_zeros(rows, length)
            new[:held, :capacity] = old
            setattr(self, name, new)
        self.cache = self.cache.grown(rows, length + 1)
        for row in range(len(self.seats)):
            self._point(row)

    def _point(self, row: int) -> None:
        """Let a seat's run see its row of the lane."""
        run = self.seats[row].run
        run.tokens = self.tokens[row : row + 1, : run.given.shape[1]]

    def turn(self) -> list[Seat]:
        """One call of the network for all texts, and the steps before it that need none. Who has moved."""
        for seat in self.seats:
            seat.frames = []
        moved: dict[Seat, None] = {}
        waiting, asking = list(self.seats), []
        for spared in range(_SPARED + 1):
            for group in self._groups(waiting):
                needs = group.needed.any(1).tolist() if spared < _SPARED else [True] * len(group.seats)
                idle = group.at([n for n, asks in enumerate(needs) if not asks])
                if idle.seats:
                    self._take(idle, None)
                    moved |= dict.fromkeys(idle.seats)
                if any(needs):
                    asking.append(group.at([n for n, asks in enumerate(needs) if asks]))
            held = {seat for group in asking for seat in group.seats}
            waiting = [seat for seat in self.seats if seat not in held and not seat.over]
            if not waiting:
                break
        if asking:
            self._call(asking)
        return list(moved | {seat: None for group in asking for seat in group.seats})

    def _groups(self, seats: list[Seat]) -> list[Group]:
        """The next step of each of these texts, those that are drawn alike together."""
        alike: dict[Any, list[tuple[Seat, Step]]] = defaultdict(list)
        for seat in seats:
            step = next(self._walks[seat])
            alike[_key(seat.run), step.stop - step.start].append((seat, step))
        return [self._group(*map(list, zip(*members, strict=True))) for members in alike.values()]

    def _group(self, seats: list[Seat], steps: list[Step]) -> Group:
        device, process, run = self.tokens.device, self.run.reading.process, seats[0].run
        rows = torch.tensor([self.seats.index(seat) for seat in seats], device=device)
        numbers = [(*self._numbers[seat], step.index, step.start) for seat, step in zip(seats, steps, strict=True)]
        seed, key, start, top, index, first = torch.tensor(numbers, device=device).unsqueeze(-1).unbind(1)
        position = first + torch.arange(steps[0].stop - steps[0].start, device=device)
        window = start + position
        levels = torch.stack([torch.stack([step.levels, step.next_levels]) for step in steps]).to(device)
        t, s = (levels.double() / top.unsqueeze(1)).unbind(1)
        before = self.tokens[rows.unsqueeze(1), window]
        free = ~self.given[rows.unsqueeze(1), window] & (t > 0)
        state, times = State(before, process.is_mask(before), free), Times(process, s, t)
        event, token = (keyed_uniform(seed, key, purpose, index, position) for purpose in (EVENT, TOKEN))
        needed = run.rule.needs(state.masked, free, times, event)
        if needed is None or (run.logprobs and not process.starts_masked):
            needed = torch.ones_like(free)
        else:
            needed = needed.expand_as(free) & free
        return Group(seats, steps, rows, window, levels[:, 1], state, times, StepRandom(event, token), needed)

    def _take(self, group: Group, outputs: Tensor | None) -> None:
        """Apply the rule, given outputs [needed positions, N] or none, and tell everybody where they are."""
        run, state, prediction = group.run, group.state, group.prediction(outputs)
        after = state.tokens
        if outputs is not None or not isinstance(run.rule, Thinned):  # those do nothing without the network
            found = run.rule.step(state, prediction, group.times, group.random)
            after = torch.where(state.free, found.to(after.dtype), after)
            self.tokens[group.rows.unsqueeze(1), group.window] = after
        for n, (seat, step) in enumerate(zip(group.seats, group.steps, strict=True)):
            if outputs is None:
                seat.run.stats.skipped_calls += 1
            if seat.watched:
                seat.see(self._frame(group, prediction, after, n))
            levels = step.next_levels.tolist()
            final = next((k for k, level in enumerate(levels) if level), len(levels))
            if seat.run.starts[0] + step.start + final > seat.settled:
                seat.settle(seat.run.starts[0] + step.start + final)

    def _frame(self, group: Group, prediction: Prediction, after: Tensor, n: int) -> Frame:
        """What one of a group's texts looks like after the step."""
        run, before = group.seats[n].run, group.state.tokens
        said, doubt = (prediction.probability(x).where(after != before, torch.nan)[n : n + 1] for x in (after, before))
        told = prediction.told(after, run.logprobs, run.likeliest)
        if told["logprobs"] is not None:
            told["logprobs"] = told["logprobs"][n : n + 1]
        if told["likeliest"] is not None:
            told["likeliest"] = tuple(x[n : n + 1] for x in told["likeliest"])
        seen = (run.tokens.clone(), group.window[n : n + 1], before[n : n + 1], group.levels[n], said, doubt, run.given)
        return Frame(group.steps[n].index, *seen, run.schedule.max_level, **told)

    def _call(self, groups: list[Group]) -> None:
        """Ask the network about all windows at once, and take everybody's step."""
        self.calls += 1
        asked = {row: (seat.run, step) for group in groups for row, seat, step in group.members()}
        rows, device = sorted(asked), self.tokens.device  # rows that follow each other are read where they are
        starts = [run.starts[0] + step.start for run, step in (asked[row] for row in rows)]
        held = [self.cache.settled[row] for row in rows]
        self._feed(rows, starts)
        t = torch.ones(self.tokens.shape, dtype=self.run.dtype, device=device)
        for group in groups:
            t[group.rows.unsqueeze(1), group.window] = group.times.t.to(t.dtype)
        shared = all(run.schedule.one_level_a_window for run, _ in asked.values())
        widths = tuple(step.stop - step.start for _, step in (asked[row] for row in rows))
        layout = _windows(widths, self.run.shifted, self.run.next_token, shared).to(device)
        features = self._pass(rows, layout.moved(torch.tensor(starts, device=device)), t)
        place = torch.empty(len(self.seats), dtype=torch.int64, device=device)
        place[rows] = torch.arange(len(rows), device=device)
        seen = [features[place[group.rows], : group.window.shape[1]][group.needed] for group in groups]
        outputs = fast_head(self.run.network, torch.cat(seen)).split([len(some) for some in seen])
        for row, start, before, width in zip(rows, starts, held, widths, strict=True):
            fed = start - before + (1 if self.run.next_token else width + int(self.run.shifted))
            settled = fed if self.run.next_token else start - before
            asked[row][0].stats.add_call([(before, settled, fed)], scored=0, cached=True)
        for group, found in zip(groups, outputs, strict=True):
            for seat, count in zip(group.seats, group.needed.sum(1).tolist(), strict=True):
                seat.run.stats.head_slots += count
            self._take(group, found)

    def _feed(self, rows: list[int], starts: list[int]) -> None:
        """Bring the cache of rows up to where their windows start; those that lack as many tokens go together."""
        lacking: dict[int, list[int]] = defaultdict(list)
        for row, start in zip(rows, starts, strict=True):
            lacking[start - self.cache.settled[row]].append(row)
        clean = self.tokens.new_zeros((), dtype=self.run.dtype).expand(self.tokens.shape)
        for count, some in lacking.items():
            if count:
                by = torch.tensor([self.cache.settled[row] for row in some], device=self.tokens.device)
                self._pass(some, _settled(count, self.run.shifted).to(self.tokens.device).moved(by), clean)

    def _pass(self, rows: list[int], layout: Layout, t: Tensor) -> Tensor:
        """Features [rows, slots, width] of some rows, at times t of all rows [rows of the lane, length]."""
        run, known = self.run, self.given[rows]
        tokens, process = self.tokens[rows], run.reading.process
        slots = layout.fill(tokens, tokens, t[rows], process, bos_id=run.bos_id, known=known)
        return fast_trunk(run.network, slots, self.cache.rows(rows))


def _key(run: Run) -> tuple[Any, ...]:
    """What texts have in common that are drawn alike."""
    rule, settings = run.rule, run.settings
    own = [getattr(rule, name) for name in rule.settings] if isinstance(settings.sampler, str | None) else [id(rule)]
    told = (run.logprobs, run.likeliest)
    return (type(rule), *own, type(run.reading), settings.temperature, settings.top_k, settings.top_p, *told)


@lru_cache(maxsize=256)
def _windows(widths: tuple[int, ...], shifted: bool, next_token: bool, shared: bool) -> Layout:
    """Windows of these widths, a row each, that begin at position 0 of their rows: to be moved where they belong."""
    if next_token:
        return next_token_layout(0)
    layouts = [inference_layout(0, width, shifted=shifted, one_level_a_window=shared) for width in widths]
    return layouts[0] if len(set(widths)) == 1 else stack_layouts(layouts)


@lru_cache(maxsize=256)
def _settled(count: int, shifted: bool) -> Layout:
    """So many settled slots, from the first on: to be moved behind those that a cache holds."""
    return build_layout(count, [], shifted=shifted, settled=count)
