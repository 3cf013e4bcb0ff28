"""Attention over slots: the rule of `theory.layout` as a mask, and rotary embeddings. Knows no weights.

What a block calls is an `Attend`: queries, keys and values in, mixed values out. Without a cache it is one object for
all layers; with a cache (`cache.py`) each layer has its own.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from hdlm.theory.layout import Layout, Pattern

# Queries [batch, heads, Q, width], keys and values [batch, kv_heads, K, width] to [batch, heads, Q, width].
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


class PerLayer(ABC):
    """Attention that differs from layer to layer, as through a cache."""

    @abstractmethod
    def at(self, layer: int) -> Attend:
        """That of one layer."""


@dataclass(frozen=True, eq=False)
class MaskedAttention:
    """Attention under a mask: `causal`, or boolean `mask` that broadcasts to [batch, heads, Q, K]; else everything."""

    causal: bool = False
    mask: Tensor | None = None

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Mixed values [batch, heads, Q, width]."""
        grouped = q.shape[1] != k.shape[1]
        return F.scaled_dot_product_attention(q, k, v, self.mask, is_causal=self.causal, enable_gqa=grouped)


def attention_for(layout: Layout) -> MaskedAttention:
    """The rule of a layout, by the kernel's own word for it where it has one."""
    if layout.pattern is Pattern.FULL:
        return MaskedAttention()
    if layout.pattern is Pattern.CAUSAL:
        return MaskedAttention(causal=True)
    return dense_attention(layout)


def dense_attention(layout: Layout) -> MaskedAttention:
    """The rule of a layout spelled out, slot by slot."""
    mask = layout.mask()
    return MaskedAttention(mask=mask.view(-1, 1, *mask.shape[-2:]))


def rope_table(
    position: Tensor, width: int, base: float, dtype: torch.dtype, scaling: Sequence[float] = ()
) -> tuple[Tensor, Tensor]:
    """Cosines and sines [..., 1, slots, width / 2] of the rotary embedding at the given positions [..., slots].

    `scaling`: see `stretched`.
    """
    exponent = torch.arange(0, width, 2, device=position.device, dtype=torch.float64) / width
    frequency = stretched(base**-exponent, scaling) if scaling else base**-exponent
    angle = position.unsqueeze(-1).double() * frequency
    return angle.cos().to(dtype).unsqueeze(-3), angle.sin().to(dtype).unsqueeze(-3)


def stretched(frequency: Tensor, scaling: Sequence[float]) -> Tensor:
    """Rotary waves (angles per position) made slower for longer texts, by (factor, low, high, length), as Llama 3 does.

    Waves that turn more than `high` times in `length` positions stay, those that turn less than `low` times become
    `factor` times slower, and between the two it is in proportion to the turns.
    """
    factor, low, high, length = scaling
    turns = frequency * length / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return frequency * (kept + (1 - kept) / factor)


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary embedding of x [batch, heads, slots, width], its two halves being the coordinates."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1).to(x.dtype)
