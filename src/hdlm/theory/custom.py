"""Hyperschedules from any matrix of levels, to sample by and to train on.

Training draws a step, as likely as it is long (the sum of all positions' falls in it), and a point between it and the
next. A position's loss then counts by its share of the step's fall: added up over the steps its time is uniform over
(0, 1), and the estimate of the bound is unbiased. Where a step has settled a prefix, its window is what generation has
at that step; windows that do not overlap go into one pass, each at a step of its own, so that the levels of `Block` and
`Slide` are trained as those are.
"""

import bisect
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from hdlm.theory import checks
from hdlm.theory.hyperschedule import Hyperschedule, Step, measured_width
from hdlm.theory.level_matrix import MAX_LEVEL, check_levels


@dataclass(frozen=True, eq=False)
class _Stretch:
    """Steps that follow each other and have one window [start, stop): `levels` [steps + 1, stop - start]."""

    start: int
    stop: int
    levels: Tensor

    @cached_property
    def falls(self) -> Tensor:
        """How far each position falls in each step, [steps, stop - start]."""
        return (self.levels[:-1] - self.levels[1:]).double()

    @cached_property
    def ends(self) -> Tensor:
        """How far all have fallen by the end of each step, [steps]."""
        return self.falls.sum(1).cumsum(0)

    @property
    def fall(self) -> float:
        """How far all fall in all steps."""
        return self.ends[-1].item()

    def at(self, level: Tensor) -> tuple[Tensor, Tensor]:
        """Levels [batch, stop - start] where a share `level` [batch] in (0, 1] of the fall is still to come.

        And how far each position falls there while all together fall by `self.fall`.
        """
        fallen = (1 - level) * self.fall
        step = torch.searchsorted(self.ends, fallen, right=True).clamp(max=len(self.ends) - 1)
        falls = self.falls[step]
        length = falls.sum(1)
        share = ((fallen - self.ends[step] + length) / length).clamp(0, 1).unsqueeze(1)
        return self.levels[step] - share * falls, falls * (self.fall / length).unsqueeze(1)


