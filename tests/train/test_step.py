"""A step of training against its formula: the loss that is descended, the optimiser, its rate, and the average."""

import math
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.floors import FLOORS
from support.networks import BOS_ID, VOCAB
from support.runs import tiny_recipe

from hdlm import backend as floors
from hdlm.config.model import DenoiserConfig
from hdlm.config.process import ProcessConfig
from hdlm.config.recipe import LossSettings, MixtureMember, ModelSettings, OptimizerSettings
from hdlm.data.packed import Rows
from hdlm.nn.transformer import Denoiser
from hdlm.objectives.hdce import HDCE
from hdlm.processes import World
from hdlm.train.batch import Batches
from hdlm.train.loss import LossModule
from hdlm.train.muon import Muon
from hdlm.train.step import Stepper, learning_rate

LENGTH, ROWS, STEPS, CPU = 11, 4, 6, torch.device("cpu")
OPTIMIZER = OptimizerSettings(
    lr=0.02, warmup=2, beta1=0.8, beta2=0.9, eps=1e-5, weight_decay=0.3, final_share=0.2, clip=0.1
)
LOSS = LossSettings(beta1=0.5, beta2=3.0, lambda_=0.7)


def stepper(*, backend="reference", **changes):
    """A small run of the epsilon process by its own loss, in two micro-batches."""
    settings = {
        "length": LENGTH,
        "process": ProcessConfig("epsilon", epsilon=0.1),
        "parameterization": "hdce",
        "schedules": (MixtureMember("block", 4),),
        "model": ModelSettings(layers=1, width=16, heads=2, condition_width=8, weighted_embedding=True),
        "loss": LOSS,
        "optimizer": OPTIMIZER,
        "steps": STEPS,
        "global_batch": ROWS,
        "micro_batch": 2,
        "ema": 0.15,
    }
    recipe = tiny_recipe("x", **(settings | changes))
    torch.manual_seed(1)
    model = Denoiser(DenoiserConfig(vocab_size=VOCAB, **vars(recipe.model)))
    process = recipe.process.build(VOCAB)
    rows = Rows(np.random.default_rng(0).integers(0, VOCAB, (9, LENGTH)))
    batches = Batches(recipe, rows, process, bos_id=BOS_ID, device=CPU)
    return Stepper(recipe, model, process, batches, World(0, 1, CPU), backend=backend)


