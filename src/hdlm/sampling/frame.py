"""What the loop tells: a frame a step for those who watch, and at the end what it took."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass
class Stats:
    """What generation took.

    `slots`: inputs to the trunk, all rows together; `reused_slots`: those that the cache saved.
    `skipped_calls`: steps that needed no call of their own, since nothing could change or rows went ahead.
    `head_slots`: places at which the vocabulary was scored; `keys`: keys that slots could look at, a call and row at a
    time, and `pairs` of slots and keys. `seconds`: of the loop alone, not of those who watch it.
    """

    network_calls: int = 0
    skipped_calls: int = 0
    slots: int = 0
    reused_slots: int = 0
    head_slots: int = 0
    keys: int = 0
    pairs: int = 0
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
