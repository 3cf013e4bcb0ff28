"""Weights of the masked bound with the noise times integrated out.

Where a network does not read the time, a window's loss depends on its time through the weights 1 / t alone. Given which
positions are masked, the time may have been any that masks so: the weight's mean over those has the same expectation,
and none of its tail (1 / t has no variance). For alpha = 1 - t, one number per window being uniform over (0, 1).
"""

import functools

import torch
from torch import Tensor

from hdlm.theory.hyperschedule import Hyperschedule


def averaged_times(
    schedule: Hyperschedule, is_mask: Tensor, *, offset: int | None = None, real: Tensor | None = None
) -> Tensor:
    """Times [batch, length], float32, whose 1 / t is the mean weight given `is_mask` [batch, length].

    They mean something at masked positions only. `offset`: where a slide's first window ends. `real` [batch, length]:
    positions that chance has masked or not; others say nothing of the time.
    """
    real = torch.ones_like(is_mask) if real is None else real
    if not schedule.even:
        raise ValueError(f"{schedule!r} is not accepted: its times are not uniform, and their mean is another")
    if not schedule.training_windows(offset):
        raise ValueError(f"{schedule!r} is not accepted: autoregression has no noise times to average")
    if offset is None:
        return _share_masked(is_mask, real, schedule.width)
    return _along_ramps(is_mask, real, schedule.width, offset)


def _share_masked(is_mask: Tensor, real: Tensor, width: int) -> Tensor:
    """m of n positions masked: the mean of 1 / t is (n + 1) / m."""
    batch, length = is_mask.shape
    windows = -(-length // width)
    masked, inside = (
        torch.nn.functional.pad(x.float(), (0, windows * width - length)).view(batch, windows, width)
        for x in (is_mask & real, real)
    )
    times = masked.sum(-1).clamp(min=1) / (inside.sum(-1) + 1)
    return times.unsqueeze(-1).expand_as(masked).flatten(1)[:, :length].clamp(max=1)


def _along_ramps(is_mask: Tensor, real: Tensor, width: int, offset: int) -> Tensor:
    """Position i of a window at (i + v) / width: polynomials in v, which a quadrature of enough points does exactly."""
    batch, length = is_mask.shape
    before = width - offset  # of the first window, cut off
    windows = -(-(length + before) // width)
    after = windows * width - length - before
    masked, inside = (
        torch.nn.functional.pad(x.double(), (before, after)).view(batch, windows, width, 1) for x in (is_mask, real)
    )
    node, weight = (x.to(is_mask.device) for x in _quadrature(width // 2 + 1))
    index = torch.arange(width, device=is_mask.device, dtype=torch.float64).unsqueeze(1)
    t = (index + node) / width  # [width, nodes]
    chance = inside * (masked * t.log() + (1 - masked) * torch.log1p(-t))
    total = chance.sum(2)  # [batch, windows, nodes]
    share = weight * (total - total.amax(-1, keepdim=True)).exp()
    share = share / share.sum(-1, keepdim=True)
    mean = torch.einsum("bwk,ik->bwi", share, 1 / t)
    return (1 / mean).flatten(1)[:, before : before + length].float()


@functools.cache
def _quadrature(count: int) -> tuple[Tensor, Tensor]:
    """Gauss-Legendre nodes and weights on (0, 1): from the recurrence of the polynomials, as eigenvalues."""
    k = torch.arange(1, count, dtype=torch.float64)
    beside = torch.diag(k / (4 * k * k - 1).sqrt(), 1)
    node, vector = torch.linalg.eigh(beside + beside.T)
    return (node + 1) / 2, vector[0].square()
