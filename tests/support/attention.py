"""Random layouts, queries and keys for them, and attention by its definition."""

import torch
from hypothesis import strategies as st

from hdlm.theory.layout import build_layout


@st.composite
def layouts(draw):
    """Any settled part with any windows."""
    length, shifted = draw(st.integers(1, 20)), draw(st.booleans())
    windows = draw(
        st.lists(st.tuples(st.integers(0, length - 1), st.integers(1, length)), max_size=4).map(
            lambda pairs: [(a, min(a + b, length)) for a, b in pairs]
        )
    )
    settled = draw(st.integers(0 if windows else 1, length))
    return build_layout(length, windows, shifted=shifted, settled=settled)


def heads(layout, *, rows=2, kv_heads=4, dtype=torch.float64):
    """Random queries, keys and values of a layout's slots."""
    shape = (rows, 4, len(layout), 8)
    kv_shape = (rows, kv_heads, len(layout), 8)
    return torch.randn(shape, dtype=dtype), torch.randn(kv_shape, dtype=dtype), torch.randn(kv_shape, dtype=dtype)


def reference(q, k, v, mask):
    """Attention by its definition, one mask for all heads."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v
