"""A likelihood bound for the epsilon-hybrid process with epsilon > 0, which the paper holds to have none.

The clean sequence x0 is a latent step away from the shuffled sequence x~ that the process masks. So
-log p(x0) <= E over x~ of [masked bound of x~ - sum log pi(x0 | x~) + sum log q(x~ | x0)], where the model of
x~ predicts (1 - epsilon) pi + epsilon / N. The first term is `shuffled_bound` integrated over time, the others are
`restoration_bound`; where alpha(1) > 0 the process's `prior_kl` is added per token.
"""

import math

import torch
from torch import Tensor

from hdlm.objectives.masked import masked_bound
from hdlm.theory import checks
from hdlm.theory.epsilon_hybrid import EpsilonHybrid


def shuffled_bound(process: EpsilonHybrid, log_pi: Tensor, xt: Tensor, shuffled: Tensor, t: Tensor) -> Tensor:
    """Masked bound of the shuffled tokens, per position [...] and unit of time; `log_pi` [..., N] given xt."""
    checks.distribution("log_pi", log_pi, process.vocab_size)
    checks.tokens("shuffled", shuffled, process.vocab_size)
    target = log_pi.gather(-1, shuffled.long().unsqueeze(-1)).squeeze(-1)
    return masked_bound(process.noise, _smoothed(process, target), process.is_mask(xt), t)


def restoration_bound(process: EpsilonHybrid, log_pi: Tensor, shuffled: Tensor, x0: Tensor) -> Tensor:
    """-log pi(x0 | x~) + log q(x~ | x0) per position [...]; `log_pi` [..., N] is given the whole of x~."""
    checks.distribution("log_pi", log_pi, process.vocab_size)
    checks.tokens("shuffled", shuffled, process.vocab_size)
    checks.tokens("x0", x0, process.vocab_size)
    if process.epsilon == 0:
        return torch.zeros_like(log_pi[..., 0])
    target = log_pi.gather(-1, x0.long().unsqueeze(-1)).squeeze(-1)
    other = math.log(process.epsilon / process.vocab_size)
    same = math.log1p(-process.epsilon + process.epsilon / process.vocab_size)
    return torch.where(shuffled == x0, same - target, other - target)


def _smoothed(process: EpsilonHybrid, log_prob: Tensor) -> Tensor:
    """log((1 - epsilon) pi + epsilon / N)."""
    if process.epsilon == 0:
        return log_prob
    floor = torch.full_like(log_prob, math.log(process.epsilon / process.vocab_size))
    if process.epsilon == 1:
        return floor
    return torch.logaddexp(log_prob + math.log1p(-process.epsilon), floor)
