"""Bounds against exact likelihoods: the reverse process of a random tabular denoiser, solved as a master equation."""

import itertools
import math

import pytest
import torch
from enumeration import sequences

import hdlm
from hdlm.objectives.choose import training_objective
from hdlm.theory import dense
from hdlm.theory.parameterization import clean_to_score, output_to_clean

N, D = 2, 2


class TabularDenoiser:
    """Random raw outputs for every noisy sequence, whatever the time."""

    def __init__(self, states, seed):
        self.noisy = sequences(states, D)
        generator = torch.Generator().manual_seed(seed)
        self.outputs = 1.5 * torch.randn(len(self.noisy), D, N, generator=generator, dtype=torch.float64)


def reverse_rates(process, denoiser, t):
    """The generator of the reverse process per unit of time, columns being where it comes from: [noisy, noisy]."""
    forward = dense.hybrid_generator(process.vocab_size, process.gamma)
    noisy, count = denoiser.noisy, len(denoiser.noisy)
    log_pi = output_to_clean(process, denoiser.outputs, noisy, t.expand(noisy.shape))
    score = clean_to_score(process, log_pi, noisy, t.expand(noisy.shape)).exp()
    rates = torch.zeros(count, count, dtype=torch.float64)
    places = {tuple(row): i for i, row in enumerate(noisy.tolist())}
    for x, (row, i, z) in enumerate(itertools.product(noisy.tolist(), range(D), range(N))):
        if row[i] != z:
            target = [*row]
            target[i] = z
            source = x // (D * N)
            rates[places[tuple(target)], source] += forward[row[i], z] * score[source, i, z]
    rates *= process.noise.rate(t)
    return rates - torch.diag(rates.sum(0))


def exact_law(process, denoiser):
    """p(x) at t near 0 over all noisy sequences: the prior, carried down by the reverse process."""
    start = process.marginal(torch.full((N,), 1 / N, dtype=torch.float64), torch.ones((), dtype=torch.float64))
    law = torch.ones(len(denoiser.noisy), dtype=torch.float64)
    for i in range(D):
        law = law * start[denoiser.noisy[:, i]]
    grid = torch.logspace(0, -7, 1500, dtype=torch.float64)
    for now, after in itertools.pairwise(grid):
        rates = reverse_rates(process, denoiser, (now * after).sqrt())
        law = torch.linalg.matrix_exp((now - after) * rates) @ law
    return law


def exact_bound(process, denoiser, x0):
    """The objective's expectation over times and noise, by quadrature in log t, plus the prior's divergence."""
    objective = training_objective(process, clean=True)
    places = torch.linspace(math.log(1e-7), 0, 4001, dtype=torch.float64)
    middle, step = ((places[1:] + places[:-1]) / 2).exp(), float(places[1] - places[0])
    noisy = denoiser.noisy
    total = 0.0
    for t in middle:
        transition = dense.transition(process, 0.0, t.item())
        chance = torch.ones(len(noisy), dtype=torch.float64)
        for i in range(D):
            chance = chance * transition[noisy[:, i], x0[i]]
        losses = objective(
            denoiser.outputs.flatten(0, 1), noisy.flatten(), x0.repeat(len(noisy)), t.expand(noisy.numel())
        )
        losses = losses.view(len(noisy), D).sum(1)
        total += float(t) * step * (torch.where(chance > 0, chance * losses, 0.0)).sum().item()
    return total + D * process.prior_kl()


PROCESSES = [
    hdlm.Absorbing(N, hdlm.LogLinear(0.05)),
    hdlm.GammaHybrid(N, 0.2, hdlm.LogLinear(0.05)),
    hdlm.Uniform(N, hdlm.LogLinear(0.05)),
]


@pytest.mark.parametrize("process", PROCESSES, ids=repr)
def test_never_below_the_exact_likelihood(process):
    for seed in range(2):
        denoiser = TabularDenoiser(process.num_states, seed)
        law = exact_law(process, denoiser)
        assert law.sum() == pytest.approx(1.0, abs=1e-9)
        real = (denoiser.noisy < N).all(1)
        assert law[real].sum() == pytest.approx(1.0, abs=1e-3)
        for x0 in sequences(N, D):
            exact = -math.log(law[(denoiser.noisy == x0).all(1)].item())
            bound = exact_bound(process, denoiser, x0)
            assert bound >= exact - 2e-3, (seed, x0)
            assert bound < exact + 5
