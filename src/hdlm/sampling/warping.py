"""Temperature, top-k and top-p: what users do to the law of the clean token before they draw from it."""

import math

import torch
from torch import Tensor

from hdlm.config.sampling import DrawSettings


def warp(log_p0: Tensor, settings: DrawSettings) -> Tensor:
    """The law of log p0 [..., N] warped and normalised: temperature, then the `top_k` likeliest, then mass `top_p`."""
    if is_plain(settings):
        return log_p0
    if settings.temperature == 0:
        best = log_p0.argmax(-1, keepdim=True)
        return torch.full_like(log_p0, -math.inf).scatter_(-1, best, 0.0)
    # Largest 0 before the division: a tiny temperature then sends the others to -infinity, and not all of them.
    log_p0 = ((log_p0 - log_p0.amax(-1, keepdim=True)) / (settings.temperature or 1.0)).log_softmax(-1)
    if settings.top_k is not None and settings.top_k < log_p0.shape[-1]:
        least = log_p0.topk(settings.top_k, dim=-1).values[..., -1:]
        log_p0 = log_p0.masked_fill(log_p0 < least, -math.inf).log_softmax(-1)
    if settings.top_p is not None and settings.top_p < 1:
        ordered, order = log_p0.sort(dim=-1, descending=True)
        before = ordered.double().exp().cumsum(-1) - ordered.double().exp()
        beyond = torch.zeros_like(log_p0, dtype=torch.bool).scatter_(-1, order, before >= settings.top_p)
        log_p0 = log_p0.masked_fill(beyond, -math.inf).log_softmax(-1)
    return log_p0


def is_plain(settings: DrawSettings) -> bool:
    """Whether every law is left as it is."""
    return settings.temperature in (None, 1) and settings.top_k is None and settings.top_p in (None, 1)
