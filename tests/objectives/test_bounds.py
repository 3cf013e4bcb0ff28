"""Bounds against exact likelihoods: the reverse process of a random tabular denoiser, solved as a master equation."""

import itertools
import math

import pytest
import torch
from support.enumeration import sequences

import hdlm
from hdlm.objectives.bounds import training_objective
from hdlm.theory import dense
from hdlm.theory.parameterization import clean_to_score, output_to_clean
from hdlm.theory.reading import CleanReading

N, D = 2, 2


class TabularDenoiser:
    """Random raw outputs for every noisy sequence, whatever the time."""

    def __init__(self, states, seed):
        self.noisy = sequences(states, D)
        generator = torch.Generator().manual_seed(seed)
        self.outputs = 1.5 * torch.randn(len(self.noisy), D, N, generator=generator, dtype=torch.float64)


def reverse_rates(process, denoiser, t):
    """Generators of the reverse process at times t, columns being where it comes from: [times, noisy, noisy]."""
    forward = dense.hybrid_generator(process.vocab_size, process.gamma)
    noisy, count = denoiser.noisy, len(denoiser.noisy)
    shape = (len(t), count, D)
    state = noisy.expand(shape), t.view(-1, 1, 1).expand(shape)
    log_pi = output_to_clean(process, denoiser.outputs.expand(*shape, N), *state)
    score = clean_to_score(process, log_pi, *state).exp()
    rates = torch.zeros(len(t), count, count, dtype=torch.float64)
    row_of = {tuple(row): i for i, row in enumerate(noisy.tolist())}
    for (source, row), i, z in itertools.product(enumerate(noisy.tolist()), range(D), range(N)):
        if row[i] != z:
            target = [*row[:i], z, *row[i + 1 :]]
            rates[:, row_of[tuple(target)], source] += forward[row[i], z] * score[:, source, i, z]
    rates *= process.noise.rate(t).view(-1, 1, 1)
    return rates - torch.diag_embed(rates.sum(1))


def exact_law(process, denoiser):
    """p(x) at t near 0 over all noisy sequences: the prior, carried down by the reverse process."""
    start = process.marginal(torch.full((N,), 1 / N, dtype=torch.float64), torch.ones((), dtype=torch.float64))
    law = start[denoiser.noisy].prod(1)
    grid = torch.logspace(0, -7, 1500, dtype=torch.float64)
    rates = reverse_rates(process, denoiser, (grid[:-1] * grid[1:]).sqrt())
    for step in torch.linalg.matrix_exp((grid[:-1] - grid[1:]).view(-1, 1, 1) * rates):
        law = step @ law
    return law


EDGES = torch.linspace(math.log(1e-7), 0, 4001, dtype=torch.float64)
TIMES = ((EDGES[1:] + EDGES[:-1]) / 2).exp()


def transitions(process):
    """P[x_t | x_0] at all times of the quadrature, [times, states, states]."""
    return torch.stack([dense.transition(process, 0.0, t) for t in TIMES.tolist()])


def exact_bound(process, denoiser, x0, transition):
    """The objective's expectation over times and noise, by quadrature in log t, plus the prior's divergence."""
    noisy, shape = denoiser.noisy, (len(TIMES), *denoiser.noisy.shape)
    chance = transition[:, noisy, x0].prod(-1)  # [times, noisy]
    states = noisy.expand(shape), x0.expand(shape), TIMES.view(-1, 1, 1).expand(shape)
    objective = training_objective(CleanReading(process))
    losses = objective(denoiser.outputs.expand(*shape, N).reshape(-1, N), *(x.reshape(-1) for x in states))
    losses = losses.view(shape).sum(-1)
    weights = TIMES * (EDGES[1] - EDGES[0])
    expected = (weights.unsqueeze(1) * torch.where(chance > 0, chance * losses, 0.0)).sum().item()
    return expected + D * process.prior_kl()


PROCESSES = [
    hdlm.Absorbing(N, hdlm.LogLinear(0.05)),
    hdlm.GammaHybrid(N, 0.2, hdlm.LogLinear(0.05)),
    hdlm.Uniform(N, hdlm.LogLinear(0.05)),
]


@pytest.mark.parametrize("process", PROCESSES, ids=repr)
def test_never_below_the_exact_likelihood(process):
    transition = transitions(process)
    for seed in range(2):
        denoiser = TabularDenoiser(process.num_states, seed)
        law = exact_law(process, denoiser)
        assert law.sum() == pytest.approx(1.0, abs=1e-9)
        real = (denoiser.noisy < N).all(1)
        assert law[real].sum() == pytest.approx(1.0, abs=1e-3)
        for x0 in sequences(N, D):
            exact = -math.log(law[(denoiser.noisy == x0).all(1)].item())
            bound = exact_bound(process, denoiser, x0, transition)
            assert bound >= exact - 2e-3, (seed, x0)
            assert bound < exact + 5
