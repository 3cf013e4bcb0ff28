"""The epsilon-hybrid process: a uniform channel at the first moment, then plain masking.

As soon as t leaves 0 the clean token x0 becomes x~: a uniform token with probability epsilon, else itself.
From there on x~ is masked as in the absorbing process. At t = 0 the token is clean. It has no rate matrix
in the clean token, hence no score; its exact posterior and a likelihood bound it does have.
"""

import math

import torch
from torch import Tensor

from hdlm.theory import checks
from hdlm.theory.noise import Linear, Noise
from hdlm.theory.process import Channel, Process, Reverse


class EpsilonHybrid(Process):
    """Masking of a sequence in which a share epsilon of the tokens was replaced beforehand."""

    def __init__(self, vocab_size: int, epsilon: float, noise: Noise | None = None) -> None:
        self.vocab_size = checks.integer("vocab_size", vocab_size, low=2)
        self.epsilon = checks.fraction("epsilon", epsilon)
        self.noise = checks.instance("noise", noise, Noise) if noise is not None else Linear()

    def __repr__(self) -> str:
        return f"EpsilonHybrid({self.vocab_size}, epsilon={self.epsilon}, noise={self.noise})"

    @property
    def masks_only(self) -> bool:
        return self.epsilon == 0

    def prior_kl(self) -> float:
        """What the bound of `objectives.epsilon_bound` adds for alpha(1) > 0: the divergence given x~, alpha log N."""
        return self.noise.alpha(torch.ones((), dtype=torch.float64)).item() * math.log(self.vocab_size)

    def evidence(self, t: Tensor) -> Tensor:
        """The same at every time but 0: masking says nothing of what it spares."""
        certain = torch.full_like(t, math.inf)
        if self.epsilon == 0:
            return certain
        return torch.where(t > 0, math.log1p(self.vocab_size * (1 - self.epsilon) / self.epsilon), certain)

    def channel(self, t: Tensor) -> Channel:
        sigma = self.noise.sigma(t)
        alpha = torch.exp(-sigma)
        epsilon = self.epsilon * (t > 0).to(t.dtype)
        return Channel(keep=alpha * (1 - epsilon), replace=alpha * epsilon, mask=-torch.expm1(-sigma))

    def reverse(self, xt: Tensor, p_own: Tensor, *, s: Tensor, t: Tensor) -> Reverse:
        sigma_s, sigma_t = self.noise.sigma(s), self.noise.sigma(t)
        stay_masked = torch.where(s == t, 1.0, torch.expm1(-sigma_s) / torch.expm1(-sigma_t))
        leave = torch.where(s == t, 0.0, torch.exp(-sigma_s) * torch.expm1(sigma_s - sigma_t) / torch.expm1(-sigma_t))
        # Between two positive times a token stays; from any t > 0 to s = 0 the clean token follows p0. With
        # epsilon = 0 a token that is not MASK is the clean one.
        is_mask, settles = self.is_mask(xt), (s == 0) & (t > 0)
        redrawn = settles if self.epsilon > 0 else torch.zeros_like(settles)
        epsilon = self.epsilon * (~settles).to(leave.dtype)
        return Reverse(
            stay=torch.where(is_mask, stay_masked, torch.where(redrawn, p_own, 1.0)),
            scale=torch.where(is_mask, leave * (1 - epsilon), redrawn.to(leave.dtype)),
            floor=torch.where(is_mask, leave * epsilon / self.vocab_size, 0.0),
        )


def epsilon_process(process: Process) -> EpsilonHybrid:
    """The process itself, refused unless it is epsilon-hybrid."""
    return checks.instance("process", process, EpsilonHybrid)
