"""Temperature, top-k and top-p: what users do to the law of the clean token before they draw from it."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hdlm.theory import checks


@dataclass(frozen=True)
class Shaping:
    """Temperature (0: always the likeliest token), then the `top_k` likeliest, then the least set of mass `top_p`."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0

    def __post_init__(self) -> None:
        kind_is_number = isinstance(self.temperature, int | float) and not isinstance(self.temperature, bool)
        if not kind_is_number or not 0 <= self.temperature < math.inf:
            raise ValueError(f"temperature = {self.temperature!r} is not accepted: it must be a finite number >= 0")
        if self.top_k is not None:
            checks.integer("top_k", self.top_k, low=1)
        if checks.fraction("top_p", self.top_p) == 0:
            raise ValueError("top_p = 0 is not accepted: it must be above 0 and at most 1")

    @property
    def is_plain(self) -> bool:
        """Whether it leaves every law as it is."""
        return self.temperature == 1 and self.top_k is None and self.top_p == 1

    def __call__(self, log_p0: Tensor) -> Tensor:
        """The shaped law of log p0 [..., N], normalised."""
        if self.is_plain:
            return log_p0
        if self.temperature == 0:
            best = log_p0.argmax(-1, keepdim=True)
            return torch.full_like(log_p0, -math.inf).scatter_(-1, best, 0.0)
        # Largest 0 before the division: a tiny temperature then sends the others to -infinity, and not all of them.
        log_p0 = ((log_p0 - log_p0.amax(-1, keepdim=True)) / self.temperature).log_softmax(-1)
        if self.top_k is not None and self.top_k < log_p0.shape[-1]:
            least = log_p0.topk(self.top_k, dim=-1).values[..., -1:]
            log_p0 = log_p0.masked_fill(log_p0 < least, -math.inf).log_softmax(-1)
        if self.top_p < 1:
            ordered, order = log_p0.sort(dim=-1, descending=True)
            before = ordered.double().exp().cumsum(-1) - ordered.double().exp()
            beyond = torch.zeros_like(log_p0, dtype=torch.bool).scatter_(-1, order, before >= self.top_p)
            log_p0 = log_p0.masked_fill(beyond, -math.inf).log_softmax(-1)
        return log_p0
