"""What a network's raw outputs mean: the law of the clean token, or a score.

A reading turns outputs [..., N] (or N + 1, a published head's column for MASK being dropped) at states xt and times t
into either. Clean outputs are logits of p(x0 given xt), those that HDCE has trained are such logits reweighted, and
score outputs are log ratios less an offset that is known in closed form. Knows no network.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from hdlm.theory.epsilon_hybrid import epsilon_process
from hdlm.theory.gamma_hybrid import GammaHybrid
from hdlm.theory.parameterization import (
    clean_to_score,
    log_expm1,
    output_to_clean,
    score_offset,
    score_to_clean,
    with_evidence,
    with_own,
)
from hdlm.theory.process import Process

Offset = Callable[[GammaHybrid, Tensor, Tensor], Tensor]


class Reading(ABC):
    """How to read the outputs of a network that was trained on `process`.

    `gives_scores`: they are scores, from which the law of the clean token follows; else it is the other way round.
    `reweighted`: they are that law times the weights of HDCE.
    """

    gives_scores: ClassVar[bool] = False
    reweighted: ClassVar[bool] = False

    def __init__(self, process: Process) -> None:
        self.process = process

    @abstractmethod
    def log_p0(self, outputs: Tensor, xt: Tensor, t: Tensor) -> Tensor:
        """Log of the law of the clean token given xt: [..., N]."""

    def log_trained(self, outputs: Tensor, xt: Tensor, t: Tensor) -> Tensor:
        """Log of what the network was trained to give for the clean token, where its loss is not a law's: [..., N]."""
        return self.log_p0(outputs, xt, t)

    @abstractmethod
    def log_score(self, outputs: Tensor, xt: Tensor, t: Tensor) -> Tensor:
        """Log ratios p_t(z) / p_t(xt): [..., N]. Rate processes only."""

    def _real(self, outputs: Tensor) -> Tensor:
        """The real tokens' outputs, in at least float32."""
        return outputs[..., : self.process.vocab_size].to(torch.promote_types(outputs.dtype, torch.float32))


class NextTokenReading(Reading):
    """Outputs are logits of the next token, as settled slots learn them whatever a network's parameterisation."""

    def log_p0(self, outputs: Tensor, xt: Tensor, t: Tensor) -> Tensor:
        return self._real(outputs).log_softmax(-1)

    def log_score(self, outputs: Tensor, xt: Tensor, t: Tensor) -> Tensor:
        raise ValueError("autoregression has no score: nothing is noisy")


class CleanReading(Reading):
    """Outputs are logits of the clean token, less the evidence of the noisy token itself (`output_to_clean`)."""

    def log_p0(self, outputs: Tensor, xt: Tensor, t: Tensor) -> Tensor:
        if not self.process.masks_only:
            return output_to_clean(self.process, self._real(outputs), xt, t)
        log_p0 = self._real(outputs).log_softmax(-1)
        # A token that is not MASK is the clean one.
        known = torch.full_like(log_p0, -math.inf).scatter_(-1, xt.clamp(max=log_p0.shape[-1] - 1).unsqueeze(-1), 0.0)
        return torch.where(self.process.is_mask(xt).unsqueeze(-1), log_p0, known)

    def log_score(self, outputs: Tensor, xt: Tensor, t: Tensor) -> Tensor:
        return clean_to_score(rate_process(self.process), self.log_p0(outputs, xt, t), xt, t)


class HDCEReading(Reading):
    """Outputs are logits of the clean token as HDCE trains them, which is not p(x0 | xt).

    On a position that is not masked HDCE weighs the clean token's being another than xt by 1 - epsilon and its being
    xt by epsilon. What minimises it is proportional to the law times these weights, which are divided out again here.
    """

    reweighted = True

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        epsilon = epsilon_process(process).epsilon
        if epsilon == 1:
            raise ValueError(f"HDCE does not fit {process!r}: at epsilon = 1 it has no weight for a replaced token")
        # Where nothing is replaced a token is the clean one, whatever HDCE, which gives it no weight, has made of it.
        self._evidence = math.log((1 - epsilon) / epsilon) if epsilon > 0 else math.inf

    def log_p0(self, outputs: Tensor, xt: Tensor, t: Tensor) -> Tensor:
        evidence = torch.full_like(xt, self._evidence, dtype=torch.float64)
        return with_evidence(self.process, self._real(outputs), xt, evidence).log_softmax(-1)

    def log_trained(self, outputs: Tensor, xt: Tensor, t: Tensor) -> Tensor:
        return self._real(outputs).log_softmax(-1)

    def log_score(self, outputs: Tensor, xt: Tensor, t: Tensor) -> Tensor:
        raise ValueError(f"{self.process!r} has no score")


class ScoreReading(Reading):
    """Outputs are log scores less `offset(process, xt, t)`; the current token's own ratio is 1 whatever they say."""

    gives_scores = True

    def __init__(self, process: Process, offset: Offset = score_offset) -> None:
        super().__init__(rate_process(process))
        if rate_process(process).gamma > 0 and torch.isinf(process.noise.sigma(torch.ones(()))):
            raise ValueError(f"scores of {process!r} say nothing at t = 1, where its noise is infinite: use LogLinear")
        self._offset = offset

    def log_p0(self, outputs: Tensor, xt: Tensor, t: Tensor) -> Tensor:
        process = rate_process(self.process)
        score = self.log_score(outputs, xt, t)
        # Out of MASK the offset is one number for all tokens and cancels; where noise is infinite it would not exist.
        score = torch.where(process.is_mask(xt).unsqueeze(-1), self._real(outputs), score)
        return score_to_clean(process, score, xt, t)

    def log_score(self, outputs: Tensor, xt: Tensor, t: Tensor) -> Tensor:
        process, outputs = rate_process(self.process), self._real(outputs)
        offset = self._offset(process, xt, t).to(outputs.dtype).unsqueeze(-1)
        return with_own(outputs + offset, xt, torch.zeros_like(t, dtype=outputs.dtype))


def sedd_offset(process: GammaHybrid, xt: Tensor, t: Tensor) -> Tensor:
    """The one offset of published score networks for all states: -log(e^sigma - 1) - log N."""
    return (-log_expm1(process.noise.sigma(t)) - math.log(process.vocab_size)).expand(xt.shape)


def no_offset(process: GammaHybrid, xt: Tensor, t: Tensor) -> Tensor:
    """Outputs that are log scores as they are."""
    return torch.zeros_like(t).expand(xt.shape)


def rate_process(process: Process) -> GammaHybrid:
    """The process itself, refused unless it has scores."""
    if not isinstance(process, GammaHybrid):
        raise ValueError(f"{process!r} has no score: it must be absorbing, uniform or gamma-hybrid")
    return process
