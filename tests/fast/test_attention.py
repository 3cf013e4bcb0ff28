"""FlexAttention and the prepared kernels against attention by its definition."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.attention import heads, layouts, reference

from hdlm.fast.attention import PreparedAttention, flex_attention_for, training_attention
from hdlm.nn.attention import attention_for
from hdlm.theory.layout import build_layout, stack_layouts


@settings(max_examples=40, deadline=None)
@given(layouts(), st.sampled_from([4, 2]))
@pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile.*")
def test_flex_attention_is_the_definition(layout, kv_heads):
    q, k, v = heads(layout, kv_heads=kv_heads, dtype=torch.float32)
    found = flex_attention_for(layout)(q, k, v)
    torch.testing.assert_close(found, reference(q, k, v, layout.mask()), rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile.*")
def test_rows_with_layouts_of_their_own():
    layout = stack_layouts(
        [build_layout(6, [(2, 6)], shifted=True, settled=2), build_layout(9, [(7, 9)], shifted=True)]
    )
    q, k, v = heads(layout, dtype=torch.float32)
    expected = reference(q, k, v, layout.mask().unsqueeze(1))
    torch.testing.assert_close(flex_attention_for(layout)(q, k, v), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_prepared_kernels_are_the_definition(causal, kv_heads):
    layout = build_layout(7, [], shifted=True) if causal else build_layout(7, [(0, 7)], shifted=True, settled=0)
    q, k, v = heads(layout, kv_heads=kv_heads)
    torch.testing.assert_close(PreparedAttention(causal)(q, k, v), reference(q, k, v, layout.mask()))


def test_training_on_a_cpu_attends_plainly():
    layout = build_layout(8, [(0, 4), (4, 8)], shifted=False)
    q, k, v = heads(layout)
    torch.testing.assert_close(training_attention(layout)(q, k, v), attention_for(layout)(q, k, v))
