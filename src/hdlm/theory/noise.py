"""Noise schedules: how much noise a position has received at its time t.

Each gives the survival probability `alpha(t)`, the total noise `sigma(t) = -log alpha(t)`, its derivative
`rate(t)`, the inverse `time(sigma)`, and `unmasking(t)`, the weight of masked bounds. t = 0 is exactly clean for
all of them. Knows nothing of tokens or positions: times of any shape go in, numbers of that shape come out.

| schedule            | alpha(t)                        | sigma(0) | sigma(1)   |
| ------------------- | ------------------------------- | -------- | ---------- |
| `Linear`            | 1 - t                           | 0        | infinity   |
| `LogLinear(eps)`    | 1 - (1 - eps) t                 | 0        | -log eps   |
| `Cosine`            | cos(pi t / 2)                   | 0        | infinity   |
| `Geometric(lo, hi)` | exp(-hi (r^t - 1) / (r - 1))    | 0        | hi         |

with r = hi / lo. Textbook formulas lose all digits near one of the two ends in float32; these hold both
`alpha` and `1 - alpha` and take the logarithm of whichever is accurate.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from hdlm.theory import checks
from hdlm.theory.numbers import is_number


class Noise(ABC):
    """What every noise schedule offers. Times and noises are tensors of any shape. `linear`: alpha = 1 - t."""

    linear: ClassVar[bool] = False

    @abstractmethod
    def sigma(self, t: Tensor) -> Tensor:
        """Total noise at time t: 0 at t = 0, never falling."""

    @abstractmethod
    def loss_rate(self, t: Tensor) -> Tensor:
        """-d alpha / dt, finite everywhere."""

    @abstractmethod
    def _time(self, sigma: Tensor) -> Tensor:
        """The inverse of sigma within its range."""

    def time(self, sigma: Tensor) -> Tensor:
        """The time at which the total noise is `sigma`, which must be in [0, sigma(1)]."""
        end = self.sigma(torch.ones((), dtype=torch.float64)).item()
        checks.floats("sigma", sigma, f"of total noise in [0, {end:.6g}]")
        if not checks.skips_values(sigma):
            wrong = ~((sigma >= 0) & (sigma <= end * (1 + 1e-5)))
            if wrong.any():
                raise ValueError(f"sigma holds {sigma[wrong][0].item()}: the noise must be in [0, {end:.6g}]")
        return self._time(sigma).clamp(0, 1)

    def alpha(self, t: Tensor) -> Tensor:
        """Probability that a token has met no noise by time t, exp(-sigma(t))."""
        return torch.exp(-self.sigma(t))

    def rate(self, t: Tensor) -> Tensor:
        """d sigma / dt, infinite where alpha is 0."""
        return self.loss_rate(t) / self.alpha(t)

    def unmasking(self, t: Tensor) -> Tensor:
        """-alpha' / (1 - alpha), the rate at which a MASK lifts when time runs backwards; infinite at t = 0."""
        return self.loss_rate(t) / -torch.expm1(-self.sigma(t))


def _negative_log(alpha: Tensor, lost: Tensor) -> Tensor:
    """-log(alpha), given alpha and lost = 1 - alpha, each accurate where it is the smaller."""
    return torch.where(lost < 0.5, -torch.log1p(-lost.clamp(max=0.5)), -torch.log(alpha))


@dataclass(frozen=True)
class Linear(Noise):
    """alpha = 1 - t: everything is lost at t = 1, where sigma and its rate are infinite."""

    linear = True

    def alpha(self, t: Tensor) -> Tensor:
        checks.times("t", t)
        return 1 - t

    def sigma(self, t: Tensor) -> Tensor:
        return _negative_log(self.alpha(t), t)

    def loss_rate(self, t: Tensor) -> Tensor:
        checks.times("t", t)
        return torch.ones_like(t)

    def _time(self, sigma: Tensor) -> Tensor:
        return -torch.expm1(-sigma)


@dataclass(frozen=True)
class LogLinear(Noise):
    """alpha = 1 - (1 - eps) t: as `Linear`, but a share eps survives, so that sigma stays finite."""

    eps: float = 1e-3

    def __post_init__(self) -> None:
        if not 0.0 < checks.fraction("eps", self.eps) < 1.0:
            raise ValueError(f"eps = {self.eps!r} is not accepted: it must be in (0, 1)")

    def alpha(self, t: Tensor) -> Tensor:
        checks.times("t", t)
        return (1 - t) + self.eps * t

    def sigma(self, t: Tensor) -> Tensor:
        return _negative_log(self.alpha(t), (1 - self.eps) * t)

    def loss_rate(self, t: Tensor) -> Tensor:
        checks.times("t", t)
        return torch.full_like(t, 1 - self.eps)

    def _time(self, sigma: Tensor) -> Tensor:
        return -torch.expm1(-sigma) / (1 - self.eps)


@dataclass(frozen=True)
class Cosine(Noise):
    """alpha = cos(pi t / 2): hardly any noise at first, all of it at the end."""

    def alpha(self, t: Tensor) -> Tensor:
        checks.times("t", t)
        return torch.sin((1 - t) * (math.pi / 2))

    def sigma(self, t: Tensor) -> Tensor:
        return _negative_log(self.alpha(t), 2 * torch.sin(t * (math.pi / 4)) ** 2)

    def loss_rate(self, t: Tensor) -> Tensor:
        checks.times("t", t)
        return (math.pi / 2) * torch.sin(t * (math.pi / 2))

    def _time(self, sigma: Tensor) -> Tensor:
        early = torch.asin(torch.sqrt(-torch.expm1(-2 * sigma)))
        late = math.pi / 2 - torch.asin(torch.exp(-sigma))
        return torch.where(sigma < 0.3, early, late) * (2 / math.pi)


@dataclass(frozen=True)
class Geometric(Noise):
    """sigma grows by the same factor in equal times, from 0 to exactly sigma_max.

    The published form sigma_min^(1-t) sigma_max^t starts at sigma_min, so that t = 0 is not clean. Here
    its value at 0 is subtracted and the rest scaled to end at sigma_max; the rate still grows by the
    factor r = sigma_max / sigma_min over the unit interval.
    """

    sigma_min: float
    sigma_max: float

    def __post_init__(self) -> None:
        numbers = is_number(self.sigma_min) and is_number(self.sigma_max)
        if not numbers or not 0.0 < self.sigma_min < self.sigma_max:
            raise ValueError(
                f"sigma_min = {self.sigma_min!r}, sigma_max = {self.sigma_max!r} is not accepted: "
                "they must be finite with 0 < sigma_min < sigma_max"
            )

    @property
    def _log_ratio(self) -> float:
        return math.log(self.sigma_max / self.sigma_min)

    @property
    def _scale(self) -> float:
        return self.sigma_max / math.expm1(self._log_ratio)

    def sigma(self, t: Tensor) -> Tensor:
        checks.times("t", t)
        return self._scale * torch.expm1(t * self._log_ratio)

    def rate(self, t: Tensor) -> Tensor:
        checks.times("t", t)
        return self._scale * self._log_ratio * torch.exp(t * self._log_ratio)

    def loss_rate(self, t: Tensor) -> Tensor:
        return self.rate(t) * self.alpha(t)

    def _time(self, sigma: Tensor) -> Tensor:
        return torch.log1p(sigma / self._scale) / self._log_ratio
