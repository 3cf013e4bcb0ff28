"""The kernels of the losses against autograd, run by Triton's interpreter where there is no GPU."""

import pytest
import torch

import hdlm
from hdlm.fast.gradients import gradient_by_autograd, gradient_by_kernel, has_kernel
from hdlm.objectives.bounds import training_objective
from hdlm.objectives.objective import NextToken
from hdlm.theory.reading import CleanReading, HDCEReading, ScoreReading

pytest.importorskip("hdlm.fast.loss_kernels", reason="Triton is not installed")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
VOCAB, PADDED, ROWS = 300, 320, 60


def inputs(process, scale):
    source = torch.Generator().manual_seed(0)
    x0 = torch.randint(VOCAB, (ROWS,), generator=source)
    t = torch.rand(ROWS, generator=source).clamp(0.01, 0.99)
    xt = process.corrupt(x0, t, generator=source)
    xt[:20], xt[20:30] = x0[:20], torch.randint(VOCAB, (10,), generator=source)  # kept and replaced tokens
    logits = scale * torch.randn(ROWS, PADDED, generator=source)
    weight = torch.rand(ROWS, generator=source)
    return [x.to(DEVICE) for x in (logits, xt, x0, t, weight)]


def reading(process):
    """Outputs whose losses have kernels."""
    return HDCEReading(process) if isinstance(process, hdlm.EpsilonHybrid) else CleanReading(process)


@pytest.mark.parametrize("scale", [0.0, 1.0, 8.0])
@pytest.mark.parametrize(
    "process",
    [
        None,
        hdlm.Absorbing(VOCAB),
        hdlm.EpsilonHybrid(VOCAB, 0.1),
        hdlm.GammaHybrid(VOCAB, 0.01),
        hdlm.GammaHybrid(VOCAB, 0.3),
        hdlm.GammaHybrid(VOCAB, 1.0),
    ],
    ids=repr,
)
def test_kernels_give_losses_and_gradients_of_autograd(process, scale):
    objective = NextToken() if process is None else training_objective(reading(process))
    logits, *rest = inputs(process or hdlm.Absorbing(VOCAB), scale)
    if isinstance(process, hdlm.GammaHybrid) and process.gamma == 1:
        rest[0] = rest[0].clamp(max=VOCAB - 1)  # nothing is ever masked
    exactly = gradient_by_autograd(objective, *rest[:2], rest[2].double(), rest[3].double(), VOCAB)
    kernel = gradient_by_kernel(objective, *rest, VOCAB)
    rows = slice(3, ROWS)
    exact, found = exactly(logits[rows].double(), rows), kernel(logits[rows].clone(), rows)
    for one, other in zip(found, exact, strict=True):
        error = (one.double() - other).norm() / other.norm()
        assert error < 2e-5, error
    assert (found[1][:, VOCAB:] == 0).all()


def test_the_kernel_is_for_half_precision_on_a_gpu_and_not_for_scores():
    process = hdlm.GammaHybrid(VOCAB, 0.1)
    clean, scores = (training_objective(reading(process)) for reading in (CleanReading, ScoreReading))
    cuda, half = torch.device("cuda"), torch.bfloat16
    assert has_kernel(clean, cuda, half)
    assert not has_kernel(scores, cuda, half)
    assert not has_kernel(clean, cuda, torch.float32)
    assert not has_kernel(clean, torch.device("cpu"), half)
