"""Products from copies laid out for the CPU: the same numbers, never a stale copy, and only where they belong."""

import copy

import pytest
import torch
from torch.nn import functional as F

from hdlm.nn import linear as module
from hdlm.nn.linear import Linear, linear

here = pytest.mark.skipif(not module._can_copy(), reason="this torch has no oneDNN")


def inputs(rows, bias=True):
    source = torch.Generator().manual_seed(0)
    x, weight = torch.randn(*rows, 160, generator=source), torch.randn(130, 160, generator=source)
    return x, weight, torch.randn(130, generator=source) if bias else None


@here
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [(1,), (17,), (2, 33), (3, 1, 5), (300,)])
def test_the_product_is_the_plain_one(rows, bias):
    x, weight, b = inputs(rows, bias)
    exact = F.linear(x.double(), weight.double(), None if b is None else b.double())
    with torch.no_grad():
        found = linear(x, weight, b)
        crossed = linear(x.mT.contiguous().mT, weight, b) if x.ndim > 1 else found
    assert weight in module._copies
    for one in (found, crossed):
        assert one.shape == exact.shape
        assert ((one - exact).norm() / exact.norm()).item() < 1e-6


@here
def test_a_weight_that_changes_is_copied_again():
    x, weight, _ = inputs((4,))
    with torch.no_grad():
        before = linear(x, weight)
        weight.mul_(2)
        assert torch.allclose(linear(x, weight), 2 * before, rtol=1e-5, atol=1e-5)
        layer = Linear(160, 130)
        first = layer(x)
        layer.load_state_dict({name: -value for name, value in layer.state_dict().items()})
        assert torch.allclose(layer(x), -first, rtol=1e-5, atol=1e-5)
        assert torch.allclose(copy.deepcopy(layer)(x), -first, rtol=1e-5, atol=1e-5)


def test_gradients_double_precision_and_small_weights_take_the_plain_way():
    x, weight, b = inputs((4,))
    leaf = weight.clone().requires_grad_()
    assert torch.equal(linear(x, leaf, b), F.linear(x, leaf, b))
    with torch.no_grad():
        wide = weight.double()
        assert torch.equal(linear(x.double(), wide, b.double()), F.linear(x.double(), wide, b.double()))
        small = weight[:8, :16].contiguous()
        linear(x[:, :16], small)
        empty = linear(x[:0], weight)
    assert empty.shape == (0, 130)
    assert all(tensor not in module._copies for tensor in (leaf, wide, small))


@here
def test_a_copy_goes_with_its_weight():
    before = len(module._copies)
    x, weight, _ = inputs((4,))
    with torch.no_grad():
        linear(x, weight)
    assert len(module._copies) == before + 1
    del weight
    assert len(module._copies) == before


def test_weights_that_are_written_to_unseen_are_not_copied(monkeypatch):
    x, weight, _ = inputs((4,))
    with torch.inference_mode():
        hidden = weight.clone()
        linear(x, hidden)
        hidden.mul_(2)
        assert torch.equal(linear(x, hidden), F.linear(x, hidden))
    monkeypatch.setattr(module.dist, "is_initialized", lambda: True)  # shards are filled without a trace
    with torch.no_grad():
        assert torch.equal(linear(x, weight), F.linear(x, weight))
    assert weight not in module._copies
