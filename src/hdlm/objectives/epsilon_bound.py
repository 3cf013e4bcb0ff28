"""A likelihood bound for the epsilon-hybrid process with epsilon > 0, which the paper holds to have none.

The clean sequence x0 is a latent step away from the shuffled sequence x~ that the process masks. So
-log p(x0) <= E over x~ of [masked bound of x~ - sum log pi(x0 | x~) + sum log q(x~ | x0)], where the model of
x~ predicts (1 - epsilon) pi + epsilon / N. The first term is `shuffled_bound` integrated over time, the others are
`restoration_bound`; where alpha(1) > 0 the process's `prior_kl` is added per token. `EpsilonBound` trains by both.
"""

import math

import torch
from torch import Tensor

from hdlm.objectives.masked import masked_bound
from hdlm.theory import checks
from hdlm.theory.epsilon_hybrid import EpsilonHybrid
from hdlm.theory.reading import CleanReading


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


class EpsilonBound:
    """The bound as a loss of outputs that `CleanReading` reads, in one pass.

    Where MASK is seen, the mean over x~ of `shuffled_bound`: x~ is hidden there, so that nothing is lost by averaging.
    Elsewhere `restoration_bound`, given what is not masked at the time. The bound itself asks it once, with nothing
    masked; asked at every time, with weights whose mean per token is 1, it trains what every step of a sampler reads. A
    network that knows more the more it sees has a loss that is no lower than its bound.
    """

    def __init__(self, process: EpsilonHybrid) -> None:
        self._process, self._reading = process, CleanReading(process)
        middles = (torch.arange(4096, dtype=torch.float64) + 0.5) / 4096
        self._restoration = 1 / process.noise.alpha(middles).mean().item()

    def __call__(self, outputs: Tensor, xt: Tensor, x0: Tensor, t: Tensor) -> Tensor:
        process = self._process
        is_mask, log_pi = process.is_mask(xt), self._reading.log_p0(outputs, xt, t)
        own = log_pi.gather(-1, x0.long().unsqueeze(-1)).squeeze(-1)
        spread = _smoothed(process, log_pi).mean(-1)
        kept = (1 - process.epsilon) * _smoothed(process, own) + process.epsilon * spread
        found = masked_bound(process.noise, kept, is_mask, t)
        restored = restoration_bound(process, log_pi, torch.where(is_mask, x0, xt), x0)
        return found + torch.where(is_mask, 0.0, self._restoration * restored)


def _smoothed(process: EpsilonHybrid, log_prob: Tensor) -> Tensor:
    """log((1 - epsilon) pi + epsilon / N)."""
    if process.epsilon == 0:
        return log_prob
    floor = torch.full_like(log_prob, math.log(process.epsilon / process.vocab_size))
    if process.epsilon == 1:
        return floor
    return torch.logaddexp(log_prob + math.log1p(-process.epsilon), floor)
