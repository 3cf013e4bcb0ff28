"""The bound of the epsilon process against the exact likelihood, all sequences and all orders enumerated."""

import itertools
import math

import pytest
import torch
from enumeration import gauss, sequences

import hdlm
from hdlm.objectives.epsilon_bound import restoration_bound, shuffled_bound

N, D = 2, 3


class TabularDenoiser:
    """A random pi(x0_i | x) for every noisy sequence x over N tokens and MASK."""

    def __init__(self, seed):
        generator = torch.Generator().manual_seed(seed)
        shape = ((N + 1) ** D, D, N)
        self.table = (2 * torch.randn(shape, generator=generator, dtype=torch.float64)).log_softmax(-1)

    def __call__(self, x):
        places = (N + 1) ** torch.arange(D - 1, -1, -1)
        return self.table[(x * places).sum(-1)]


def all_orders(denoiser, process, shuffled, shown):
    """Probability that masks, lifted one at a time in a random order, give `shuffled`; those of `shown` are given."""
    hidden = [i for i in range(D) if i not in shown]
    total = 0.0
    for order in itertools.permutations(hidden):
        state, p = torch.full((D,), N), 1.0
        state[list(shown)] = shuffled[list(shown)]
        for i in order:
            pi = denoiser(state)[i].exp()
            p *= ((1 - process.epsilon) * pi[shuffled[i]] + process.epsilon / N).item()
            state[i] = shuffled[i]
        total += p / math.factorial(len(hidden))
    return total


def exact_log_likelihood(denoiser, process, x0):
    """log p(x0): a draw of the prior, its masks lifted to give x~, then every token restored at once."""
    alive = process.noise.alpha(torch.ones((), dtype=torch.float64)).item()
    total = 0.0
    for shuffled in sequences(N, D):
        p_shuffled = 0.0
        for count in range(D + 1):
            start = (alive / N) ** count * (1 - alive) ** (D - count)
            if start > 0:
                shown = itertools.combinations(range(D), count)
                p_shuffled += start * sum(all_orders(denoiser, process, shuffled, subset) for subset in shown)
        restored = denoiser(shuffled).gather(-1, x0.unsqueeze(-1)).sum().exp().item()
        if process.epsilon == 0:
            restored = float(torch.equal(shuffled, x0))
        total += p_shuffled * restored
    return math.log(total)


def exact_bound(denoiser, process, x0):
    """The expectation of the library's terms over x~, the masks and the time, by enumeration and quadrature."""
    nodes, weights = gauss(8, crowd_end=1)
    same, other = 1 - process.epsilon + process.epsilon / N, process.epsilon / N
    total = D * process.prior_kl()
    for shuffled in sequences(N, D):
        q = torch.where(shuffled == x0, same, other).double().prod().item()
        if q == 0:
            continue
        value = restoration_bound(process, denoiser(shuffled), shuffled, x0).sum().item()
        for hidden in itertools.product([False, True], repeat=D):
            is_mask = torch.tensor(hidden)
            xt = torch.where(is_mask, N, shuffled)
            for t, weight in zip(nodes, weights, strict=True):
                alpha = process.noise.alpha(t)
                chance = torch.where(is_mask, 1 - alpha, alpha).prod().item()
                loss = shuffled_bound(process, denoiser(xt), xt, shuffled, t.expand(D)).sum().item()
                value += weight.item() * chance * loss
        total += q * value
    return total


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
