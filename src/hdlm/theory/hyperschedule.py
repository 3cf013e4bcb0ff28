"""Hyperschedules: which noise level every position has at every generation step.

Levels are integers from `max_level` (full noise) to 0 (clean); the time of a level is level / max_level.
Every schedule of the paper is one number per position, the step at which it starts to descend:

    levels[step, i] = clamp(entry[i] + max_level - step, 0, max_level)

`Custom` takes any other matrix. Knows no process, no network and no attention: what a forward pass sees is
`layout.py`, and the times that training draws are `draws.py`.
"""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from hdlm.theory import checks

MAX_LEVELS = 10_000_000


@dataclass(frozen=True)
class Step:
    """One call of the network: positions before `start` are settled, [start, stop) active, the rest worthless.

    `levels` and `next_levels` [stop - start] are the active positions' levels before and after the step.
    """

    index: int
    start: int
    stop: int
    levels: Tensor
    next_levels: Tensor


class Hyperschedule(ABC):
    """What every hyperschedule offers."""

    length: int
    max_level: int

    @property
    @abstractmethod
    def levels(self) -> Tensor:
        """Integer tensor [steps + 1, length], row k before step k, the last row all 0."""

    @property
    @abstractmethod
    def width(self) -> int:
        """The paper's omega: the most positions that any step works on."""

    @property
    @abstractmethod
    def rate(self) -> float:
        """The paper's rho: tokens per step in the long run."""

    @property
    @abstractmethod
    def steps(self) -> int:
        """Number of network calls for `length` tokens."""

    @property
    @abstractmethod
    def settles_in_order(self) -> bool:
        """Whether the settled positions are a prefix at every step, so that they can be cached."""

    @abstractmethod
    def walk(self, length: int | None = None) -> Iterator[Step]:
        """The steps one after the other, for `length` tokens instead of the schedule's own."""

    def partition(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """Boolean [length] masks (settled, active, worthless) of a step in 0..steps-1.

        Settled: at level 0 for good. Worthless: at full noise now and after the step. Active: the rest.
        """
        checks.integer("step", step, low=0, high=self.steps - 1)
        now, after = self.levels[step], self.levels[step + 1]
        settled = now == 0
        worthless = (now == self.max_level) & (after == self.max_level)
        return settled, ~settled & ~worthless, worthless


def measured_width(levels: Tensor) -> int:
    """The most positions, over the steps, whose level is neither 0 nor full both before and after it."""
    top = levels[0].max()
    now, after = levels[:-1], levels[1:]
    idle = ((now == 0) & (after == 0)) | ((now == top) & (after == top))
    return int((~idle).sum(1).max())


class _Entries(Hyperschedule):
    """A schedule given by the step at which each position starts its descent, in order of position."""

    def __init__(self, length: int, width: int, rate: float) -> None:
        self.length = checks.integer("length", length, low=1)
        self._width = checks.integer("width", width, low=1, high=length)
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < math.inf:
            raise ValueError(f"rate = {rate!r} is not accepted: it must be a finite number above 0")
        if width / rate > MAX_LEVELS:
            raise ValueError(f"rate = {rate!r} is not accepted: width / rate may be at most {MAX_LEVELS:,} levels")
        self.max_level = max(1, math.floor(width / rate + 0.5))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(length={self.length}, width={self.width}, rate={self.rate:g})"

    @abstractmethod
    def entry(self, positions: Tensor) -> Tensor:
        """The step at which each of these positions starts to descend."""

    @abstractmethod
    def entered(self, step: int) -> int:
        """How many positions have started by the end of `step`, were the sequence endless; 0 before step 0."""

    @property
    def width(self) -> int:
        return self._width

    @property
    def rate(self) -> float:
        return self.width / self.max_level

    @property
    def settles_in_order(self) -> bool:
        return True

    @property
    def steps(self) -> int:
        return int(self.entry(torch.tensor(self.length - 1))) + self.max_level

    @property
    def levels(self) -> Tensor:
        return self._levels

    @cached_property
    def _levels(self) -> Tensor:
        steps = torch.arange(self.steps + 1).unsqueeze(1)
        return self._level(self.entry(torch.arange(self.length)), steps)

    def _level(self, entry: Tensor, step: Tensor | int) -> Tensor:
        return (entry + self.max_level - step).clamp(0, self.max_level)

    def walk(self, length: int | None = None) -> Iterator[Step]:
        """The steps for `length` tokens (default: the schedule's own), without building the level matrix."""
        yield from self._walk(self.length if length is None else checks.integer("length", length, low=1))

    def unbounded(self) -> Iterator[Step]:
        """The steps of an endless sequence: stop when there is enough text."""
        yield from self._walk(None)

    def _walk(self, length: int | None) -> Iterator[Step]:
        step = 0
        while True:
            start, stop = self.entered(step - self.max_level), self.entered(step)
            if length is not None:
                start, stop = min(start, length), min(stop, length)
                if start == length:
                    return
            entry = self.entry(torch.arange(start, stop))
            yield Step(step, start, stop, self._level(entry, step), self._level(entry, step + 1))
            step += 1


class Quench(_Entries):
    """Autoregression: one position a step, from full noise to clean at once."""

    def __init__(self, length: int) -> None:
        super().__init__(length, 1, 1)

    def __repr__(self) -> str:
        return f"Quench(length={self.length})"

    def entry(self, positions: Tensor) -> Tensor:
        return positions

    def entered(self, step: int) -> int:
        return max(0, step + 1)


class Flat(_Entries):
    """Ordinary diffusion: all positions descend together."""

    def __init__(self, length: int, rate: float = 1) -> None:
        super().__init__(length, length, rate)

    def __repr__(self) -> str:
        return f"Flat(length={self.length}, rate={self.rate:g})"

    def entry(self, positions: Tensor) -> Tensor:
        return torch.zeros_like(positions)

    def entered(self, step: int) -> int:
        return self.length if step >= 0 else 0

    def walk(self, length: int | None = None) -> Iterator[Step]:
        if length not in (None, self.length):
            raise ValueError(
                f"length = {length!r} is not accepted: a flat schedule has exactly {self.length} positions"
            )
        return super().walk()

    def unbounded(self) -> Iterator[Step]:
        raise ValueError(f"{self!r} has no endless form: use Quench, Block or Slide")


class Block(_Entries):
    """Blocks of `width` positions, one block after the other, each descending together."""

    def __init__(self, length: int, width: int, rate: float = 1) -> None:
        super().__init__(length, width, rate)

    def entry(self, positions: Tensor) -> Tensor:
        return positions // self.width * self.max_level

    def entered(self, step: int) -> int:
        return (step // self.max_level + 1) * self.width if step >= 0 else 0

    def windows(self) -> list[tuple[int, int]]:
        """The blocks as intervals [start, stop)."""
        return [(j, min(j + self.width, self.length)) for j in range(0, self.length, self.width)]


class Slide(_Entries):
    """A window of `width` positions that slides along, cleanest at its left end."""

    def __init__(self, length: int, width: int, rate: float = 1) -> None:
        super().__init__(length, width, rate)
        if self.max_level < width:
            warnings.warn(
                f"Slide with width = {width}, rate = {rate}: several positions enter at once, so that levels descend "
                "in stairs that training never shows; a rate of at most 1 keeps the trained ramp",
                stacklevel=2,
            )

    def entry(self, positions: Tensor) -> Tensor:
        return positions * self.max_level // self.width

    def entered(self, step: int) -> int:
        return -(-(step + 1) * self.width // self.max_level) if step >= 0 else 0

    def windows(self, offset: int) -> list[tuple[int, int]]:
        """Windows that tile the sequence when the first one ends at `offset` in 1..width."""
        checks.integer("offset", offset, low=1, high=self.width)
        starts = [0, *range(offset, self.length, self.width)]
        return list(zip(starts, [*starts[1:], self.length], strict=True))

    @property
    def max_windows(self) -> int:
        """The most windows that any offset gives; training pads to it, so that shapes never change."""
        return -(-self.length // self.width) + 1


class Custom(Hyperschedule):
    """Any matrix of levels [steps + 1, length]: all at max_level first, all at 0 last, never rising.

    For sampling only. Where the settled positions are not a prefix it runs as one window without a cache. Rows that
    repeat the one before count as steps (`rate` is length / steps) but need no network call: `walk` passes over them.
    """

    def __init__(self, levels: Tensor | Sequence[Sequence[int]]) -> None:
        try:
            matrix = torch.as_tensor(levels)
        except (ValueError, TypeError, RuntimeError) as error:
            raise ValueError(f"levels is not a matrix of integers [steps + 1, length]: {error}") from None
        if matrix.ndim != 2 or matrix.shape[0] < 2 or matrix.shape[1] < 1:
            raise ValueError(f"levels has shape {tuple(matrix.shape)}: it must be [steps + 1, length], steps >= 1")
        if matrix.is_floating_point() or matrix.is_complex() or matrix.dtype == torch.bool:
            raise ValueError(f"levels is {matrix.dtype}: it must hold integers")
        self._levels = matrix.long().clone()
        self.length = matrix.shape[1]
        self.max_level = int(matrix[0, 0])
        self._validate()
        self._width = measured_width(self._levels)
        self._in_order = bool(((self._levels == 0).long().diff(dim=1) <= 0).all())

    def __repr__(self) -> str:
        return f"Custom(length={self.length}, steps={self.steps}, max_level={self.max_level})"

    def _validate(self) -> None:
        levels, top = self._levels, self.max_level
        if top < 1:
            raise ValueError(f"levels starts at {top}: the first row must be max_level >= 1 everywhere")
        for row, wanted, name in ((levels[0], top, "first"), (levels[-1], 0, "last")):
            wrong = (row != wanted).nonzero()
            if len(wrong):
                i = int(wrong[0])
                raise ValueError(f"levels holds {row[i].item()} at position {i} of the {name} row: it must be {wanted}")
        rises = (levels[1:] > levels[:-1]).nonzero()
        if len(rises):
            step, i = rises[0].tolist()
            now, after = levels[step, i].item(), levels[step + 1, i].item()
            raise ValueError(f"levels rises from {now} to {after} at step {step}, position {i}: levels may never rise")

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

    @property
    def settles_in_order(self) -> bool:
        return self._in_order

    def walk(self, length: int | None = None) -> Iterator[Step]:
        if length not in (None, self.length):
            raise ValueError(f"length = {length!r} is not accepted: this schedule has exactly {self.length} positions")
        for index in range(self.steps):
            if torch.equal(self._levels[index], self._levels[index + 1]):
                continue
            start, stop = 0, self.length
            if self.settles_in_order:
                settled, active, _ = self.partition(index)
                start = int(settled.sum())
                stop = int(active.nonzero().max()) + 1
            yield Step(index, start, stop, self._levels[index, start:stop], self._levels[index + 1, start:stop])
