"""Training on the fast floor ends with the weights of the reference: every process, objective and kind of schedule."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.runs import tiny_recipe

from hdlm.config.model import DenoiserConfig
from hdlm.config.process import ProcessConfig
from hdlm.config.recipe import LossSettings, MixtureMember, OptimizerSettings
from hdlm.data.packed import Rows
from hdlm.fast.training import FastLossModule
from hdlm.nn.transformer import CHUNK_ELEMENTS, Denoiser
from hdlm.processes import World
from hdlm.train.batch import Batches
from hdlm.train.loss import LossModule
from hdlm.train.step import Stepper

VOCAB, STEPS = 53, 20
BASE = tiny_recipe("x", steps=STEPS, optimizer=OptimizerSettings(lr=3e-3, warmup=5))
PLAIN = replace(BASE.model, conditioned=False, weighted_embedding=False, dropout=0.0)
CASES = {
    "gamma, mixture, shifted": BASE,
    "gamma, aligned": replace(BASE, shifted=False, loss=LossSettings()),
    "gamma, scores": replace(BASE, parameterization="score"),
    "epsilon": replace(BASE, process=ProcessConfig("epsilon", epsilon=0.1), model=PLAIN),
    "absorbing, averaged times": replace(
        BASE, process=ProcessConfig("absorbing"), model=PLAIN, loss=LossSettings(beta1=0.3, averaged=True)
    ),
    "absorbing, muon, llama": replace(
        BASE,
        process=ProcessConfig("absorbing"),
        model=replace(PLAIN, rms_norm=True, gated=True, mlp_bias=False, tied=True),
        optimizer=OptimizerSettings(kind="muon", lr=3e-3, warmup=5),
    ),
    "autoregression": replace(
        BASE, process=ProcessConfig("absorbing"), model=PLAIN, schedules=(MixtureMember("quench"),)
    ),
}


def trained(recipe, backend):
    """Losses, and the weights in float64, after 20 steps."""
    torch.manual_seed(0)
    model = Denoiser(DenoiserConfig(vocab_size=VOCAB, **vars(recipe.model))).double()
    process = recipe.process.build(VOCAB)
    tokens = np.random.default_rng(0).integers(0, VOCAB, (40, recipe.length))
    tokens[::3, 17:] = -1  # some rows end early
    batches = Batches(recipe, Rows(tokens), process, bos_id=0, device=torch.device("cpu"))
    stepper = Stepper(recipe, model, process, batches, World(0, 1, torch.device("cpu")), backend=backend)
    assert type(stepper.module) is (FastLossModule if backend == "fast" else LossModule)
    return [stepper.step().loss for _ in range(STEPS)], dict(model.named_parameters())


@pytest.mark.parametrize("case", CASES)
def test_the_same_weights_after_twenty_steps(case, monkeypatch):
    monkeypatch.setitem(CHUNK_ELEMENTS, "cpu", 64 * 40)  # several chunks of the head
    plain, fast = (trained(CASES[case], backend) for backend in ("reference", "fast"))
    assert plain[0] == pytest.approx(fast[0], rel=1e-9)
    assert len(set(plain[0])) == STEPS
    for name, weight in plain[1].items():
        torch.testing.assert_close(fast[1][name], weight, rtol=0, atol=1e-6)
