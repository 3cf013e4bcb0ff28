"""Attention in training on a GPU: FlexAttention over block masks, cuDNN where a layout's mask has a name.

In training shapes stay the same, which is what these kernels' preparation needs. The same rule as
`nn.attention.attention_for`'s, and held equal to it.
"""

import functools
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from hdlm.nn.attention import Attend, attention_for
from hdlm.theory.layout import SETTLED, Layout, Pattern

# Found by trial on an H200 for heads of 64 (docs/performance-log.md).
_FLEX_OPTIONS = {
    "fwd_BLOCK_M": 64,
    "fwd_BLOCK_N": 64,
    "fwd_num_warps": 4,
    "bwd_BLOCK_M1": 64,
    "bwd_BLOCK_N1": 64,
    "bwd_BLOCK_M2": 64,
    "bwd_BLOCK_N2": 64,
    "bwd_num_warps": 4,
}
_SDPA_ORDER = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


@dataclass(frozen=True, eq=False)
class FlexAttention:
    """Attention under a block mask."""

    blocks: BlockMask

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Mixed values [batch, heads, Q, width]."""
        # Uncompiled, FlexAttention would spell out all scores; inside a compiled network it is compiled already.
        kernel = flex_attention if torch.compiler.is_compiling() or not q.is_cuda else _compiled_flex()
        options: Any = _FLEX_OPTIONS if q.is_cuda else None
        out = kernel(q, k, v, block_mask=self.blocks, enable_gqa=q.shape[1] != k.shape[1], kernel_options=options)
        assert isinstance(out, Tensor)
        return out


@dataclass(frozen=True, eq=False)
class PreparedAttention:
    """Attention to everything, or causal, by the fastest of the library's kernels for shapes that come again."""

    causal: bool = False

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Mixed values [batch, heads, Q, width]."""
        with sdpa_kernel(_SDPA_ORDER, set_priority=True):
            grouped = q.shape[1] != k.shape[1]
            return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, enable_gqa=grouped)


_kept: WeakKeyDictionary[Layout, Attend] = WeakKeyDictionary()


def training_attention(layout: Layout) -> Attend:
    """The attention of a training pass: these kernels on CUDA, the plain one elsewhere; kept with the layout."""
    if layout.window.device.type != "cuda":
        return attention_for(layout)
    if layout not in _kept:
        named = layout.pattern is not Pattern.GENERAL
        _kept[layout] = PreparedAttention(layout.pattern is Pattern.CAUSAL) if named else flex_attention_for(layout)
    return _kept[layout]


def flex_attention_for(layout: Layout) -> FlexAttention:
    """The rule of a layout by FlexAttention."""
    return FlexAttention(block_mask(layout.window, layout.limit, layout.position))


def block_mask(window: Tensor, limit: Tensor, position: Tensor) -> BlockMask:
    """The rule as a FlexAttention block mask, from per-slot tensors [slots] or [batch, slots].

    Settled slots come first, in order of position, and the slots of a window follow each other. So a slot sees all
    slots up to one index and those of one range, which takes three numbers a query and none a key.
    """
    slots = window.shape[-1]
    shared = window.ndim == 1
    window, limit, position = (x.view(-1, slots) for x in (window, limit, position))
    settled = window == SETTLED
    index = torch.arange(slots, device=window.device)
    ordered = torch.where(settled, position, torch.iinfo(position.dtype).max).cummax(1).values.contiguous()
    upto = torch.searchsorted(ordered, limit.contiguous(), right=True)
    first = torch.ones_like(settled)
    first[:, 1:] = window[:, 1:] != window[:, :-1]
    start = torch.where(first, index, 0).cummax(1).values
    last = first.roll(-1, 1)
    last[:, -1] = True
    stop = torch.where(last, index + 1, slots).flip(1).cummin(1).values.flip(1)
    upto, start, stop = (x.int() for x in (upto, torch.where(settled, slots, start), torch.where(settled, slots, stop)))

    def rule(batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        row = batch * 0 if shared else batch
        return (k < upto[row, q]) | ((k >= start[row, q]) & (k < stop[row, q]))

    batch = None if shared else window.shape[0]
    return create_block_mask(rule, batch, None, slots, slots, device=window.device.type)


@functools.cache
def _compiled_flex():
    return torch.compile(flex_attention, dynamic=False)
