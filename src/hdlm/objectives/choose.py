"""Which objective a process and a parameterisation train with, and which bound validates them."""

from dataclasses import dataclass

from hdlm.objectives.hdce import HDCE
from hdlm.objectives.masked import MaskedBound
from hdlm.objectives.objective import NextToken, Objective
from hdlm.objectives.score_entropy import ScoreBound
from hdlm.theory.absorbing import Absorbing
from hdlm.theory.epsilon_hybrid import EpsilonHybrid
from hdlm.theory.gamma_hybrid import GammaHybrid
from hdlm.theory.process import Process


@dataclass(frozen=True)
class Validation:
    """A likelihood bound: under which process, by which objective, and what it is called."""

    process: Process
    objective: Objective
    name: str


def training_objective(process: Process, *, clean: bool, lambda_: float = 1.0, divided: bool = True) -> Objective:
    """The diffusion loss of a process: HDCE for epsilon, the masked bound, or the score-entropy bound."""
    if isinstance(process, EpsilonHybrid):
        return HDCE(process, lambda_=lambda_, divided=divided)
    if isinstance(process, Absorbing) and clean:
        return MaskedBound(process)
    if isinstance(process, GammaHybrid):
        return ScoreBound(process, clean=clean)
    raise ValueError(f"{process!r} has no training objective")


def validation_bound(process: Process, *, clean: bool, autoregressive: bool) -> Validation:
    """The bound that a network of this process is judged by; the epsilon network as a plain masked denoiser."""
    if autoregressive:
        return Validation(process, NextToken(), "exact negative log-likelihood")
    if isinstance(process, EpsilonHybrid):
        absorbing = Absorbing(process.vocab_size, process.noise)
        return Validation(absorbing, MaskedBound(absorbing), "masked bound of the absorbing process")
    name = "masked bound" if isinstance(process, Absorbing) and clean else "score-entropy bound"
    return Validation(process, training_objective(process, clean=clean), name)
