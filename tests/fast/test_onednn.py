"""Generation from weights laid out for the CPU: the same numbers, never a stale copy, and only where it belongs."""

import copy

import pytest
import torch
from support.networks import BOS_ID, batch, network
from torch.nn import functional as F

from hdlm.fast import onednn
from hdlm.fast.onednn import fits, linear, onednn_head
from hdlm.fast.trunk import fast_trunk
from hdlm.theory.layout import inference_layout

here = pytest.mark.skipif(not onednn._can_copy(), reason="this torch has no oneDNN")


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
    assert weight in onednn._copies
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
        layer = torch.nn.Linear(160, 130, bias=False)
        first = linear(x, layer.weight)
        layer.load_state_dict({name: -value for name, value in layer.state_dict().items()})
        assert torch.allclose(linear(x, layer.weight), -first, rtol=1e-5, atol=1e-5)
        assert torch.allclose(linear(x, copy.deepcopy(layer).weight), -first, rtol=1e-5, atol=1e-5)


@here
def test_double_precision_and_small_weights_take_the_plain_way():
    x, weight, b = inputs((4,))
    with torch.no_grad():
        wide = weight.double()
        assert torch.equal(linear(x.double(), wide, b.double()), F.linear(x.double(), wide, b.double()))
        small = weight[:8, :16].contiguous()
        linear(x[:, :16], small)
        empty = linear(x[:0], weight)
    assert empty.shape == (0, 130)
    assert all(tensor not in onednn._copies for tensor in (wide, small))


@here
def test_a_copy_goes_with_its_weight():
    before = len(onednn._copies)
    x, weight, _ = inputs((4,))
    with torch.no_grad():
        linear(x, weight)
    assert len(onednn._copies) == before + 1
    del weight
    assert len(onednn._copies) == before


@here
@pytest.mark.parametrize("style", ["paper", "plain", "llama", "qwen"])
@pytest.mark.parametrize("cached", [False, True])
def test_the_trunk_and_the_head_are_the_networks_own(style, cached, monkeypatch):
    """Every style of block, with and without a cache, every weight large enough to be laid out."""
    monkeypatch.setattr(onednn, "_SMALLEST", 1)
    model = network(style).float()
    x0, xt, t, process = batch(12)
    caches = [model.new_cache(2, 14) if cached else None for _ in range(2)]
    with torch.no_grad():
        for start, stop, held in ((0, 4, 0), (4, 8, 0), (8, 12, 4)) if cached else ((0, 12, 0), (5, 12, 0)):
            layout = inference_layout(start, stop, shifted=True, cached=held)
            slots = layout.fill(x0, xt, t.float(), process, bos_id=BOS_ID)
            assert fits(model)
            found = fast_trunk(model, slots, caches[0])
            torch.testing.assert_close(found, model.trunk(slots, cache=caches[1]), rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(onednn_head(model, found), model.head(found), rtol=1e-4, atol=1e-4)
            assert caches[0] is None or caches[0].settled == caches[1].settled


@here
def test_it_is_for_float32_without_gradients_and_weights_that_are_written_to_in_sight(monkeypatch):
    model = network().float()
    assert not fits(model)
    with torch.no_grad():
        assert fits(model)
        assert not fits(network())
        assert not fits(copy.deepcopy(model).train())
        with torch.inference_mode():
            hidden = copy.deepcopy(model)
            hidden.embedding = torch.nn.Parameter(model.embedding.clone(), requires_grad=False)
            assert not fits(hidden)
        monkeypatch.setattr(onednn.dist, "is_initialized", lambda: True)  # shards are filled without a trace
        assert not fits(model)
