"""Steps by scores, for the gamma family: tau-leaping, which is the exact posterior, and Euler's, which is not."""

import torch
from torch import Tensor

from hdlm.sampling.posterior import Posterior
from hdlm.sampling.rule import Moment, Places, Prediction, Rule
from hdlm.theory.reading import CleanReading, Reading, rate_process


def _needs_finite_noise(rule: Rule, reading: Reading) -> None:
    process = _rate_process_of(rule, reading)
    if torch.isinf(process.noise.sigma(torch.ones(()))):
        raise ValueError(
            f"sampler {rule.name!r} does not fit {process!r}: a step by scores needs finite noise at t = 1, "
            "such as LogLinear's; 'original' needs none"
        )


def _rate_process_of(rule: Rule, reading: Reading):
    """The process, refused in the sampler's name unless it has scores."""
    try:
        return rate_process(reading.process)
    except ValueError:
        raise ValueError(
            f"sampler {rule.name!r} does not fit {reading.process!r}: it needs absorbing, uniform or gamma noise"
        ) from None


class Euler(Rule):
    """One Euler step of the reverse rates."""

    name = "euler"

    def check(self, reading: Reading) -> None:
        _needs_finite_noise(self, reading)

    def foresees(self, reading: Reading) -> bool:
        """Scores say whether MASK is left."""
        return False

    def candidates(self, moment: Moment) -> Tensor:
        return (moment.certain_stay < 1) & moment.moves

    def draw(self, places: Places, prediction: Prediction) -> Tensor:
        return places.draw(self._law(places, prediction.score))

    def _law(self, places: Places, score: Tensor) -> Tensor:
        return rate_process(places.process).euler(places.xt, score, s=places.s, t=places.t)


class TauLeaping(Euler):
    """The exact step, by inverting the evolution operator on the score.

    Where the network gives p0 that is the posterior, and is drawn as such: places can be thinned.
    """

    name = "tau-leaping"

    def __init__(self) -> None:
        self._posterior = Posterior()

    def check(self, reading: Reading) -> None:
        if isinstance(reading, CleanReading):
            _rate_process_of(self, reading)
        else:
            super().check(reading)

    def foresees(self, reading: Reading) -> bool:
        return isinstance(reading, CleanReading)

    def candidates(self, moment: Moment) -> Tensor:
        clean = isinstance(moment.reading, CleanReading)
        return self._posterior.candidates(moment) if clean else super().candidates(moment)

    def draw(self, places: Places, prediction: Prediction) -> Tensor:
        clean = isinstance(prediction.reading, CleanReading)
        return (self._posterior.draw if clean else super().draw)(places, prediction)

    def _law(self, places: Places, score: Tensor) -> Tensor:
        return rate_process(places.process).tau_leap(places.xt, score, s=places.s, t=places.t)
