"""The diffusion-weighted denoising score entropy (DWDSE) of the gamma-hybrid family, at every state.

Its integral over the noise times, plus the prior's divergence, bounds -log p from above. It is the loss of the
hybrid process itself, not a mixture of the absorbing and the uniform formulas: see docs/theory.md.
"""

import math

import torch
from torch import Tensor

from hdlm.theory import checks
from hdlm.theory.gamma_hybrid import GammaHybrid
from hdlm.theory.parameterization import clean_to_score, log_expm1, output_to_clean, output_to_score


def score_entropy(process: GammaHybrid, log_score: Tensor, xt: Tensor, x0: Tensor, t: Tensor) -> Tensor:
    """Loss per position [...], in nats per unit of time, from log scores [..., N] whose own entry is 0.

    sigma'(t) * sum over z of w_z [s_z - r_z log s_z + r_z (log r_z - 1)], with the true ratios r given x0, and
    w = 1 - gamma out of MASK, gamma / N between tokens. In exact arithmetic never
    negative, and 0 where the scores are the true ratios. Needs finite noise.
    """
    checks.distribution("log_score", log_score, process.vocab_size)
    checks.tokens("xt", xt, process.num_states)
    checks.tokens("x0", x0, process.vocab_size)
    if not checks.skips_values() and torch.isinf(process.noise.sigma(t)).any():
        raise ValueError("t holds a time of infinite noise, where scores say nothing: draw t < 1, or use LogLinear")
    n = process.vocab_size
    masking, replacing = process.split(process.noise.sigma(t))
    is_mask = process.is_mask(xt)
    is_clean = xt == x0

    # log ratios of the clean token (the target) and of each of the others.
    boost = math.log(n) - log_expm1(replacing)  # log of N b / (1 - b)
    gain = torch.nn.functional.softplus(boost)  # log of (N b + 1 - b) / (1 - b)
    spread = torch.log(-torch.expm1(-replacing)) - math.log(n) - log_expm1(masking)  # log of a (1 - b) / N / (1 - a)
    log_target = torch.where(is_mask, torch.logaddexp(-replacing - log_expm1(masking), spread), gain)
    log_other = torch.where(is_mask, spread, torch.where(is_clean, -gain, 0.0))
    has_target = is_mask | ~is_clean
    others = torch.where(is_mask | is_clean, n - 1, n - 2)

    # The own token's terms, s = 1 and log s = 0, belong to no transition.
    total = log_score.exp().sum(-1) - (~is_mask).to(log_score.dtype)
    target = log_score.gather(-1, x0.long().unsqueeze(-1)).squeeze(-1)
    rest = log_score.sum(-1) - target
    per_state = total - _times(log_other.exp(), rest) + others * _entropy_term(log_other)
    per_state = per_state + torch.where(has_target, _entropy_term(log_target) - _times(log_target.exp(), target), 0.0)
    weight = torch.where(is_mask, torch.full_like(total, 1 - process.gamma), process.gamma / n)
    return process.noise.rate(t) * torch.where(weight > 0, weight * per_state, 0.0)


class ScoreBound:
    """The score-entropy bound of a network that gives logits of the clean token, or log scores less their offset."""

    def __init__(self, process: GammaHybrid, *, clean: bool) -> None:
        self._process = process
        self._clean = clean

    def __call__(self, outputs: Tensor, xt: Tensor, x0: Tensor, t: Tensor) -> Tensor:
        wide = outputs if outputs.dtype.itemsize >= 4 else outputs.float()
        if self._clean:
            log_score = clean_to_score(self._process, output_to_clean(self._process, wide, xt, t), xt, t)
        else:
            log_score = output_to_score(self._process, wide, xt, t)
        return score_entropy(self._process, log_score, xt, x0, t)


def _times(ratio: Tensor, log_score: Tensor) -> Tensor:
    """ratio * log_score, 0 where the ratio is 0 whatever the score."""
    return torch.where(ratio == 0, 0.0, ratio * log_score)


def _entropy_term(log_ratio: Tensor) -> Tensor:
    """r (log r - 1), 0 at r = 0."""
    ratio = log_ratio.exp()
    return torch.where(ratio == 0, 0.0, ratio * (log_ratio - 1))
