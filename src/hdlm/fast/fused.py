"""The trunk for generation on a GPU: the network of `transformer.py` with few, larger operations.

Eight launches a layer: two matrix products with a norm before them and two more, rotation, attention. Modulations of
all layers come from one product. No gradients, no dropout.
"""

import functools
import importlib.util
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional as F

from hdlm.fast.attention import PreparedAttention
from hdlm.fast.fixed_cache import FixedPass
from hdlm.fast.onednn import identity
from hdlm.theory.layout import Pattern, Slots

if TYPE_CHECKING:
    from hdlm.nn.transformer import Denoiser, Norm


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def fits(model: "Denoiser", slots: Slots, cached: FixedPass | None) -> bool:
    """Whether this pass can run here: half precision on CUDA, without gradients, and a cache or one whole window."""
    weight, size = model.embedding, model.config.head_size
    able = weight.is_cuda and weight.dtype.itemsize == 2 and size in (16, 32, 64, 128) and _has_triton()
    seen = cached is not None or slots.layout.pattern is Pattern.FULL
    return able and seen and not torch.is_grad_enabled() and not (model.training and model.config.dropout > 0)


def fused_trunk(model: "Denoiser", slots: Slots, cached: FixedPass | None) -> Tensor:
    """Features [batch, slots, width], as `Denoiser.trunk`."""
    from hdlm.fast.kernels import add_norm_modulate, attend_within_reach, rotate_and_store

    config, layout = model.config, slots.layout
    batch, count = slots.token.shape
    device = slots.token.device
    level = _level_numbers(layout.runs, device)
    tables = _tables(model, slots.sigma)
    if cached is None:
        position = layout.position.expand(batch, count).contiguous()
        index = torch.arange(count, device=device).expand(batch, count).contiguous()
        rope = _rope_rows(model, count + 1, device)
        shape = (batch, config.num_kv_heads, count, config.head_size)
        scratch = [torch.empty(shape, dtype=model.embedding.dtype, device=device) for _ in range(2)]
    else:
        position, index, rope = cached.position, cached.index, _rope_rows(model, cached.rows, device)
        scratch = []

    def norm(x: Tensor, how: "Norm", number: int, part: int, change: Tensor | None = None, gate: int | None = None):
        """The residual stream with a change added, gated by the block before, then normed for what comes next."""
        modulated = tables is not None and (number < config.layers or config.conditioned_head)
        return add_norm_modulate(
            x,
            how.weight,
            config.norm_eps,
            rms=config.rms_norm,
            level=level,
            change=change,
            gate=_part(tables, config, gate) if tables is not None and gate is not None else None,
            shift=_part(tables, config, 6 * number + part) if modulated and tables is not None else None,
            scale=_part(tables, config, 6 * number + part + 1) if modulated and tables is not None else None,
        )

    x = model.embed(slots.token, slots.weight).contiguous()
    change, gate = None, None
    blocks: Any = model.blocks
    for number, block in enumerate(blocks):
        attention, mlp = block.attention, block.mlp
        y = norm(x, block.norm1, number, 0, change, gate)
        qkv = attention.normed(F.linear(y, attention.qkv.weight, attention.qkv.bias))
        keys, values = scratch if cached is None else cached.buffers(number)
        q = rotate_and_store(qkv, rope, position, index, keys, values, heads=config.heads)
        if cached is None:
            out = PreparedAttention()(q, keys, values).transpose(1, 2).reshape(batch, count, -1)
        else:
            out = attend_within_reach(q, keys, values, cached.reach)
        y = norm(x, block.norm2, number, 3, F.linear(out, attention.out.weight), 6 * number + 2)
        change, gate = _mlp(mlp, y), 6 * number + 5
    return norm(x, model.head.norm, config.layers, 0, change, gate)


def _mlp(mlp, y: Tensor) -> Tensor:
    """The block's MLP, GELU being part of its first product on a GPU where there is a bias to add."""
    if mlp.inner.bias is None or mlp.gated or not y.is_cuda:
        return mlp(y)
    flat = torch.ops.aten._addmm_activation(mlp.inner.bias, y.flatten(0, 1), mlp.inner.weight.T, use_gelu=True)
    return F.linear(flat, mlp.outer.weight, mlp.outer.bias).view_as(y)


# Recorded calls read what is kept here where it lies: nothing is moved or freed while the weights stay.
_products: WeakKeyDictionary = WeakKeyDictionary()


def _tables(model: "Denoiser", sigma: Tensor) -> Tensor | None:
    """Every modulation of the network for each level, [batch, levels, parts * width], by one product."""
    if model.sigma is None:
        return None
    modules: list[Any] = [block.modulation for block in model.blocks]
    modules += [model.head.modulation] if model.head.modulation is not None else []
    found = tuple(identity(x) for module in modules for x in (module.linear.weight, module.linear.bias))
    if model not in _products or _products[model][0] != found:
        weight, bias = (torch.cat([getattr(m.linear, name).detach() for m in modules]) for name in ("weight", "bias"))
        _products[model] = (found, weight, bias)
    _, weight, bias = _products[model]
    condition = model.condition(sigma)
    assert condition is not None
    return F.linear(condition, weight, bias)


def _part(tables: Tensor, config, number: int) -> Tensor:
    return tables[..., number * config.width : (number + 1) * config.width]


@functools.cache
def _level_numbers(runs: tuple[tuple[int, int], ...], device: torch.device) -> Tensor:
    """Each slot's level, int32 [slots]."""
    levels = sum(count for count, _ in runs)
    each = torch.tensor([size for count, size in runs for _ in range(count)])
    return torch.repeat_interleave(torch.arange(levels, dtype=torch.int32), each).to(device)


_ropes: WeakKeyDictionary = WeakKeyDictionary()


def _rope_rows(model: "Denoiser", rows: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines [rows or more, size / 2], float32, of positions from 0; shorter tables are kept."""
    tables = _ropes.setdefault(model, [])
    found = next((table for table in tables if len(table[0]) >= rows and table[0].device == device), None)
    if found is None:
        cosine, sine = model.rope(torch.arange(2 ** (rows - 1).bit_length(), device=device))
        found = (cosine.squeeze(0).float().contiguous(), sine.squeeze(0).float().contiguous())
        tables.append(found)
    return found
