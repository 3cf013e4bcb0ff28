import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.attention import heads, layouts, reference

import hdlm
from hdlm.nn.attention import attention_for, dense_attention, rope_table, rotate, stretched
from hdlm.theory.layout import build_layout, stack_layouts, training_layout


@settings(max_examples=60, deadline=None)
@given(layouts(), st.sampled_from([4, 2]))
def test_attention_is_the_definition(layout, kv_heads):
    q, k, v = heads(layout, kv_heads=kv_heads)
    expected = reference(q, k, v, layout.mask())
    for attention in (attention_for(layout), dense_attention(layout)):
        torch.testing.assert_close(attention(q, k, v), expected, rtol=1e-10, atol=1e-10)


def test_rows_with_layouts_of_their_own():
    layout = stack_layouts(
        [build_layout(6, [(2, 6)], shifted=True, settled=2), build_layout(9, [(7, 9)], shifted=True)]
    )
    q, k, v = heads(layout)
    expected = reference(q, k, v, layout.mask().unsqueeze(1))
    torch.testing.assert_close(attention_for(layout)(q, k, v), expected, rtol=1e-10, atol=1e-10)


def test_quench_and_flat_use_the_kernels_own_masks():
    causal = attention_for(training_layout(hdlm.Quench(6), shifted=True))
    assert causal.causal
    assert causal.mask is None
    for shifted in (False, True):
        full = attention_for(training_layout(hdlm.Flat(6), shifted=shifted))
        assert (full.causal, full.mask) == (False, None)
    assert attention_for(training_layout(hdlm.Block(6, 2), shifted=False)).mask is not None


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


def test_slow_waves_are_stretched_and_fast_ones_stay():
    """Turns in 32 positions: above 4 a wave stays, below 1 it is 8 times slower, and 2.5 is half way."""
    turns = torch.tensor([16.0, 4.0, 2.5, 1.0, 0.25], dtype=torch.float64)
    waves = turns * 2 * torch.pi / 32
    kept = torch.tensor([1.0, 1.0, (1 + 1 / 8) / 2, 1 / 8, 1 / 8], dtype=torch.float64)
    torch.testing.assert_close(stretched(waves, (8.0, 1.0, 4.0, 32.0)), kept * waves)
    plain, longer = (rope_table(torch.arange(9), 8, 100.0, torch.float64, scaling) for scaling in ((), (8, 1, 4, 32)))
    assert torch.equal(plain[0][..., 0], longer[0][..., 0])
    assert not torch.equal(plain[0][..., -1], longer[0][..., -1])
