"""The trunk and the head for generation on a CPU: weights in oneDNN's own order of memory.

Generation multiplies a handful of rows by every weight of the network, again and again. oneDNN does that several times
faster than a plain product once a weight is laid out for it. Only without gradients, in float32; a weight that is
written to is laid out again, unless it is written to behind torch's back (`weight.data`).
"""

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F
from torch.utils.weak import WeakIdKeyDictionary

from hdlm.nn.attention import Attend, PerLayer
from hdlm.nn.conditioning import add_gated, modulate
from hdlm.nn.transformer import Denoiser
from hdlm.theory.layout import Slots
from hdlm.theory.levels import Runs

_SMALLEST = 2**14  # entries of a weight from which on a copy is worth it
_ROWS = 16  # that a copy is laid out for; it serves any number
_copies: WeakIdKeyDictionary = WeakIdKeyDictionary()


def fits(model: Denoiser) -> bool:
    """Whether a pass can run here: float32 on a CPU, no gradients, weights whose changes can be noticed."""
    weight = model.embedding
    if torch.is_grad_enabled() or weight.device.type != "cpu" or weight.dtype != torch.float32 or weight.is_inference():
        return False
    return not (dist.is_available() and dist.is_initialized()) and not model.training and _can_copy()


def onednn_trunk(model: Denoiser, slots: Slots, rope: tuple[Tensor, Tensor], attend: Attend | PerLayer) -> Tensor:
    """Features [batch, slots, width], as `Denoiser.trunk`."""
    runs = slots.layout.runs
    x, condition = model.embed(slots.token, slots.weight), model.condition(slots.sigma)
    blocks: Any = model.blocks
    for layer, block in enumerate(blocks):
        x = _block(block, x, condition, runs, rope, attend.at(layer) if isinstance(attend, PerLayer) else attend)
    return model.head.features(x, condition, runs)


def onednn_head(model: Denoiser, features: Tensor) -> Tensor:
    """Scores [..., outputs] of features [..., width], as `Denoiser.head`."""
    head = model.head
    return linear(features, head.weight, head.bias)[..., : head.outputs]


def _block(
    block: Any, x: Tensor, condition: Tensor | None, runs: Runs, rope: tuple[Tensor, Tensor], attend: Attend
) -> Tensor:
    if block.modulation is None or condition is None:
        x = x + _attention(block.attention, block.norm1(x), rope, attend)
        return x + _mlp(block.mlp, block.norm2(x))
    table = linear(condition, block.modulation.linear.weight, block.modulation.linear.bias)
    shift1, scale1, gate1, shift2, scale2, gate2 = table.chunk(6, dim=-1)
    out = _attention(block.attention, modulate(block.norm1(x), shift1, scale1, runs), rope, attend)
    x = add_gated(x, out, gate1, runs)
    return add_gated(x, _mlp(block.mlp, modulate(block.norm2(x), shift2, scale2, runs)), gate2, runs)


def _attention(attention: Any, x: Tensor, rope: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
    q, k, v = attention.project(linear(x, attention.qkv.weight, attention.qkv.bias), rope)
    return linear(attend(q, k, v).transpose(1, 2).flatten(2), attention.out.weight)


def _mlp(mlp: Any, x: Tensor) -> Tensor:
    return linear(mlp.activate(linear(x, mlp.inner.weight, mlp.inner.bias)), mlp.outer.weight, mlp.outer.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., inputs] times weight [outputs, inputs], plus bias: F.linear, up to rounding."""
    plain = x.dtype == weight.dtype == torch.float32 and type(weight) in (Tensor, nn.Parameter)
    if not plain or weight.numel() < _SMALLEST or not x.numel():
        return F.linear(x, weight, bias)
    return torch.ops.mkldnn._linear_pointwise(x, _copy_of(weight), bias, "none", [], "")


def identity(weight: Tensor) -> tuple[int, int]:
    """What tells whether a tensor is the one that it was: its memory, and how often that was written to."""
    return weight.data_ptr(), 0 if weight.is_inference() else weight._version


def _copy_of(weight: Tensor) -> Tensor:
    """The weight in oneDNN's order, made again when it has changed."""
    found = _copies.get(weight)
    if found is None or found[0] != identity(weight):
        copy = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), _ROWS)
        found = _copies[weight] = (identity(weight), copy)
    return found[1]


@functools.cache
def _can_copy() -> bool:
    """Whether this build of torch has the operations, and they do what they should."""
    if not torch.backends.mkldnn.is_available():  # pyright: ignore[reportAttributeAccessIssue]
        return False
    x, weight = torch.eye(2, 16), torch.arange(256.0).view(16, 16)
    try:
        copy = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)
        found = torch.ops.mkldnn._linear_pointwise(x, copy, None, "none", [], "")
    except (AttributeError, RuntimeError):
        return False
    return bool(torch.equal(found, x @ weight.T))
