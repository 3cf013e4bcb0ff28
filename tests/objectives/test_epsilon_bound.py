"""The bound of the epsilon process against the exact likelihood, all sequences and all orders enumerated."""

import math

import pytest
import torch
from support.enumeration import Joint, gauss, sequences
from support.tabular import D, N, TabularDenoiser, exact_bound, exact_log_likelihood

import hdlm
from hdlm.objectives.bounds import training_objective
from hdlm.objectives.epsilon_bound import EpsilonBound, restoration_bound, shuffled_bound
from hdlm.theory.reading import CleanReading, HDCEReading


@pytest.mark.parametrize("noise", [hdlm.Linear(), hdlm.LogLinear(0.3)], ids=repr)
@pytest.mark.parametrize("epsilon", [0.0, 0.01, 0.3, 0.9, 1.0])
def test_never_below_the_exact_likelihood(epsilon, noise):
    process = hdlm.EpsilonHybrid(N, epsilon, noise)
    for seed in range(3):
        denoiser = TabularDenoiser(seed)
        logs = torch.tensor([exact_log_likelihood(denoiser, process, x0) for x0 in sequences(N, D)]).double()
        assert logs.exp().sum() == pytest.approx(1.0)
        for x0, log_p in zip(sequences(N, D), logs.tolist(), strict=True):
            assert exact_bound(denoiser, process, x0) >= -log_p - 1e-9


def outputs_read_as(reading, log_p0, xt, t):
    """Outputs that a reading takes for `log_p0`."""
    return log_p0 - reading.log_p0(torch.zeros_like(log_p0), xt, t)


@pytest.mark.parametrize("epsilon", [0.01, 0.2, 0.6])
@pytest.mark.parametrize("divided", [True, False])
@pytest.mark.parametrize("make", [CleanReading, HDCEReading])
def test_what_minimises_the_loss_is_read_as_the_law(make, divided, epsilon):
    """The expected gradient, over a joint law of two tokens and all noise, is 0 where the reading says p(x0 | xt)."""
    process = hdlm.EpsilonHybrid(3, epsilon)
    torch.manual_seed(0)
    joint, t = Joint(process, 2), torch.tensor([0.3, 0.6], dtype=torch.float64)
    law, pi = joint.at(t), joint.clean_given_noisy(t)
    objective = training_objective(make(process), divided=divided)
    for i in range(2):
        xt, at = joint.noisy[:, i], t[i].expand(len(joint.noisy))
        outputs = outputs_read_as(make(process), pi[:, i].log(), xt, at).requires_grad_()
        total = sum(
            (chance * objective(outputs, xt, x0[i].expand_as(xt), at)).sum()
            for chance, x0 in zip(law, joint.clean, strict=True)
        )
        (gradient,) = torch.autograd.grad(total, outputs)
        assert gradient.abs().max() < 1e-12


@pytest.mark.parametrize("noise", [hdlm.Linear(), hdlm.LogLinear(0.3)], ids=repr)
def test_the_loss_is_the_bound_but_for_what_restoration_sees(noise):
    """With a network that does not look at its neighbours, the loss in one pass has the bound for its mean."""
    process, denoiser = hdlm.EpsilonHybrid(N, 0.3, noise), TabularDenoiser(0)
    alone = denoiser.table[:3, -1]  # by the own state, N + 1 = 3 of them: [states, N]
    denoiser.table = torch.stack([alone[sequences(N + 1, D)[:, i]] for i in range(D)], 1)
    nodes, weights = gauss(8, crowd_end=1)
    objective, reading = EpsilonBound(process), CleanReading(process)
    for x0 in sequences(N, D):
        total = D * process.prior_kl()
        for clean in x0.tolist():
            chance = process.marginal(torch.eye(N).double()[clean], nodes)  # [times, states]
            for state in range(N + 1):
                xt = torch.full_like(nodes, state, dtype=torch.long)
                outputs = outputs_read_as(reading, alone[state].expand(len(nodes), -1), xt, nodes)
                loss = objective(outputs, xt, torch.full_like(xt, clean), nodes)
                total += (weights * chance[:, state] * loss).sum().item()
        assert total == pytest.approx(exact_bound(denoiser, process, x0), rel=1e-6)


def test_an_untrained_network_is_charged_the_uniform_law():
    """Equal outputs are the exact denoiser of uniform tokens, and what is replaced is known to be so by chance."""
    n, count = 50, 400_000
    process = hdlm.EpsilonHybrid(n, 0.1)
    torch.manual_seed(0)
    x0, t = torch.randint(n, (count,)), (torch.arange(count, dtype=torch.float64) + 0.5) / count
    loss = EpsilonBound(process)(torch.zeros(count, n, dtype=torch.float64), process.corrupt(x0, t), x0, t)
    assert loss.mean().item() == pytest.approx(math.log(n), abs=5 * loss.std().item() / count**0.5)


def test_any_shape_is_as_good_as_another():
    process, shape = hdlm.EpsilonHybrid(5, 0.3), (2, 3)
    torch.manual_seed(0)
    log_pi = torch.randn(*shape, 5, dtype=torch.float64).log_softmax(-1)
    shuffled, x0 = torch.randint(5, shape), torch.randint(5, shape)
    xt = torch.where(torch.rand(shape) < 0.5, 5, shuffled)
    t = 0.1 + 0.8 * torch.rand(shape, dtype=torch.float64)
    flat = [value.flatten(0, 1) for value in (log_pi, shuffled, x0, xt, t)]
    found = restoration_bound(process, log_pi, shuffled, x0)
    torch.testing.assert_close(found, restoration_bound(process, flat[0], flat[1], flat[2]).view(shape))
    found = shuffled_bound(process, log_pi, xt, shuffled, t)
    torch.testing.assert_close(found, shuffled_bound(process, flat[0], flat[3], flat[1], flat[4]).view(shape))
    assert restoration_bound(hdlm.EpsilonHybrid(5, 0.0), log_pi, shuffled, x0).abs().max() == 0


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
