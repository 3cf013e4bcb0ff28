"""Three Triton kernels for generation in half precision, where a step is many small operations and each counts.

`add_norm_modulate` ends one half of a block and begins the next; `rotate_and_store` turns queries and keys and puts the
keys and values where the cache keeps them; `attend_within_reach` is the cached attention of `cache.py`, reading as far
as each slot may and no mask. Shapes and lengths are arguments or device tensors, so that nothing is compiled anew as a
text grows. The plain path in `transformer.py` computes the same; tests hold the two equal, on a CPU by Triton's
interpreter. Imported only where Triton is.
"""

# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportArgumentType=false, reportCallIssue=false
import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _add_norm_modulate(
    x_ptr,
    change_ptr,
    gate_ptr,
    weight_ptr,
    shift_ptr,
    scale_ptr,
    level_ptr,
    y_ptr,
    slots,
    levels,
    table_stride,
    width,
    eps,
    HAS_CHANGE: tl.constexpr,
    HAS_GATE: tl.constexpr,
    HAS_SHIFT: tl.constexpr,
    RMS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    here = row * width + column
    x = tl.load(x_ptr + here, mask=inside, other=0.0).to(tl.float32)
    line = ((row // slots) * levels + tl.load(level_ptr + row % slots)) * table_stride + column
    if HAS_CHANGE:
        change = tl.load(change_ptr + here, mask=inside, other=0.0).to(tl.float32)
        if HAS_GATE:
            change = change * tl.load(gate_ptr + line, mask=inside, other=0.0).to(tl.float32)
        total = (x + change).to(x_ptr.dtype.element_ty)
        tl.store(x_ptr + here, total, mask=inside)
        x = total.to(tl.float32)
    if RMS:
        centred = x
    else:
        centred = tl.where(inside, x - tl.sum(x, axis=0) / width, 0.0)
    y = centred * tl.rsqrt(tl.sum(centred * centred, axis=0) / width + eps)
    y = y * tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    if HAS_SHIFT:
        shift = tl.load(shift_ptr + line, mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(scale_ptr + line, mask=inside, other=0.0).to(tl.float32)
        y = y * (1.0 + scale) + shift
    tl.store(y_ptr + here, y.to(y_ptr.dtype.element_ty), mask=inside)


def add_norm_modulate(
    x: Tensor,
    weight: Tensor,
    eps: float,
    *,
    rms: bool,
    level: Tensor,
    change: Tensor | None = None,
    gate: Tensor | None = None,
    shift: Tensor | None = None,
    scale: Tensor | None = None,
) -> Tensor:
    """x += gate * change, in place, then its norm, scaled and shifted: [batch, slots, width].

    Tables gate, shift and scale [batch, levels, width] share their strides; `level` [slots] int32 is a slot's row.
    """
    batch, slots, width = x.shape
    y = torch.empty_like(x)
    tables = [table for table in (gate, shift) if table is not None]
    levels, stride = (tables[0].shape[1], tables[0].stride(1)) if tables else (1, 0)
    _add_norm_modulate[(batch * slots,)](
        x,
        change if change is not None else x,
        gate if gate is not None else x,
        weight,
        shift if shift is not None else x,
        scale if scale is not None else x,
        level,
        y,
        slots,
        levels,
        stride,
        width,
        eps,
        HAS_CHANGE=change is not None,
        HAS_GATE=gate is not None,
        HAS_SHIFT=shift is not None,
        RMS=rms,
        BLOCK=triton.next_power_of_2(width),
        num_warps=4,
    )
    return y


@triton.jit
def _rotate_and_store(
    qkv_ptr,
    cosine_ptr,
    sine_ptr,
    position_ptr,
    index_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    slots,
    capacity,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    ALL: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    batch, slot = row // slots, row % slots
    head = tl.arange(0, ALL)[:, None]
    column = tl.arange(0, HALF_BLOCK)[None, :]
    narrow = column < HALF
    inside = (head < HEADS + 2 * KV_HEADS) & narrow
    source = qkv_ptr + row * (HEADS + 2 * KV_HEADS) * 2 * HALF + head * 2 * HALF + column
    first = tl.load(source, mask=inside, other=0.0)
    second = tl.load(source + HALF, mask=inside, other=0.0)
    turn = tl.load(position_ptr + row) * HALF + column
    cosine = tl.load(cosine_ptr + turn, mask=narrow, other=1.0)
    sine = tl.load(sine_ptr + turn, mask=narrow, other=0.0)
    a, b = first.to(tl.float32), second.to(tl.float32)
    turned_first = (a * cosine - b * sine).to(first.dtype)
    turned_second = (b * cosine + a * sine).to(first.dtype)
    is_q = inside & (head < HEADS)
    is_k = inside & (head >= HEADS) & (head < HEADS + KV_HEADS)
    is_v = inside & (head >= HEADS + KV_HEADS)
    target = ((batch * HEADS + head) * slots + slot) * 2 * HALF + column
    tl.store(q_ptr + target, turned_first, mask=is_q)
    tl.store(q_ptr + target + HALF, turned_second, mask=is_q)
    where = tl.load(index_ptr + row)
    target = ((batch * KV_HEADS + head - HEADS) * capacity + where) * 2 * HALF + column
    tl.store(k_ptr + target, turned_first, mask=is_k)
    tl.store(k_ptr + target + HALF, turned_second, mask=is_k)
    target = ((batch * KV_HEADS + head - HEADS - KV_HEADS) * capacity + where) * 2 * HALF + column
    tl.store(v_ptr + target, first, mask=is_v)
    tl.store(v_ptr + target + HALF, second, mask=is_v)


def rotate_and_store(
    qkv: Tensor,
    rope: tuple[Tensor, Tensor],
    position: Tensor,
    index: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    heads: int,
) -> Tensor:
    """Rotated queries [batch, heads, slots, size] of qkv [batch, slots, (heads + 2 kv_heads) * size].

    Rotated keys and values go to `keys` and `values` [batch, kv_heads, capacity, size] at `index` [batch, slots].
    `rope`: cosines and sines [positions, size / 2] of all positions, of which a slot has number `position`.
    """
    batch, slots, _ = qkv.shape
    _, kv_heads, capacity, size = keys.shape
    q = torch.empty(batch, heads, slots, size, dtype=qkv.dtype, device=qkv.device)
    _rotate_and_store[(batch * slots,)](
        qkv,
        *rope,
        position,
        index,
        q,
        keys,
        values,
        slots,
        capacity,
        HEADS=heads,
        KV_HEADS=kv_heads,
        HALF=size // 2,
        ALL=triton.next_power_of_2(heads + 2 * kv_heads),
        HALF_BLOCK=triton.next_power_of_2(size // 2),
        num_warps=4,
    )
    return q


@triton.jit
def _attend_within_reach(
    q_ptr,
    k_ptr,
    v_ptr,
    reach_ptr,
    out_ptr,
    slots,
    capacity,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
):
    batch = (tl.program_id(0) // HEADS).to(tl.int64)
    head = tl.program_id(0) % HEADS
    slot = tl.program_id(1) * QUERIES + tl.arange(0, QUERIES)
    column = tl.arange(0, SIZE)
    inside = slot < slots
    q_at = ((batch * HEADS + head) * slots + slot[:, None]) * SIZE + column[None, :]
    q = tl.load(q_ptr + q_at, mask=inside[:, None], other=0.0)
    reach = tl.load(reach_ptr + batch * slots + slot, mask=inside, other=0)
    stop = tl.max(reach, axis=0) + 1
    everyone = tl.min(reach, axis=0) + 1  # keys before this are seen by all queries
    base = (batch * KV_HEADS + head // (HEADS // KV_HEADS)) * capacity
    best = tl.full([QUERIES], -float("inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    sums = tl.zeros([QUERIES, SIZE], tl.float32)
    for start in range(0, stop, KEYS):
        key = start + tl.arange(0, KEYS)
        k_at = (base + key[None, :]) * SIZE + column[:, None]
        k = tl.load(k_ptr + k_at, mask=(key < stop)[None, :], other=0.0)
        score = tl.dot(q, k) * scale
        if start + KEYS > everyone:
            score = tl.where(key[None, :] <= reach[:, None], score, -float("inf"))
        higher = tl.maximum(best, tl.max(score, axis=1))
        weight = tl.exp2(score - higher[:, None])
        shrink = tl.exp2(best - higher)
        total = total * shrink + tl.sum(weight, axis=1)
        v_at = (base + key[:, None]) * SIZE + column[None, :]
        v = tl.load(v_ptr + v_at, mask=(key < stop)[:, None], other=0.0)
        sums = sums * shrink[:, None] + tl.dot(weight.to(v.dtype), v)
        best = higher
    out = (sums / total[:, None]).to(out_ptr.dtype.element_ty)
    out_at = ((batch * slots + slot[:, None]) * HEADS + head) * SIZE + column[None, :]
    tl.store(out_ptr + out_at, out, mask=inside[:, None])


def attend_within_reach(q: Tensor, keys: Tensor, values: Tensor, reach: Tensor) -> Tensor:
    """Attention of q [batch, heads, slots, size] to cached keys and values [batch, kv_heads, capacity, size].

    A slot sees indices 0..reach, reach [batch, slots] int32. The result is [batch, slots, heads * size].
    """
    batch, heads, slots, size = q.shape
    queries = 16 if slots <= 16 else 32 if slots <= 32 else 64
    out = torch.empty(batch, slots, heads * size, dtype=q.dtype, device=q.device)
    _attend_within_reach[(batch * heads, triton.cdiv(slots, queries))](
        q,
        keys,
        values,
        reach,
        out,
        slots,
        keys.shape[2],
        size**-0.5 * 1.4426950408889634,  # powers of 2 are cheaper than of e
        HEADS=heads,
        KV_HEADS=keys.shape[1],
        SIZE=size,
        QUERIES=queries,
        KEYS=128 if queries == 16 else 64,
        num_warps=4,
        num_stages=3,
    )
    return out
