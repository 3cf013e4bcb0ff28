"""The processes as plain matrices: the slow, obvious definition that the closed forms must equal.

For tests and for teaching. Columns are where a state comes from, rows where it goes; MASK is the last
state. Works in float64 with [num_states, num_states] matrices, so for tiny vocabularies only.
"""

import torch
from torch import Tensor

from hdlm.theory.epsilon_hybrid import EpsilonHybrid
from hdlm.theory.gamma_hybrid import GammaHybrid
from hdlm.theory.process import Process


def absorbing_generator(vocab_size: int) -> Tensor:
    """Q_absorb of eq. seddQuQa, [N + 1, N + 1]: every real token leaks to MASK at rate 1."""
    generator = torch.zeros(vocab_size + 1, vocab_size + 1, dtype=torch.float64)
    generator[:vocab_size, :vocab_size] = -torch.eye(vocab_size, dtype=torch.float64)
    generator[vocab_size, :vocab_size] = 1
    return generator


def uniform_generator(vocab_size: int) -> Tensor:
    """Q_uniform, [N + 1, N + 1]: every real token is replaced at rate 1 by one of all N; MASK is left alone.

    The paper writes its entries with the number of states including MASK, so that 1 / (|X| - 1) is 1 / N.
    """
    generator = torch.zeros(vocab_size + 1, vocab_size + 1, dtype=torch.float64)
    identity = torch.eye(vocab_size, dtype=torch.float64)
    generator[:vocab_size, :vocab_size] = 1 / vocab_size - identity
    return generator


def hybrid_generator(vocab_size: int, gamma: float) -> Tensor:
    """Q = (1 - gamma) Q_absorb + gamma Q_uniform."""
    return (1 - gamma) * absorbing_generator(vocab_size) + gamma * uniform_generator(vocab_size)


def transition(process: Process, s: float, t: float) -> Tensor:
    """P[x_t = row | x_s = column] for one position, [num_states, num_states]."""
    if s == t:
        return torch.eye(process.num_states, dtype=torch.float64)
    # Where alpha(1) = 0 the noise is infinite; e^-100 is 0 for every purpose.
    sigma_s, sigma_t = process.noise.sigma(torch.tensor([s, t], dtype=torch.float64)).clamp(max=100)
    if isinstance(process, GammaHybrid):
        generator = hybrid_generator(process.vocab_size, process.gamma)
        full = torch.linalg.matrix_exp((sigma_t - sigma_s) * generator)
        return full[: process.num_states, : process.num_states]
    if isinstance(process, EpsilonHybrid):
        masking = torch.linalg.matrix_exp((sigma_t - sigma_s) * absorbing_generator(process.vocab_size))
        if s > 0:
            return masking
        identity = torch.eye(process.num_states, dtype=torch.float64)
        return masking @ (identity + process.epsilon * uniform_generator(process.vocab_size))
    raise ValueError(f"{process!r} has no dense form: it must be a GammaHybrid or an EpsilonHybrid")


def posterior(process: Process, xt: int, x0: int, s: float, t: float) -> Tensor:
    """P[x_s | x_t = xt, x_0 = x0] by Bayes' rule, [num_states]. NaN where xt cannot come from x0."""
    joint = transition(process, s, t)[xt] * transition(process, 0.0, s)[:, x0]
    return joint / joint.sum()


def ratios(process: Process, xt: int, x0: int, t: float) -> Tensor:
    """P[x_t = z | x_0 = x0] / P[x_t = xt | x_0 = x0] for every state z, [num_states]."""
    column = transition(process, 0.0, t)[:, x0]
    return column / column[xt]
