"""The kernels of generation against plain torch, run by Triton's interpreter where there is no GPU."""

import pytest
import torch
from support.networks import BOS_ID, VOCAB, batch, network
from torch.nn import functional as F

import hdlm
from hdlm.fast import fused
from hdlm.fast.fixed_cache import FixedCache
from hdlm.nn.attention import attention_for, rope_table, rotate
from hdlm.theory.layout import inference_layout, next_token_layout

kernels = pytest.importorskip("hdlm.fast.kernels", reason="Triton is not installed")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize(("change", "gate", "shift"), [(0, 0, 0), (1, 0, 0), (1, 1, 1), (0, 0, 1), (1, 1, 0)])
def test_add_norm_modulate(rms, change, gate, shift):
    rows, slots, width, levels = 2, 5, 24, 3
    x, changed, weight = torch.randn(rows, slots, width), torch.randn(rows, slots, width), torch.randn(width)
    level = torch.tensor([0, 0, 1, 2, 2], dtype=torch.int32)
    tables = torch.randn(rows, levels, 3 * width)
    parts = [tables[..., i * width : (i + 1) * width] for i in range(3)]
    expected = x.clone()
    if change:
        expected = expected + changed * (parts[0][:, level.long()] if gate else 1)
    y = F.rms_norm(expected, (width,), weight, 1e-5) if rms else F.layer_norm(expected, (width,), weight, None, 1e-5)
    if shift:
        y = y * (1 + parts[2][:, level.long()]) + parts[1][:, level.long()]
    there = [value.to(DEVICE) for value in (x, weight, level, changed, *parts)]
    stream = there[0].clone()
    found = kernels.add_norm_modulate(
        stream,
        there[1],
        1e-5,
        rms=rms,
        level=there[2],
        change=there[3] if change else None,
        gate=tables.to(DEVICE)[..., :width] if gate else None,
        shift=tables.to(DEVICE)[..., width : 2 * width] if shift else None,
        scale=tables.to(DEVICE)[..., 2 * width :] if shift else None,
    )
    torch.testing.assert_close(found.cpu(), y, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(stream.cpu(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kv_heads", [3, 1])
def test_rotate_and_store(kv_heads):
    rows, slots, heads, size, capacity = 2, 4, 3, 16, 9
    qkv = torch.randn(rows, slots, (heads + 2 * kv_heads) * size)
    position = torch.tensor([[0, 1, 2, 3], [4, 5, 6, 7]])
    index = torch.tensor([[0, 1, 2, 3], [4, 5, 6, 8]])
    keys, values = torch.zeros(rows, kv_heads, capacity, size), torch.zeros(rows, kv_heads, capacity, size)
    rope = tuple(x.squeeze(0) for x in rope_table(torch.arange(capacity), size, 100.0, torch.float32))
    split = qkv.view(rows, slots, -1, size).transpose(1, 2).split([heads + kv_heads, kv_heads], dim=1)
    turned = rotate(split[0], *rope_table(position, size, 100.0, torch.float32))
    there = [x.to(DEVICE) for x in (qkv, position, index, keys, values)]
    q = kernels.rotate_and_store(there[0], tuple(x.to(DEVICE) for x in rope), *there[1:], heads=heads)
    torch.testing.assert_close(q.cpu(), turned[:, :heads], rtol=1e-5, atol=1e-5)
    at = index.view(rows, 1, slots, 1).expand(-1, kv_heads, -1, size)
    torch.testing.assert_close(there[3].cpu(), keys.scatter(2, at, turned[:, heads:]), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(there[4].cpu(), values.scatter(2, at, split[1]))


@pytest.mark.parametrize(("slots", "kv_heads"), [(1, 2), (1, 4), (17, 4), (40, 2), (70, 4)])
def test_attention_within_reach(slots, kv_heads):
    rows, heads, size, capacity = 2, 4, 16, 150
    q = torch.randn(rows, heads, slots, size)
    keys, values = torch.randn(rows, kv_heads, capacity, size), torch.randn(rows, kv_heads, capacity, size)
    reach = torch.randint(0, capacity, (rows, slots))
    reach[0] = 63
    mask = (torch.arange(capacity) <= reach.unsqueeze(-1)).unsqueeze(1)
    expected = F.scaled_dot_product_attention(q, keys, values, mask, enable_gqa=True).transpose(1, 2).flatten(2)
    there = [x.to(DEVICE) for x in (q, keys, values, reach.int())]
    limit = 1e-5 if DEVICE == "cpu" else 5e-3  # tensor cores read float32 as tf32
    torch.testing.assert_close(kernels.attend_within_reach(*there).cpu(), expected, rtol=limit, atol=limit)


@pytest.mark.parametrize("style", ["paper", "plain", "llama", "qwen"])
@pytest.mark.parametrize("case", ["flat", "block", "settling", "next token"])
def test_the_fused_trunk_is_the_trunk(style, case, monkeypatch):
    """All of a pass: every style of block, cached and whole, rows at different positions."""
    model = network(style, head_width=16).float()
    x0, xt, t, process = batch(12)
    t = t.float()
    layouts = {
        "flat": (inference_layout(0, 12, shifted=True, one_level_a_window=True), None),
        "block": (inference_layout(0, 5, shifted=True), torch.tensor([4, 6])),
        "settling": (inference_layout(3, 8, shifted=True, one_level_a_window=True), torch.tensor([1, 4])),
        "next token": (next_token_layout(1), torch.tensor([3, 2])),
    }
    layout, by = layouts[case]
    slots = (layout if by is None else layout.moved(by)).fill(x0, xt, t, process, bos_id=BOS_ID)
    assert int(slots.token.max()) <= VOCAB
    caches = []
    for _ in range(2 if by is not None else 0):
        cache = FixedCache.of(model, 2, 14)
        cache.keys.copy_(torch.randn(cache.keys.shape, generator=torch.Generator().manual_seed(1)))
        cache.values.copy_(torch.randn(cache.keys.shape, generator=torch.Generator().manual_seed(2)))
        caches.append(cache)
    with torch.no_grad():
        opened = caches[0].open(slots.layout) if caches else attention_for(slots.layout)
        rope = model.rope(slots.layout.position)
        expected = model.run(slots.token, slots.sigma, slots.weight, rope, slots.layout.runs, opened)
        found = fused.fused_trunk(model, slots, caches[1].open(slots.layout) if caches else None)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    if caches:
        torch.testing.assert_close(caches[1].keys, caches[0].keys, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(caches[1].values, caches[0].values, rtol=1e-3, atol=1e-4)


def test_half_precision_on_a_gpu_alone_is_fused():
    model, layout = network(), inference_layout(0, 4, shifted=False)
    slots = layout.fill(*batch(4)[:3], hdlm.GammaHybrid(VOCAB, 0.3))
    assert not fused.fits(model, slots, None)
