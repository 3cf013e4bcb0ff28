"""The diffusion-weighted denoising score entropy (DWDSE) of the gamma-hybrid family, at every state.

Its integral over the noise times, plus the prior's divergence, bounds -log p from above. It is the loss of the
hybrid process itself, not a mixture of the absorbing and the uniform formulas: see docs/theory.md.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from hdlm.theory import checks
from hdlm.theory.gamma_hybrid import GammaHybrid
from hdlm.theory.parameterization import MAX_EVIDENCE, clean_to_score, log_expm1, output_to_clean, output_to_score


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
    true = _true_ratios(process, xt, x0, t)
    # The own token's terms, s = 1 and log s = 0, belong to no transition.
    total = log_score.exp().sum(-1) - (~true.is_mask).to(log_score.dtype)
    target = log_score.gather(-1, x0.long().unsqueeze(-1)).squeeze(-1)
    rest = log_score.sum(-1) - target
    others = true.others * _entropy_term(true.log_other) - _times(true.log_other.exp(), rest)
    return _loss(process, true, total, others, target, t)


@dataclass(frozen=True)
class _Ratios:
    """The true log ratios given x0, per position: of the clean token (where it is a transition) and of each other."""

    is_mask: Tensor
    has_target: Tensor
    log_target: Tensor
    log_other: Tensor
    others: Tensor


def _true_ratios(process: GammaHybrid, xt: Tensor, x0: Tensor, t: Tensor) -> _Ratios:
    n = process.vocab_size
    masking, replacing = process.split(process.noise.sigma(t))
    is_mask = process.is_mask(xt)
    is_clean = xt == x0
    boost = math.log(n) - log_expm1(replacing)  # log of N b / (1 - b)
    gain = softplus(boost)  # log of (N b + 1 - b) / (1 - b)
    spread = torch.log(-torch.expm1(-replacing)) - math.log(n) - log_expm1(masking)  # log of a (1 - b) / N / (1 - a)
    return _Ratios(
        is_mask=is_mask,
        has_target=is_mask | ~is_clean,
        log_target=torch.where(is_mask, torch.logaddexp(-replacing - log_expm1(masking), spread), gain),
        log_other=torch.where(is_mask, spread, torch.where(is_clean, -gain, 0.0)),
        others=torch.where(is_mask | is_clean, n - 1, n - 2),
    )


def _loss(process: GammaHybrid, true: _Ratios, total: Tensor, others: Tensor, target: Tensor, t: Tensor) -> Tensor:
    """The loss from the sum of scores, the other tokens' terms but for it, and the clean token's log score."""
    clean = _entropy_term(true.log_target) - _times(true.log_target.exp(), target)
    per_state = total + others + torch.where(true.has_target, clean, 0.0)
    weight = torch.where(true.is_mask, torch.full_like(total, 1 - process.gamma), process.gamma / process.vocab_size)
    return process.noise.rate(t) * torch.where(weight > 0, weight * per_state, 0.0)


class ScoreBound:
    """The score-entropy bound of a network that gives logits of the clean token, or log scores less their offset."""

    def __init__(self, process: GammaHybrid, *, clean: bool) -> None:
        self.process = process
        self.clean = clean

    def numbers(self, xt: Tensor, x0: Tensor, t: Tensor) -> dict[str, Tensor]:
        """What the kernel of the clean parameterisation needs of each position: see `fast.loss_kernels`."""
        process, true = self.process, _true_ratios(self.process, xt, x0, t)
        masking, replacing = process.split(process.noise.sigma(t))
        boost = math.log(process.vocab_size) - log_expm1(replacing)
        weight = torch.where(true.is_mask, 1 - process.gamma, process.gamma / process.vocab_size)
        return {
            "scale": process.noise.rate(t) * weight,
            "boost": torch.where(true.is_mask, -replacing - log_expm1(masking), boost),
            "gain": softplus(boost).clamp(max=MAX_EVIDENCE),
            "log_other": true.log_other,
            "log_target": true.log_target,
        }

    def __call__(self, outputs: Tensor, xt: Tensor, x0: Tensor, t: Tensor) -> Tensor:
        wide = outputs if outputs.dtype.itemsize >= 4 else outputs.float()
        if self.clean:
            log_score = clean_to_score(self.process, output_to_clean(self.process, wide, xt, t), xt, t)
        else:
            log_score = output_to_score(self.process, wide, xt, t)
        return score_entropy(self.process, log_score, xt, x0, t)


def _times(ratio: Tensor, log_score: Tensor) -> Tensor:
    """ratio * log_score, 0 where the ratio is 0 whatever the score."""
    return torch.where(ratio == 0, 0.0, ratio * log_score)


def _entropy_term(log_ratio: Tensor) -> Tensor:
    """r (log r - 1), 0 at r = 0."""
    ratio = log_ratio.exp()
    return torch.where(ratio == 0, 0.0, ratio * (log_ratio - 1))
