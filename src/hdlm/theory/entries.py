"""The hyperschedules of the paper: quench, flat, block and slide.

Each is one number per position, the step at which it starts to descend:

    levels[step, i] = clamp(entry[i] + max_level - step, 0, max_level)
"""

import math
import warnings
from abc import abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from hdlm.theory import checks
from hdlm.theory.hyperschedule import Hyperschedule, Step

MAX_LEVELS = 10_000_000


class _Entries(Hyperschedule):
    """A schedule given by the step at which each position starts its descent, in order of position."""

    repeats = True
    has_width: ClassVar[bool] = True  # whether a width is its own to choose

    def __init__(self, length: int, width: int, rate: float) -> None:
        self.length = checks.integer("length", length, low=1)
        self._width = checks.integer("width", width, low=1, high=length)
        checks.positive("rate", rate)
        if width / rate > MAX_LEVELS:
            raise ValueError(f"rate = {rate!r} is not accepted: width / rate may be at most {MAX_LEVELS:,} levels")
        self.max_level = max(1, math.floor(width / rate + 0.5))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(length={self.length}, width={self.width}, rate={self.rate:g})"

    def _identity(self) -> tuple[Any, ...]:
        return self.length, self.width, self.max_level

    @property
    def settings(self) -> dict[str, Any]:
        width, rate = self.width if self.has_width else None, None if self.autoregressive else self.rate
        return {"kind": self.kind, "length": self.length, "width": width, "rate": rate}

    def resized(self, length: int) -> "_Entries":
        make: Any = type(self)
        return make(length, min(self.width, length)) if self.has_width else make(length)

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

    def walk(self) -> Iterator[Step]:
        """The steps one after the other, without building the level matrix."""
        for step in range(self.steps):
            start = min(self.entered(step - self.max_level), self.length)
            stop = min(self.entered(step), self.length)
            entry = self.entry(torch.arange(start, stop))
            yield Step(step, start, stop, self._level(entry, step), self._level(entry, step + 1))


class Quench(_Entries):
    """Autoregression: one position a step, from full noise to clean at once."""

    kind = "quench"
    has_width = False
    autoregressive = True
    one_level_a_window = True

    def __init__(self, length: int) -> None:
        super().__init__(length, 1, 1)

    def __repr__(self) -> str:
        return f"Quench(length={self.length})"

    def entry(self, positions: Tensor) -> Tensor:
        return positions

    def entered(self, step: int) -> int:
        return max(0, step + 1)

    def training_windows(self, offset: int | None = None) -> list[tuple[int, int]]:
        return []

    def times(self, level: Tensor, offset: int | None = None) -> Tensor:
        return level.new_zeros(len(level), self.length)


class Flat(_Entries):
    """Ordinary diffusion: all positions descend together."""

    kind = "flat"
    has_width = False
    has_prefix = False
    one_level_a_window = True

    def __init__(self, length: int, rate: float = 1) -> None:
        super().__init__(length, length, rate)

    def __repr__(self) -> str:
        return f"Flat(length={self.length}, rate={self.rate:g})"

    def entry(self, positions: Tensor) -> Tensor:
        return torch.zeros_like(positions)

    def entered(self, step: int) -> int:
        return self.length if step >= 0 else 0

    def with_prompt(self, given: int, *, block: int | None = None) -> "Flat":
        return Flat(given + self.length, (given + self.length) / self.max_level)

    def fits_blocks(self, width: int) -> bool:
        return True

    def training_windows(self, offset: int | None = None) -> list[tuple[int, int]]:
        return [(0, self.length)]

    def times(self, level: Tensor, offset: int | None = None) -> Tensor:
        return level.expand(-1, self.length)


class Block(_Entries):
    """Blocks of `width` positions, one block after the other, each descending together."""

    kind = "block"
    one_level_a_window = True

    def __init__(self, length: int, width: int, rate: float = 1) -> None:
        super().__init__(length, width, rate)

    def entry(self, positions: Tensor) -> Tensor:
        return positions // self.width * self.max_level

    def entered(self, step: int) -> int:
        return (step // self.max_level + 1) * self.width if step >= 0 else 0

    def with_prompt(self, given: int, *, block: int | None = None) -> "Block | None":
        if block is None:
            return None
        # A block longer than the text is cut at the text's end, and its steps stay those of the whole block.
        length = given + self.length
        return Block(length, min(block, length), self.rate * min(block, length) / block)

    def fits_blocks(self, width: int) -> bool:
        return self.width in (width, self.length)

    def training_windows(self, offset: int | None = None) -> list[tuple[int, int]]:
        return [(j, min(j + self.width, self.length)) for j in range(0, self.length, self.width)]

    def times(self, level: Tensor, offset: int | None = None) -> Tensor:
        return level[:, torch.arange(self.length, device=level.device) // self.width]


class Slide(_Entries):
    """A window of `width` positions that slides along, cleanest at its left end."""

    kind = "slide"

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

    def training_windows(self, offset: int | None = None) -> list[tuple[int, int]]:
        """Windows that tile the sequence when the first one ends at `offset` in 1..width."""
        checks.integer("offset", offset, low=1, high=self.width)
        assert offset is not None
        starts = [0, *range(offset, self.length, self.width)]
        return list(zip(starts, [*starts[1:], self.length], strict=True))

    @property
    def max_windows(self) -> int:
        return -(-self.length // self.width) + 1

    @property
    def last_start(self) -> int:
        return self.length - 1

    def draw_offset(self, u: float) -> int:
        return 1 + int(u * self.width)

    def times(self, level: Tensor, offset: int | None = None) -> Tensor:
        """Along the ramp of each window, counted from offset - width, where the first would start were it whole."""
        checks.integer("offset", offset, low=1, high=self.width)
        assert offset is not None
        index = torch.arange(self.length, device=level.device) - (offset - self.width)
        return (index % self.width + level[:, index // self.width]) / self.width
