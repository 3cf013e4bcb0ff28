"""The bound of the epsilon process against the exact likelihood, all sequences and all orders enumerated."""

import math

import pytest
import torch
from support.enumeration import sequences
from support.tabular import D, N, TabularDenoiser, exact_bound, exact_log_likelihood

import hdlm


@pytest.mark.parametrize("noise", [hdlm.Linear(), hdlm.LogLinear(0.3)], ids=repr)
@pytest.mark.parametrize("epsilon", [0.0, 0.01, 0.3, 0.9])
def test_never_below_the_exact_likelihood(epsilon, noise):
    process = hdlm.EpsilonHybrid(N, epsilon, noise)
    for seed in range(3):
        denoiser = TabularDenoiser(seed)
        logs = torch.tensor([exact_log_likelihood(denoiser, process, x0) for x0 in sequences(N, D)]).double()
        assert logs.exp().sum() == pytest.approx(1.0)
        for x0, log_p in zip(sequences(N, D), logs.tolist(), strict=True):
            assert exact_bound(denoiser, process, x0) >= -log_p - 1e-9


def test_tight_where_nothing_is_hidden():
    """A model that ignores its input and the true channel leave no slack but the channel's own entropy."""
    process = hdlm.EpsilonHybrid(N, 0.3)
    denoiser = TabularDenoiser(0)
    pi = torch.tensor([0.8, 0.2], dtype=torch.float64)
    denoiser.table = pi.log().expand_as(denoiser.table)
    x0 = torch.tensor([0, 1, 0])
    smoothed = 0.7 * pi + 0.15
    channel = torch.tensor([[0.85, 0.15], [0.15, 0.85]], dtype=torch.float64)
    expected = sum(
        (channel[x] * (channel[x].log() - smoothed.log())).sum().item() - math.log(pi[x].item()) for x in x0.tolist()
    )
    assert exact_bound(denoiser, process, x0) == pytest.approx(expected)
