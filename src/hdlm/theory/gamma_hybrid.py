"""The gamma-hybrid process: a token is masked at rate 1 - gamma and replaced at rate gamma.

Its evolution over total noise sigma is exp(sigma Q), Q = (1 - gamma) Q_absorb + gamma Q_uniform, in closed
form (eq. HYBRIDevolution). With a = exp(-(1 - gamma) sigma), b = exp(-gamma sigma) a clean token is
masked with probability 1 - a, and else kept with probability b or replaced by a uniform one. gamma = 0 and
gamma = 1 are the absorbing and the uniform process, which are members of this class.
"""

import torch
from torch import Tensor

from hdlm.theory import checks, parameterization
from hdlm.theory.noise import LogLinear, Noise
from hdlm.theory.process import Channel, Process, Reverse, own_entry, widen


class GammaHybrid(Process):
    """Absorbing and uniform noise mixed in the generator: every process here with a score."""

    has_scores = True

    def __init__(self, vocab_size: int, gamma: float, noise: Noise | None = None) -> None:
        self.vocab_size = checks.integer("vocab_size", vocab_size, low=2)
        self.gamma = checks.fraction("gamma", gamma)
        self.noise = checks.instance("noise", noise, Noise) if noise is not None else LogLinear()

    def __repr__(self) -> str:
        return f"GammaHybrid({self.vocab_size}, gamma={self.gamma}, noise={self.noise})"

    @property
    def masks_only(self) -> bool:
        return self.gamma == 0

    def split(self, sigma: Tensor) -> tuple[Tensor, Tensor]:
        """The two shares of a total noise: (1 - gamma) sigma masks, gamma sigma replaces."""
        masking = (1 - self.gamma) * sigma if self.gamma < 1 else torch.zeros_like(sigma)
        replacing = self.gamma * sigma if self.gamma > 0 else torch.zeros_like(sigma)
        return masking, replacing

    def channel(self, t: Tensor) -> Channel:
        masking, replacing = self.split(self.noise.sigma(t))
        a = torch.exp(-masking)
        return Channel(
            keep=a * torch.exp(-replacing), replace=-a * torch.expm1(-replacing), mask=-torch.expm1(-masking)
        )

    def reverse(self, xt: Tensor, p_own: Tensor, *, s: Tensor, t: Tensor) -> Reverse:
        sigma_s, sigma_t = self.noise.sigma(s), self.noise.sigma(t)
        delta = torch.where(s == t, 0.0, sigma_t - sigma_s)
        masking_s, replacing_s = self.split(sigma_s)
        masking_t, replacing_t = self.split(sigma_t)
        masking_d, replacing_d = self.split(delta)
        n = self.vocab_size

        # Out of MASK: leave with probability (a_s - a_t) / (1 - a_t), then a token of the law at time s.
        b_s, c_s = torch.exp(-replacing_s), -torch.expm1(-replacing_s) / n
        leave = torch.exp(-masking_s) * _lost_ratio(masking_d, masking_t)
        stay_masked = torch.where(masking_t == 0, 1.0, _lost_ratio(masking_s, masking_t))

        # Out of a token x: Bayes' rule with c = (1 - b) / N, mixed over p0. Where nothing has been replaced
        # yet the clean token can only be x, whatever p0 says.
        b_t, c_t = torch.exp(-replacing_t), -torch.expm1(-replacing_t) / n
        b_d, c_d = torch.exp(-replacing_d), -torch.expm1(-replacing_d) / n
        certain = replacing_t == 0
        p_own = torch.where(certain, 1.0, p_own)
        seen_s, seen_d = _lost_ratio(replacing_s, replacing_t), _lost_ratio(replacing_d, replacing_t)
        stay = (b_d + c_d) * ((b_s + c_s) / (b_t + c_t) * p_own + seen_s * (1 - p_own))
        scale = torch.where(certain, 0.0, b_s * seen_d)
        floor = c_d * (c_s / (b_t + c_t) * p_own + seen_s * (1 - p_own))

        is_mask = self.is_mask(xt)
        return Reverse(
            stay=torch.where(is_mask, stay_masked, stay),
            scale=torch.where(is_mask, leave * b_s, scale),
            floor=torch.where(is_mask, leave * c_s, floor),
        )

    def evidence(self, t: Tensor) -> Tensor:
        return parameterization.log_evidence(self, t)

    def score(self, xt: Tensor, p0: Tensor, t: Tensor) -> Tensor:
        """Ratios p_t(z) / p_t(xt) for the real tokens z, given p0, the law of x0 given xt: [..., N]."""
        checks.probabilities("p0", p0, self.vocab_size)
        return parameterization.clean_to_score(self, p0.log(), xt, t).exp()

    def tau_leap(self, xt: Tensor, score: Tensor, *, s: Tensor, t: Tensor) -> Tensor:
        """The law of x_s given xt from the score at time t: [..., num_states].

        With the exact score this is the exact posterior (the evolution operator inverted in closed form).
        A learned score can make entries negative, or leave MASK at s = 0: those become 0, the rest is normalised.
        """
        xt, score, sigma_s, sigma_t = self._step(xt, score, s=s, t=t)
        delta = sigma_t - sigma_s
        masking, replacing = self.split(delta)
        is_mask = self.is_mask(xt)
        total = score.sum(-1)
        # u_z = growth * s_z + shift, the score carried back from t to s; times the chance of z -> xt.
        growth = torch.exp(delta)
        shift = -torch.exp(masking) * torch.expm1(replacing) * total / self.vocab_size
        arrive = torch.where(
            is_mask, -torch.expm1(-masking), -torch.exp(-masking) * torch.expm1(-replacing) / self.vocab_size
        )
        own = own_entry(score, xt, self.vocab_size)
        stay = torch.where(
            is_mask, 1 - torch.expm1(masking) * total, (arrive + torch.exp(-delta)) * (growth * own + shift)
        )
        law = self._law(score, xt, Reverse(stay=stay, scale=arrive * growth, floor=arrive * shift))
        return self._mended(law, s)

    def euler(self, xt: Tensor, score: Tensor, *, s: Tensor, t: Tensor) -> Tensor:
        """The law of x_s given xt by one Euler step of the reverse rates: [..., num_states].

        To first order in the noise between t and s; `tau_leap` is exact. What does not fit becomes 0 and the rest is
        normalised.
        """
        xt, score, sigma_s, sigma_t = self._step(xt, score, s=s, t=t)
        masking, replacing = self.split(sigma_t - sigma_s)
        is_mask = self.is_mask(xt)
        rate = torch.where(is_mask, masking, replacing / self.vocab_size)
        own = torch.where(is_mask, 0.0, own_entry(score, xt, self.vocab_size))
        stay = 1 - rate * (score.sum(-1) - own)
        return self._mended(self._law(score, xt, Reverse(stay=stay, scale=rate, floor=torch.zeros_like(rate))), s)

    def _step(self, xt: Tensor, score: Tensor, *, s: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Checked arguments of a step by scores, broadcast together, and the noise at its two ends."""
        checks.tokens("xt", xt, self.num_states)
        checks.distribution("score", score, self.vocab_size)
        checks.ordered(s, t)
        shape = checks.together(xt=xt.shape, score=score.shape[:-1], s=s.shape, t=t.shape)
        sigma_s, sigma_t = self.noise.sigma(widen(s, score)), self.noise.sigma(widen(t, score))
        if not checks.skips_values() and torch.isinf(sigma_t).any():
            raise ValueError("t holds a time of infinite noise: a step by scores needs finite sigma, as of LogLinear")
        return xt.expand(shape), score.expand(*shape, -1), sigma_s, sigma_t

    def _mended(self, law: Tensor, s: Tensor) -> Tensor:
        """A law without negative entries, nor MASK at s = 0."""
        law = law.clamp_(min=0)
        if self.mask_id is not None:
            law[..., self.mask_id] *= s > 0
        return law.div_(law.sum(-1, keepdim=True))

    def embedding_weight(self, t: Tensor) -> Tensor:
        _, replacing = self.split(self.noise.sigma(t))
        return torch.exp(-replacing)


def _lost_ratio(part: Tensor, whole: Tensor) -> Tensor:
    """(1 - e^-part) / (1 - e^-whole) for 0 <= part <= whole, and 0 where both are 0."""
    return torch.where(
        whole == 0, 0.0, torch.expm1(-part) / torch.expm1(-whole).clamp(max=-torch.finfo(part.dtype).tiny)
    )
