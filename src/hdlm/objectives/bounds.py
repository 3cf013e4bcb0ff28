"""Which loss a process trains with, and which likelihood bounds it is judged by: the one place that knows.

| process and outputs | trained by | bounded by |
| --- | --- | --- |
| autoregression | next token | exact negative log-likelihood |
| masking alone, clean outputs | masked bound | masked bound |
| uniform; scores of masking alone | score entropy | score-entropy bound |
| gamma | score entropy | score-entropy bound, and the absorbing process's masked bound beside it |
| epsilon, clean outputs | epsilon-hybrid bound | itself, and the absorbing process's masked bound beside it |
| epsilon, outputs of HDCE | HDCE | epsilon-hybrid bound, and the absorbing process's masked bound beside it |
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from hdlm.objectives.epsilon_bound import EpsilonBound, restoration_bound, shuffled_bound
from hdlm.objectives.hdce import HDCE
from hdlm.objectives.masked import MaskedBound
from hdlm.objectives.objective import NextToken, Objective
from hdlm.objectives.score_entropy import ScoreBound, score_entropy
from hdlm.theory.absorbing import Absorbing
from hdlm.theory.epsilon_hybrid import epsilon_process
from hdlm.theory.process import Process
from hdlm.theory.reading import Reading, rate_process

# Raw outputs [n, N], noisy tokens, the tokens to be found and times [n], to nats [n] per unit of time.
TokenLoss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Likelihood:
    """A bound on -log p: the mean of `loss` over noise of `process`, plus `prior` nats a token.

    `process` None: nothing is noisy. `restoration`: the noise is that of the epsilon process, whose shuffled tokens the
    first pass has to find and whose clean ones a second pass, which sees all that is shuffled.
    """

    name: str
    process: Process | None
    loss: TokenLoss
    prior: float = 0.0
    restoration: TokenLoss | None = None


def training_objective(reading: Reading, *, lambda_: float = 1.0, divided: bool = True) -> Objective:
    """The diffusion loss of a network whose outputs are read so; `lambda_` and `divided` are HDCE's."""
    process = reading.process
    if process.masks_only and not reading.gives_scores:
        return MaskedBound(process)
    if process.has_scores:
        return ScoreBound(rate_process(process), clean=not reading.gives_scores)
    if reading.reweighted:
        return HDCE(epsilon_process(process), lambda_=lambda_, divided=divided)
    return EpsilonBound(epsilon_process(process))


def likelihoods(reading: Reading, *, autoregressive: bool) -> tuple[Likelihood, ...]:
    """The bounds that a network is judged by, the main one first."""
    process = reading.process
    if autoregressive:
        return (Likelihood("exact negative log-likelihood", None, NextToken()),)
    if not reading.gives_scores and process.masks_only:
        return (Likelihood("masked bound", process, MaskedBound(process), process.prior_kl()),)
    if process.has_scores:
        rates = rate_process(process)

        def scored(outputs: Tensor, xt: Tensor, x0: Tensor, t: Tensor) -> Tensor:
            return score_entropy(rates, reading.log_score(outputs, xt, t), xt, x0, t)

        main = Likelihood("score-entropy bound", process, scored, process.prior_kl())
        return (main,) if process.mask_id is None or process.masks_only else (main, _as_if_masked(process))
    epsilon = epsilon_process(process)

    def shuffled(outputs: Tensor, xt: Tensor, target: Tensor, t: Tensor) -> Tensor:
        return shuffled_bound(epsilon, reading.log_p0(outputs, xt, t), xt, target, t)

    def restored(outputs: Tensor, xt: Tensor, x0: Tensor, t: Tensor) -> Tensor:
        return restoration_bound(epsilon, reading.log_p0(outputs, xt, t), xt, x0)

    main = Likelihood("epsilon-hybrid bound", process, shuffled, process.prior_kl(), restored)
    return main, _as_if_masked(process)


def _as_if_masked(process: Process) -> Likelihood:
    """The network as a model of the absorbing process, whose masked bound is the paper's test perplexity.

    Out of MASK outputs are logits of the clean token up to what the hybrid adds: of scores their shares, too.
    """
    absorbing = Absorbing(process.vocab_size, process.noise)
    name = "masked bound of the absorbing process"
    return Likelihood(name, absorbing, MaskedBound(absorbing), absorbing.prior_kl())
