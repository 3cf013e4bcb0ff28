"""The exact law between two times: the default, for every process.

Positions are thinned before the network runs. With one uniform u a place, a place stays where u is below its
probability of staying. For MASK that is known beforehand; for a token it is never below what it would be if the network
held the token for impossible, and where u is below that bound the network need not be asked. Nothing is approximated.
"""

from torch import Tensor

from hdlm.sampling.rule import Moment, Places, Prediction, Rule
from hdlm.theory.reading import Reading


class Posterior(Rule):
    """Draws from the process's own posterior, mixed over p0. For epsilon, tokens are redrawn only when they settle."""

    name = "posterior"

    def check(self, reading: Reading) -> None:
        """Fits everything."""

    def candidates(self, moment: Moment) -> Tensor:
        if moment.dice.flawed:
            return moment.moves
        return moment.moves & (moment.event >= moment.certain_stay)

    def draw(self, places: Places, prediction: Prediction) -> Tensor:
        process, xt, s, t = places.process, places.xt, places.s, places.t
        if places.dice.flawed:
            return places.draw(process.posterior(xt, prediction.p0, s=s, t=t))
        return process.draw_posterior(xt, prediction.p0, places.event, s=s, t=t)
