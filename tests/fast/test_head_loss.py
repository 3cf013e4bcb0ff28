"""The head and its loss as one operation: the loss and every gradient of plain autograd, in any number of chunks."""

import pytest
import torch
from torch.nn import functional as F

import hdlm
from hdlm.config.model import DenoiserConfig
from hdlm.fast.gradients import gradient_by_autograd
from hdlm.fast.head_loss import head_loss
from hdlm.nn.transformer import CHUNK_ELEMENTS, Head
from hdlm.objectives.bounds import training_objective
from hdlm.objectives.objective import NextToken
from hdlm.theory.reading import CleanReading, HDCEReading, ScoreReading

VOCAB, WIDTH, ROWS = 37, 8, 23
OBJECTIVES = {
    "next token": (hdlm.Absorbing(VOCAB), NextToken()),
    "masked": (hdlm.Absorbing(VOCAB), training_objective(CleanReading(hdlm.Absorbing(VOCAB)))),
    "gamma": (hdlm.GammaHybrid(VOCAB, 0.1), training_objective(CleanReading(hdlm.GammaHybrid(VOCAB, 0.1)))),
    "gamma, scores": (hdlm.GammaHybrid(VOCAB, 0.1), training_objective(ScoreReading(hdlm.GammaHybrid(VOCAB, 0.1)))),
    "epsilon": (hdlm.EpsilonHybrid(VOCAB, 0.1), training_objective(CleanReading(hdlm.EpsilonHybrid(VOCAB, 0.1)))),
    "HDCE": (hdlm.EpsilonHybrid(VOCAB, 0.1), training_objective(HDCEReading(hdlm.EpsilonHybrid(VOCAB, 0.1)))),
}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_loss_and_gradients_are_those_of_plain_autograd(name, bias, monkeypatch):
    process, objective = OBJECTIVES[name]
    torch.manual_seed(0)
    head = Head(DenoiserConfig(VOCAB, layers=1, width=WIDTH, heads=2, head_bias=bias)).double()
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    features = torch.randn(ROWS, WIDTH, dtype=torch.float64, requires_grad=True)
    x0, t = torch.randint(VOCAB, (ROWS,)), torch.rand(ROWS, dtype=torch.float64).clamp(0.05, 0.95)
    xt, weight = process.corrupt(x0, t), torch.rand(ROWS, dtype=torch.float64)
    leaves = [features, head.weight] + ([head.bias] if bias else [])

    plain = (objective(F.linear(features, head.weight, head.bias)[:, :VOCAB], xt, x0, t) * weight).sum()
    monkeypatch.setitem(CHUNK_ELEMENTS, "cpu", 5 * len(head.weight))
    assert len(head.chunks(ROWS)) == 5
    fused = head_loss(
        head,
        features,
        gradient_by_autograd(objective, xt, x0, t, weight, VOCAB),
    )
    torch.testing.assert_close(fused, plain)
    for one, other in zip(torch.autograd.grad(3 * fused, leaves), torch.autograd.grad(3 * plain, leaves), strict=True):
        torch.testing.assert_close(one, other)