@pytest.mark.parametrize(("backend", "divided"), [("reference", False), (FLOORS[0], True)])
def test_a_step_is_adamw_on_the_weighted_means_of_both_losses(backend, divided):
    """And on one batch, however it was split; clipped, with the rate of the step; the average follows."""
    run = stepper(backend=backend, loss=replace(LOSS, divided=divided))
    model = deepcopy(run.state.model)
    objective = HDCE(run.recipe.process.build(VOCAB), lambda_=0.7, divided=divided)
    module = LossModule(model, objective)
    decayed = [p for name, p in model.named_parameters() if p.ndim == 2 and name != "embedding"]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or name == "embedding"]
    groups = [{"params": decayed, "weight_decay": 0.3}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.8, 0.9), eps=1e-5)
    average = {name: p.detach().clone() for name, p in model.named_parameters()}
    for step in range(STEPS):
        done = run.step()
        batch = run.batches.at(torch.arange(step * ROWS, (step + 1) * ROWS), global_batch=ROWS)
        losses = module(batch)
        loss = 3.0 * losses.active / (ROWS * LENGTH) + 0.5 * losses.settled / losses.settled_tokens
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        assert norm > 0.1, "else nothing is clipped"
        for group in optimizer.param_groups:
            group["lr"] = 0.02 * [0.5, 1, *(0.2 + 0.4 * (1 + math.cos(math.pi * n / 4)) for n in range(4))][step]
        optimizer.step()
        assert done.loss == pytest.approx(loss.item(), rel=1e-5)
        assert (done.slots, done.active_tokens, done.skipped) == (batch.slots.token.numel(), ROWS * LENGTH, False)
        assert (run.state.step, run.state.updates) == (step + 1, step + 1)
        kept = min(0.15, (step + 1) / (step + 11))
        for (name, found), expected in zip(run.state.model.named_parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
            average[name] += (1 - kept) * (expected.detach() - average[name])
            torch.testing.assert_close(run.state.average.values[name], average[name], rtol=1e-4, atol=1e-5)
            assert found.grad is None


@pytest.mark.parametrize(("warmup", "steps"), [(0, 10), (4, 20), (20, 20)])
def test_the_rate_at_every_step(warmup, steps):
    """Up to the whole rate at the last step of the warmup, then a cosine to its last share, which stays."""
    settings = OptimizerSettings(lr=2.0, warmup=warmup, final_share=0.1)
    for step in range(3 * steps):
        falling = min(1.0, (step - warmup) / max(1, steps - warmup))
        after = 2.0 * (0.1 + 0.9 * math.cos(math.pi / 2 * falling) ** 2)
        expected = 2.0 * (step + 1) / warmup if step < warmup else after
        assert learning_rate(settings, step, steps) == pytest.approx(expected)


def test_every_process_has_samples_of_its_own():
    """Two processes, each with half of step 3's eight samples, in micro-batches of three at most."""
    for rank, first in ((0, 24), (1, 28)):
        run = stepper(global_batch=8, micro_batch=3)
        run.world = World(rank, 2, CPU)
        parts = [part.tolist() for part in run._micro_batches(3)]
        assert parts == [[first, first + 1, first + 2], [first + 3]]


@pytest.mark.parametrize(("kind", "expected"), [("adamw", torch.optim.AdamW), ("muon", Muon)])
def test_the_optimiser_is_the_recipes(kind, expected):
    optimizer = stepper(optimizer=OptimizerSettings(kind=kind)).state.optimizer
    assert type(optimizer) is expected
    assert any(group.get("orthogonal") for group in optimizer.param_groups) == (kind == "muon")


@pytest.mark.parametrize("flag", [False, True])
def test_module_and_processes_are_the_recipes(flag, monkeypatch):
    told, module = [], floors.loss_module

    def loss_module(*what, **how):
        told.append(how)
        return module(*what, **(how | {"compile": False}))

    monkeypatch.setattr(floors, "loss_module", loss_module)
    monkeypatch.setattr("hdlm.train.step.parallelize", lambda module, world, **how: told.append(how) or module)
    run = stepper(backend="reference", compile=flag, sharded=flag, hybrid=flag)
    assert told == [{"backend": "reference", "compile": flag}, {"sharded": flag, "hybrid": flag}]
    assert type(run.module) is LossModule


def test_two_processes_share_a_loss_and_each_counts_for_both():
    class Deaf(World):
        def sum(self, value):
            return value

    whole, parts = stepper().step(), []
    for rank in range(2):
        run = stepper()
        run.world = Deaf(rank, 2, CPU)
        parts.append(run.step())
        assert (parts[-1].slots, parts[-1].active_tokens) == (whole.slots, whole.active_tokens)
    assert parts[0].loss != parts[1].loss
    assert parts[0].loss + parts[1].loss == pytest.approx(whole.loss, rel=1e-5)


def test_gradients_are_exchanged_at_the_last_micro_batch(monkeypatch):
    run, told = stepper(global_batch=6), []
    monkeypatch.setattr("hdlm.train.step.no_sync", lambda module, last: told.append((module, last)) or nullcontext())
    run.step()
    assert told == [(run._parallel, False), (run._parallel, False), (run._parallel, True)]


def test_dropout_is_a_function_of_seed_step_and_process(monkeypatch):
    """So that a resumed run drops what it would have dropped, and no two steps or processes drop the same."""
    seeds = []
    monkeypatch.setattr(torch, "manual_seed", seeds.append)

    def seed_of(step, rank=0, **changes):
        run = stepper(**changes)
        run.state.step, run.world = step, World(rank, 1, CPU)
        run.step()
        return seeds[-1]

    found = [seed_of(0), seed_of(1), seed_of(0, rank=1), seed_of(0, seed=5)]
    assert len(set(found)) == 4
    assert all(isinstance(seed, int) and seed > 2**32 for seed in found)
    assert seed_of(1) == found[1]


def test_a_run_rewound_takes_the_first_samples_again():
    run = stepper()
    run.step()
    run.step()
    run.rewind()
    assert run.state.step == 0
    assert run._micro_batches(run.state.step)[0].tolist() == [0, 1]
    run._prefetched = 0, (first := run.batches.at(torch.arange(2), global_batch=ROWS))
    assert run._batch(torch.arange(2)) is first
    assert run._prefetched is None
    run._prefetched = 0, first
    assert run._batch(torch.arange(2, 4)) is not first
