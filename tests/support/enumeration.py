"""A joint law over a few tokens, written out in full: the truth that losses are compared with."""

import itertools

import torch

from hdlm.theory import dense
from hdlm.theory.parameterization import clean_to_score


def sequences(states, length):
    """All sequences over `states` symbols, [states ** length, length]."""
    return torch.tensor(list(itertools.product(range(states), repeat=length)))


class Joint:
    """A random law p(x0) of `length` tokens, and its joint with the noisy sequence at any times."""

    def __init__(self, process, length):
        self.process, self.length = process, length
        self.clean = sequences(process.vocab_size, length)
        self.noisy = sequences(process.num_states, length)
        self.law = (2 * torch.randn(len(self.clean), dtype=torch.float64)).softmax(0)

    def at(self, times):
        """P[x0, xt] for one time per position, [clean, noisy]."""
        joint = self.law.unsqueeze(1)
        for i, t in enumerate(times.tolist()):
            step = dense.transition(self.process, 0.0, t)
            joint = joint * step[self.noisy[:, i].unsqueeze(0), self.clean[:, i].unsqueeze(1)]
        return joint

    def information(self, times):
        """Mutual information of the clean and the noisy sequence, in nats."""
        joint = self.at(times)
        independent = joint.sum(1, keepdim=True) * joint.sum(0, keepdim=True)
        return torch.special.xlogy(joint, joint / independent.clamp(min=1e-300)).sum().item()

    def clean_given_noisy(self, times):
        """p(x0_i = z | xt), [noisy, length, N]; uniform where xt cannot happen."""
        joint = self.at(times)
        marginal = joint.sum(0)
        values = torch.nn.functional.one_hot(self.clean, self.process.vocab_size).double()
        pi = torch.einsum("cn,cif->nif", joint, values) / marginal.clamp(min=1e-300).view(-1, 1, 1)
        return torch.where(marginal.view(-1, 1, 1) > 1e-290, pi, 1 / self.process.vocab_size)


def gauss(count, *, crowd_end=3):
    """Nodes and weights on [0, 1], crowded towards 1, where losses of a nearly clean position bend sharply."""
    import numpy

    nodes, weights = numpy.polynomial.legendre.leggauss(count)
    nodes, weights = torch.from_numpy(nodes + 1) / 2, torch.from_numpy(weights) / 2
    return 1 - (1 - nodes) ** crowd_end, weights * crowd_end * (1 - nodes) ** (crowd_end - 1)


def integrated_loss(joint, schedule, loss_of):
    """The loss `loss_of` of the exact denoiser along a hyperschedule, summed over positions, in nats per sequence."""
    levels = schedule.levels.double() / schedule.max_level
    nodes, weights = gauss(16)
    total = 0.0
    for now, after in itertools.pairwise(levels):
        for node, weight in zip(nodes, weights, strict=True):
            total += weight * _mean_loss(joint, now + (after - now) * node, now - after, loss_of)
    return total.item()


def drawn_loss(joint, schedule, loss_of):
    """The same as training estimates it: the mean over the draws of a schedule that has one window."""
    assert schedule.training_windows() == [(0, joint.length)]
    falls = (schedule.levels[:-1] - schedule.levels[1:]).sum(1).double()
    ends = 1 - falls.cumsum(0) / falls.sum()  # what is still to come after each step
    nodes, weights = gauss(16)
    total = 0.0
    for first, last in itertools.pairwise([torch.ones((), dtype=torch.float64), *ends]):
        for node, weight in zip(nodes, weights, strict=True):
            level = (first + (last - first) * node).view(1, 1)
            times, counted = schedule.times(level)[0], schedule.weights(level)[0]
            total += (first - last) * weight * _mean_loss(joint, times, counted, loss_of)
    return total.item()


def _mean_loss(joint, times, counted, loss_of):
    """The expected loss of the exact denoiser at some times, of positions that count as much as `counted` says."""
    process, total = joint.process, 0.0
    law = joint.at(times)
    pi = joint.clean_given_noisy(times)
    for i in counted.nonzero().flatten().tolist():
        xt, x0 = joint.noisy[:, i], joint.clean[:, i]
        log_score = clean_to_score(process, pi[:, i].log(), xt, times[i])
        pairs = torch.cartesian_prod(torch.arange(len(x0)), torch.arange(len(xt)))
        pairs = pairs[law.flatten() > 1e-290]
        loss = loss_of(process, log_score[pairs[:, 1]], xt[pairs[:, 1]], x0[pairs[:, 0]], times[i])
        total += counted[i] * (law[pairs[:, 0], pairs[:, 1]] * loss).sum()
    return total
