"""Muon: its steps are orthogonal, it leaves alone what is AdamW's, and a run with it resumes bit for bit."""

import os
import signal

import pytest
import torch
from safetensors.torch import load_file
from support.runs import text_folder, tiny_recipe

from hdlm.config.model import DenoiserConfig
from hdlm.config.recipe import OptimizerSettings
from hdlm.nn.transformer import Denoiser
from hdlm.train.loop import resume, train
from hdlm.train.muon import MOMENTUM, Muon, orthogonalized, parameter_groups
from hdlm.train.step import Stepper


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 12, 40), (2, 40, 12)])
def test_singular_values_come_near_one_and_the_vectors_stay(shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    u, s, vh = torch.linalg.svd(x, full_matrices=False)
    found = orthogonalized(x)
    inside = u.mT @ found @ vh.mT
    values = inside.diagonal(dim1=-2, dim2=-1)
    assert torch.allclose(inside, torch.diag_embed(values), atol=1e-6)
    large = s > 0.1 * s.norm(dim=-1, keepdim=True)
    assert large.any()
    assert ((values > 0.6) & (values < 1.25))[large].all()


def model_with_gradients(**changes):
    torch.manual_seed(0)
    config = DenoiserConfig(vocab_size=11, layers=2, width=16, heads=2, condition_width=8, **changes)
    model = Denoiser(config)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    return model


def test_a_step_is_momentum_made_orthogonal_part_by_part():
    model = model_with_gradients(gated=True)
    optimizer = Muon(parameter_groups(model, 0.1, orthogonal=True), lr=0.01)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer.step()
    for name, parts in (("blocks.1.attention.qkv", 3), ("blocks.0.mlp.inner", 2), ("blocks.0.mlp.outer", 1)):
        parameter = dict(model.named_parameters())[f"{name}.weight"]
        old, change = before[f"{name}.weight"], []
        for grad in parameter.grad.chunk(parts):
            direction = orthogonalized(((1 + MOMENTUM) * grad).unsqueeze(0))[0]
            change.append(0.01 * 0.2 * max(grad.shape) ** 0.5 * direction)
        expected = old - torch.cat(change) - 0.01 * 0.1 * old
        assert torch.allclose(parameter, expected, atol=1e-6)


def test_momentum_is_a_sum_that_forgets_and_looks_ahead():
    """Nesterov's: after three gradients, g3 + M (g3 + M (g2 + M g1)), made orthogonal."""
    model = model_with_gradients()
    optimizer = Muon(parameter_groups(model, 0.1, orthogonal=True), lr=0.01)
    weight = model.blocks[0].mlp.outer.weight
    generator, momentum = torch.Generator().manual_seed(3), torch.zeros_like(weight)
    for _ in range(3):
        old = weight.detach().clone()
        weight.grad = torch.randn(weight.shape, generator=generator)
        momentum = MOMENTUM * momentum + weight.grad
        optimizer.step()
        direction = orthogonalized((weight.grad + MOMENTUM * momentum).unsqueeze(0))[0]
        expected = old - 0.01 * 0.2 * max(weight.shape) ** 0.5 * direction - 0.01 * 0.1 * old
        torch.testing.assert_close(weight.detach(), expected, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(optimizer.state[weight]["exp_avg"], momentum)


@pytest.mark.parametrize(("changes", "parts"), [({}, (3, 1)), ({"kv_heads": 1}, (1, 1)), ({"gated": True}, (3, 2))])
def test_what_stands_on_each_other_in_one_matrix_is_made_orthogonal_apart(changes, parts):
    """Queries, keys and values, where they are equally many; the two halves of a gate."""
    model = model_with_gradients(**changes)
    groups = parameter_groups(model, 0.1, orthogonal=True)
    found = {id(p): group["parts"] for group in groups if group.get("orthogonal") for p in group["params"]}
    block = model.blocks[0]
    layers = (block.attention.qkv, block.mlp.inner, block.mlp.outer, block.attention.out)
    assert tuple(found[id(layer.weight)] for layer in layers) == (*parts, 1, 1)
    assert all(group["weight_decay"] == 0.1 for group in groups if group.get("orthogonal"))
    assert not any(group.get("orthogonal") for group in parameter_groups(model, 0.1, orthogonal=False))


def test_the_size_of_a_gradient_has_no_say():
    x = torch.randn(2, 12, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for scale in (1e-5, 1e5):
        torch.testing.assert_close(orthogonalized(scale * x), orthogonalized(x))


def test_nothing_is_made_of_nothing():
    assert torch.equal(orthogonalized(torch.zeros(2, 3, 4)), torch.zeros(2, 3, 4))


def test_what_has_no_gradient_stays():
    model = model_with_gradients()
    weight = model.blocks[1].mlp.outer.weight
    weight.grad, before = None, weight.detach().clone()
    Muon(parameter_groups(model, 0.1, orthogonal=True), lr=0.01).step()
    assert torch.equal(weight, before)


def test_what_is_no_hidden_matrix_moves_as_by_adamw():
    mine, plain = model_with_gradients(), model_with_gradients()
    optimizer = Muon(parameter_groups(mine, 0.1, orthogonal=True), lr=0.01)
    assert {id(p) for group in optimizer.param_groups for p in group["params"]} == {id(p) for p in mine.parameters()}
    optimizer.step()
    decayed = [p for name, p in plain.named_parameters() if p.ndim == 2 and name != "embedding"]
    others = [p for name, p in plain.named_parameters() if p.ndim != 2 or name == "embedding"]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    torch.optim.AdamW(groups, lr=0.01).step()
    names = [name for name, _ in mine.named_parameters()]
    for name, one, other in zip(names, mine.parameters(), plain.parameters(), strict=True):
        hidden = name.startswith("blocks.") and one.ndim == 2 and "modulation" not in name
        assert torch.allclose(one, other, atol=1e-7) != hidden, name


def test_what_finds_the_gradients_is_asked():
    model, asked = model_with_gradients(), []
    Muon(parameter_groups(model, 0.1, orthogonal=True), lr=0.1).step(lambda: asked.append(torch.is_grad_enabled()))
    assert asked == [True]


def test_a_gradient_that_is_no_number_moves_nothing_where_the_host_does_not_look():
    model = model_with_gradients()
    optimizer = Muon(parameter_groups(model, 0.1, orthogonal=True), lr=0.01)
    optimizer._step_matrices(optimizer.param_groups[0])
    chosen = optimizer.param_groups[0]["params"]
    before = [p.detach().clone() for p in chosen]
    memory = [optimizer.state[p]["exp_avg"].clone() for p in chosen]
    chosen[0].grad[0, 0] = float("nan")
    optimizer.found_inf = torch.ones(())
    optimizer._step_matrices(optimizer.param_groups[0])
    for p, old, momentum in zip(chosen, before, memory, strict=True):
        assert torch.equal(p, old)
        assert torch.equal(optimizer.state[p]["exp_avg"], momentum)


def test_a_run_with_it_learns_and_resumes_bit_for_bit(tmp_path, monkeypatch):
    monkeypatch.setenv("HDLM_CACHE", str(tmp_path / "cache"))
    optimizer = OptimizerSettings(kind="muon", lr=3e-3, warmup=2)
    recipe = tiny_recipe(text_folder(tmp_path / "text"), optimizer=optimizer)
    train(recipe, tmp_path / "whole", quiet=True)

    original = Stepper.step

    def step(self):
        if self.state.step == 6:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self)

    monkeypatch.setattr(Stepper, "step", step)
    assert not train(recipe, tmp_path / "cut", quiet=True).finished
    monkeypatch.setattr(Stepper, "step", original)
    assert resume(tmp_path / "cut", quiet=True).finished
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "cut"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_unknown_kinds_are_refused():
    with pytest.raises(ValueError, match=r"optimizer.kind = 'sgd' is not accepted"):
        OptimizerSettings(kind="sgd")
