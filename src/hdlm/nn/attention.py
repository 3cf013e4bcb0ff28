"""Attention over slots: one plan per forward pass, one call per layer.

A plan says how the rule of `theory.layout` reaches a kernel. Without a cache it follows from the layout: the
kernels' own full and causal forms where the mask is one of those, FlexAttention with a block mask for training on
CUDA, a dense boolean mask for SDPA elsewhere. With a cache (`cache.py`) it is a reach per slot. Plans are kept per
layout, so that a mask is built once and shared by all layers and steps. Knows no weights.
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

from hdlm.theory.layout import SETTLED, Layout, Pattern


@dataclass(frozen=True, eq=False)
class Plan:
    """How to mask; nothing set: every slot sees every key. `dense` is boolean, broadcast to [batch, heads, Q, K]."""

    causal: bool = False
    dense: Tensor | None = None
    blocks: BlockMask | None = None


_plans: WeakKeyDictionary[Layout, dict[tuple[torch.device, bool], Plan]] = WeakKeyDictionary()


def plan_for(layout: Layout, *, flex: bool | None = None) -> Plan:
    """The plan of a layout without cache; `flex` chooses FlexAttention.

    Default: on CUDA where gradients are kept, that is in training, where shapes stay the same. Its kernels are
    compiled per shape, which generation without a cache would change at every step.
    """
    device = layout.window.device
    flex = device.type == "cuda" and torch.is_grad_enabled() if flex is None else flex
    if torch.compiler.is_compiling():
        return _build_plan(layout, flex)
    plans = _plans.setdefault(layout, {})
    if (device, flex) not in plans:
        plans[device, flex] = _build_plan(layout, flex)
    return plans[device, flex]


def _build_plan(layout: Layout, flex: bool) -> Plan:
    if layout.pattern is Pattern.FULL:
        return Plan()
    if layout.pattern is Pattern.CAUSAL:
        return Plan(causal=True)
    if not flex:
        return dense_plan(layout)
    return Plan(blocks=block_mask(layout.window, layout.limit, layout.position))


def dense_plan(layout: Layout) -> Plan:
    """The rule spelled out, for SDPA: [1, 1, slots, slots] or [batch, 1, slots, slots]."""
    mask = layout.mask()
    return Plan(dense=mask.view(-1, 1, *mask.shape[-2:]))


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


def block_mask(window: Tensor, limit: Tensor, position: Tensor) -> BlockMask:
    """The rule as a FlexAttention block mask, from per-slot tensors [slots] or [batch, slots].

    Settled slots come first, in order of position, and the slots of a window follow each other. So a slot sees all
    slots up to one index and those of one stretch, which takes three numbers a query and none a key.
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


def attend(q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> Tensor:
    """Attention of queries [batch, heads, Q, width] to keys and values [batch, kv_heads, K, width]."""
    grouped = q.shape[1] != k.shape[1]
    if plan.blocks is not None:
        # Uncompiled, FlexAttention would spell out all scores; inside a compiled network it is compiled already.
        kernel = flex_attention if torch.compiler.is_compiling() or not q.is_cuda else _compiled_flex()
        options: Any = _FLEX_OPTIONS if q.is_cuda else None
        out = kernel(q, k, v, block_mask=plan.blocks, enable_gqa=grouped, kernel_options=options)
        assert isinstance(out, Tensor)
        return out
    if q.is_cuda and plan.dense is None and torch.is_grad_enabled():
        # In training shapes repeat, and cuDNN's kernels are worth their preparation.
        with sdpa_kernel(_SDPA_ORDER, set_priority=True):
            return F.scaled_dot_product_attention(q, k, v, is_causal=plan.causal, enable_gqa=grouped)
    sees_all = plan.dense is None and not plan.causal
    if q.is_cuda and q.dtype == torch.float32 and q.shape[2] == 1 and sees_all:
        return attend_one(q, k, v)
    return F.scaled_dot_product_attention(q, k, v, plan.dense, is_causal=plan.causal, enable_gqa=grouped)


def attend_one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of one query a head [batch, heads, 1, width] to every key, by plain products.

    In float32 the kernels for CUDA work on many queries at a time, most of which would be nothing.
    """
    batch, kv_heads, _, width = k.shape
    q = q.view(batch, kv_heads, -1, width) * width**-0.5
    return (q @ k.transpose(-1, -2)).softmax(-1).matmul(v).view(batch, -1, 1, width)


def attend_everything(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of every slot to every key, of shapes that will come again: see `attend`."""
    with sdpa_kernel(_SDPA_ORDER, set_priority=True):
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1])


def rope_table(position: Tensor, width: int, base: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines [..., 1, slots, width / 2] of the rotary embedding at the given positions [..., slots]."""
    exponent = torch.arange(0, width, 2, device=position.device, dtype=torch.float64) / width
    angle = position.unsqueeze(-1).double() * base**-exponent
    return angle.cos().to(dtype).unsqueeze(-3), angle.sin().to(dtype).unsqueeze(-3)


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary embedding of x [batch, heads, slots, width], its two halves being the coordinates."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1).to(x.dtype)
