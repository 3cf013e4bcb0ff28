"""Noise conditioning: how a block learns how noisy the position is that it works on (adaLN-zero).

Everything is computed once per noise level, [batch, levels, ...], and spread over the slots that share it. Knows no
process: the total noise sigma comes with the slots.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from hdlm.theory.levels import Runs, apply_levels

FREQUENCIES = 256
MANY_LEVELS = 64
MAX_SIGMA = 100.0  # alpha = e^-100: more noise than this is the same noise


class SigmaEmbedding(nn.Module):
    """Total noise [batch, levels] -> a vector per level [batch, levels, width]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(FREQUENCIES, width)
        self.outer = nn.Linear(width, width)

    def forward(self, sigma: Tensor) -> Tensor:
        half = FREQUENCIES // 2
        frequency = torch.exp(torch.arange(half, device=sigma.device) * (-math.log(10_000) / half))
        angle = sigma.float().clamp(max=MAX_SIGMA).unsqueeze(-1) * frequency
        waves = torch.cat([angle.cos(), angle.sin()], dim=-1).to(self.inner.weight.dtype)
        return F.silu(self.outer(F.silu(self.inner(waves))))


class Modulation(nn.Module):
    """From the vector of each level to `parts` vectors: shifts, scales and gates, all 0 at the start."""

    def __init__(self, condition_width: int, width: int, parts: int) -> None:
        super().__init__()
        self.parts = parts
        self.linear = nn.Linear(condition_width, parts * width)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, condition: Tensor) -> tuple[Tensor, ...]:
        """Parts of [batch, levels, width] from `condition` [batch, levels, condition_width]."""
        return self.linear(condition).chunk(self.parts, dim=-1)

    def recomputed(self, condition: Tensor) -> tuple[Tensor, ...]:
        """The same, recomputed in the backward pass where levels are many and would fill the memory."""
        if not torch.is_grad_enabled() or condition.shape[1] <= MANY_LEVELS:
            return self(condition)
        return checkpoint(self, condition, use_reentrant=False, preserve_rng_state=False)  # pyright: ignore[reportReturnType]


def modulate(x: Tensor, shift: Tensor, scale: Tensor, runs: Runs) -> Tensor:
    """Features [batch, slots, width] scaled and shifted, each by the vectors [batch, levels, width] of its level."""
    return apply_levels(lambda x, shift, scale: torch.addcmul(shift, x, 1 + scale), (x,), (shift, scale), runs)


def add_gated(x: Tensor, change: Tensor, gate: Tensor, runs: Runs) -> Tensor:
    """x + gate * change, the gate [batch, levels, width] being that of each slot's level."""
    return apply_levels(lambda x, change, gate: x + gate * change, (x, change), (gate,), runs)