class Custom(Hyperschedule):
    """Any matrix of levels [steps + 1, length]: all at max_level first, all at 0 last, never rising.

    Where the settled positions are not a prefix it runs as one window without a cache. Rows that repeat the one before
    count as steps (`rate` is length / steps) but need no network call: `walk` passes over them.
    """

    kind = "custom"
    even = False

    def __init__(self, levels: Tensor | Sequence[Sequence[int]]) -> None:
        if isinstance(levels, list | tuple):
            levels = check_levels("levels", levels)
        try:
            matrix = torch.as_tensor(levels)
        except (ValueError, TypeError, RuntimeError) as error:
            raise ValueError(f"levels is not a matrix of integers [steps + 1, length]: {error}") from None
        if matrix.ndim != 2 or matrix.shape[0] < 2 or matrix.shape[1] < 1:
            raise ValueError(f"levels has shape {tuple(matrix.shape)}: it must be [steps + 1, length], steps >= 1")
        if matrix.is_floating_point() or matrix.is_complex() or matrix.dtype == torch.bool:
            raise ValueError(f"levels is {matrix.dtype}: it must hold integers")
        matrix = matrix.long().clone()
        top = int(matrix[0, 0])
        ends = (matrix[0] == top).all() and (matrix[-1] == 0).all() and 1 <= top <= MAX_LEVEL
        if not ends or (matrix[1:] > matrix[:-1]).any():
            check_levels("levels", matrix.tolist())  # which says where
        self._whole, self.max_level = matrix, top
        self._in_order = bool(((matrix == 0).long().diff(dim=1) <= 0).all())
        self.has_prefix = self._in_order and bool((matrix[:-1] == 0).any())
        self._take(matrix)

    def _take(self, levels: Tensor) -> None:
        """Be the schedule of these columns."""
        self._levels, self.length, self._width = levels, levels.shape[1], measured_width(levels)

    def _with_columns(self, levels: Tensor) -> "Custom":
        """The schedule of other columns, in windows as this one's: what a network was trained on."""
        made = Custom.__new__(Custom)
        made._whole, made.max_level = self._whole, self.max_level
        made._in_order, made.has_prefix = self._in_order, self.has_prefix
        made._take(levels)
        return made

    def __repr__(self) -> str:
        return f"Custom(length={self.length}, steps={self.steps}, max_level={self.max_level})"

    def _identity(self) -> tuple[Any, ...]:
        return self.has_prefix, self._in_order, tuple(map(tuple, self._levels.tolist()))

    @property
    def settings(self) -> dict[str, Any]:
        numbers = {"length": self.length, "width": None, "rate": None}
        return {"kind": self.kind, **numbers, "levels": self._whole.tolist()}

    @property
    def name(self) -> str:
        return self.kind

    @property
    def levels(self) -> Tensor:
        return self._levels

    @property
    def steps(self) -> int:
        return self._levels.shape[0] - 1

    @property
    def width(self) -> int:
        return self._width

    @property
    def rate(self) -> float:
        return self.length / self.steps

    def walk(self) -> Iterator[Step]:
        for index in range(self.steps):
            if torch.equal(self._levels[index], self._levels[index + 1]):
                continue
            start, stop = 0, self.length
            if self._in_order:
                settled, active, _ = self.partition(index)
                start = int(settled.sum()) if self.has_prefix else 0
                stop = int(active.nonzero().max()) + 1
            yield Step(index, start, stop, self._levels[index, start:stop], self._levels[index + 1, start:stop])

    def resized(self, length: int) -> "Custom":
        """The same for the first `length` positions: a text that ends sooner."""
        if checks.integer("length", length, low=1) > self.length:
            raise ValueError(f"length = {length} is not accepted: {self!r} has {self.length} positions")
        return self if length == self.length else self._with_columns(self._levels[:, :length])

    def with_prompt(self, given: int, *, block: int | None = None) -> "Custom | None":
        """Where one window holds all, the given tokens are in it, settled from the start."""
        if self.has_prefix:
            return None
        return self._with_columns(torch.nn.functional.pad(self._levels, (given, 0)))

    @cached_property
    def _tilings(self) -> list[list[_Stretch]]:
        """The windows of training passes: every stretch is in one of them, and those of one do not overlap."""
        found: list[list[_Stretch]] = []
        for (start, stop), steps in itertools.groupby(self.walk(), key=lambda step: (step.start, step.stop)):
            indices = [step.index for step in steps]
            stretch = _Stretch(start, stop, self._levels[indices[0] : indices[-1] + 2, start:stop])
            tiling = next((tiling for tiling in found if tiling[-1].stop <= start), None)
            if tiling is None:
                found.append([stretch])
            else:
                tiling.append(stretch)
        return found

    @cached_property
    def _falls(self) -> list[float]:
        """How far all positions fall in all stretches of each tiling and of those before it."""
        return list(itertools.accumulate(sum(stretch.fall for stretch in tiling) for tiling in self._tilings))

    @property
    def offsets(self) -> int:
        return len(self._tilings)

    def draw_offset(self, u: float) -> int | None:
        """The number of a tiling, as likely as it is long."""
        if self.offsets == 1:
            return None
        return min(bisect.bisect_right(self._falls, u * self._falls[-1]), self.offsets - 1)

    def _tiling(self, offset: int | None) -> list[_Stretch]:
        if self.offsets > 1:
            checks.integer("offset", offset, low=0, high=self.offsets - 1)
        return self._tilings[offset or 0]

    def training_windows(self, offset: int | None = None) -> list[tuple[int, int]]:
        return [(stretch.start, stretch.stop) for stretch in self._tiling(offset)]

    @property
    def max_windows(self) -> int:
        return max(map(len, self._tilings))

    @property
    def last_start(self) -> int:
        return max(tiling[-1].start for tiling in self._tilings)

    def times(self, level: Tensor, offset: int | None = None) -> Tensor:
        """Where a position is in no window of this pass, its time is 0."""
        times = level.new_zeros(len(level), self.length)
        for number, stretch in enumerate(self._tiling(offset)):
            times[:, stretch.start : stretch.stop] = stretch.at(level[:, number])[0] / self.max_level
        return times

    def weights(self, level: Tensor, offset: int | None = None) -> Tensor:
        """How fast a position falls, over how likely this tiling and this step of its stretch are to be drawn."""
        weights = level.new_zeros(len(level), self.length)
        tiling = self._tiling(offset)
        unlikely = self._falls[-1] / sum(stretch.fall for stretch in tiling)
        for number, stretch in enumerate(tiling):
            falls = stretch.at(level[:, number])[1]
            weights[:, stretch.start : stretch.stop] = falls * unlikely / self.max_level
        return weights
