"""Hyperschedules: which noise level every position has at every generation step.

Levels are integers from `max_level` (full noise) to 0 (clean); the time of a level is level / max_level. Here is what
all of them have in common; `entries.py` holds those of the paper, `custom.py` takes any matrix. A schedule answers for
itself wherever schedules differ: whether it is autoregressive, what can be cached, which windows and noise times it
trains on. Knows no process, no network and no attention: what a forward pass sees is `layout.py`, and the random
numbers of training times are `draws.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from hdlm.theory import checks


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
    """What every hyperschedule offers.

    `kind`: its word in configurations. `autoregressive`: each step takes one position from full noise to clean.
    `has_prefix`: some step has settled positions before its window, which a cache can hold. `one_level_a_window`: all
    active positions of a step are at the same level. `repeats`: its windows are one window, moved along. `even`: in
    training every position's time is uniform over (0, 1), and its loss counts in full (see `weights`).
    """

    kind: ClassVar[str]
    autoregressive: ClassVar[bool] = False
    has_prefix: bool = True
    one_level_a_window: ClassVar[bool] = False
    repeats: ClassVar[bool] = False
    even: ClassVar[bool] = True
    length: int
    max_level: int

    @property
    def settings(self) -> dict[str, Any]:
        """Kind and numbers, from which a schedule of the same kind can be built."""
        return {"kind": self.kind, "length": self.length, "width": None, "rate": self.rate}

    @property
    def name(self) -> str:
        """Kind and width, as in "block 16"."""
        width = self.settings["width"]
        return f"{self.kind} {width}" if width else self.kind

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Hyperschedule):
            return NotImplemented
        return self is other or (type(self) is type(other) and self._identity() == other._identity())

    def __hash__(self) -> int:
        return hash((type(self).__name__, self._identity()))

    @abstractmethod
    def _identity(self) -> tuple[Any, ...]:
        """All that tells it from others of its kind."""

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

    @abstractmethod
    def walk(self) -> Iterator[Step]:
        """The steps one after the other."""

    def resized(self, length: int) -> "Hyperschedule":
        """One of the same kind and width at rate 1, for another number of tokens; no window is wider than the text."""
        raise ValueError(f"length = {length!r} is not accepted: {self!r} is for {self.length} positions")

    def with_prompt(self, given: int, *, block: int | None = None) -> "Hyperschedule | None":
        """The schedule, of as many steps, whose window holds `given` tokens before its own; None: those are settled.

        `block`: so wide are the blocks of a network whose settled tokens see their own block whole.
        """
        return None

    def fits_blocks(self, width: int) -> bool:
        """Whether windows lie where blocks of this width do."""
        return False

    def training_windows(self, offset: int | None = None) -> list[tuple[int, int]]:
        """Windows [start, stop) of a training pass, in order and apart; none at all for autoregression.

        `offset`: which, for schedules whose windows move (see `draw_offset`): of a slide, where the first one ends.
        """
        raise ValueError(f"{self!r} cannot be trained on: it says no training windows")

    @property
    def max_windows(self) -> int:
        """The most windows that a training pass has, whatever the offset: shapes never change."""
        return len(self.training_windows())

    @property
    def last_start(self) -> int:
        """Where the last training window starts at the latest: clean tokens from there on are seen by none."""
        return self.training_windows()[-1][0]

    def draw_offset(self, u: float) -> int | None:
        """Which windows a training step has, from a uniform in [0, 1); None: windows do not move."""
        return None

    @property
    def offsets(self) -> int:
        """How many different offsets there are, where windows move."""
        return self.width

    def times(self, level: Tensor, offset: int | None = None) -> Tensor:
        """Noise times [batch, length] of a training pass from one number in (0, 1] a window [batch, max_windows]."""
        raise ValueError(f"{self!r} cannot be trained on: it says no training times")

    def weights(self, level: Tensor, offset: int | None = None) -> Tensor | None:
        """How much the loss of each position counts at those times, [batch, length], 1 on average; None: 1 always."""
        return None

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
