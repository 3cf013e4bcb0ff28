"""A random denoiser of three tokens as a table: its exact likelihood and its bound, everything enumerated."""

import itertools
import math

import torch

from hdlm.objectives.epsilon_bound import restoration_bound, shuffled_bound
from support.enumeration import gauss, sequences

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
    total, hidden = D * process.prior_kl(), torch.cartesian_prod(*[torch.tensor([False, True])] * D)
    for shuffled in sequences(N, D):
        q = torch.where(shuffled == x0, same, other).double().prod().item()
        if q == 0:
            continue
        value = restoration_bound(process, denoiser(shuffled), shuffled, x0).sum().item()
        xt = torch.where(hidden, N, shuffled)
        alpha, shape = process.noise.alpha(nodes).view(-1, 1, 1), (len(nodes), *hidden.shape)
        chance = torch.where(hidden, 1 - alpha, alpha).prod(-1)  # [times, patterns]
        states = denoiser(xt).expand(*shape, -1), xt.expand(shape), shuffled.expand(shape)
        loss = shuffled_bound(process, *states, nodes.view(-1, 1, 1).expand(shape)).sum(-1)
        value += (weights.unsqueeze(1) * chance * loss).sum().item()
        total += q * value
    return total
