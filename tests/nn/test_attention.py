import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hdlm
from hdlm.nn.attention import attend, attend_one, dense_plan, plan_for, rope_table, rotate
from hdlm.theory.layout import build_layout, stack_layouts, training_layout


@st.composite
def layouts(draw):
    length, shifted = draw(st.integers(1, 20)), draw(st.booleans())
    windows = draw(
        st.lists(st.tuples(st.integers(0, length - 1), st.integers(1, length)), max_size=4).map(
            lambda pairs: [(a, min(a + b, length)) for a, b in pairs]
        )
    )
    settled = draw(st.integers(0 if windows else 1, length))
    return build_layout(length, windows, shifted=shifted, settled=settled)


def heads(layout, *, rows=2, kv_heads=4, dtype=torch.float64):
    shape = (rows, 4, len(layout), 8)
    kv_shape = (rows, kv_heads, len(layout), 8)
    return torch.randn(shape, dtype=dtype), torch.randn(kv_shape, dtype=dtype), torch.randn(kv_shape, dtype=dtype)


def reference(q, k, v, mask):
    """Attention by its definition, one mask for all heads."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v


@settings(max_examples=60, deadline=None)
@given(layouts(), st.sampled_from([4, 2]))
@pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile.*")
def test_all_kernels_are_the_definition(layout, kv_heads):
    q, k, v = heads(layout, kv_heads=kv_heads, dtype=torch.float32)
    expected = reference(q, k, v, layout.mask())
    for plan in (plan_for(layout, flex=False), plan_for(layout, flex=True), dense_plan(layout)):
        torch.testing.assert_close(attend(q, k, v, plan), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile.*")
def test_rows_with_layouts_of_their_own():
    layout = stack_layouts(
        [build_layout(6, [(2, 6)], shifted=True, settled=2), build_layout(9, [(7, 9)], shifted=True)]
    )
    q, k, v = heads(layout, dtype=torch.float32)
    expected = reference(q, k, v, layout.mask().unsqueeze(1))
    for flex in (False, True):
        torch.testing.assert_close(attend(q, k, v, plan_for(layout, flex=flex)), expected, rtol=1e-5, atol=1e-5)


def test_quench_and_flat_use_the_kernels_own_masks():
    causal = plan_for(training_layout(hdlm.Quench(6), shifted=True))
    assert causal.causal
    assert causal.dense is None
    for shifted in (False, True):
        full = plan_for(training_layout(hdlm.Flat(6), shifted=shifted))
        assert (full.causal, full.dense, full.blocks) == (False, None, None)


def test_a_plan_is_built_once_a_layout():
    layout = training_layout(hdlm.Block(6, 2), shifted=False)
    assert plan_for(layout) is plan_for(layout)


def test_rope_turns_pairs_by_position():
    """The complex form: coordinate pair j of position p is multiplied by exp(i p base^(-2j/width))."""
    x = torch.randn(1, 1, 5, 8, dtype=torch.float64)
    position = torch.tensor([0, 1, 7, 100, 5000])
    turned = rotate(x, *rope_table(position, 8, 10_000.0, torch.float64))
    pairs = torch.complex(x[..., :4], x[..., 4:])
    angle = position.view(5, 1) * 10_000.0 ** (-torch.arange(4, dtype=torch.float64) / 4)
    expected = pairs * torch.polar(torch.ones_like(angle), angle)
    torch.testing.assert_close(turned, torch.cat([expected.real, expected.imag], -1))
    torch.testing.assert_close(turned[..., 0, :], x[..., 0, :])


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_one_query_by_plain_products_is_the_definition(kv_heads):
    q = torch.randn(3, 4, 1, 8, dtype=torch.float64)
    k, v = (torch.randn(3, kv_heads, 9, 8, dtype=torch.float64)[:, :, :7] for _ in range(2))
    torch.testing.assert_close(attend_one(q, k, v), reference(q, k, v, torch.ones(1, 7, dtype=torch.bool)))
