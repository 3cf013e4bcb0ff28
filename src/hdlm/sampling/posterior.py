"""The exact law between two times: the default, for every process.

Positions are thinned before the network runs. With one uniform u a place, a place stays where u is below its
probability of staying. For MASK that is known beforehand; for a token it is never below what it would be if the network
held the token for impossible, and where u is below that bound the network need not be asked. Nothing is approximated.
"""

from torch import Tensor

from hdlm.sampling.rule import Moment, Prediction, Rule
from hdlm.theory.reading import Reading


class Posterior(Rule):
    """Draws from the process's own posterior, mixed over p0. For epsilon, tokens are redrawn only when they settle."""

    name = "posterior"

    def check(self, reading: Reading) -> None:
        """Fits everything."""

    def candidates(self, moment: Moment) -> Tensor:
        moves = (moment.s < moment.t).expand_as(moment.xt)
        if moment.dice.flawed:
            return moves
        return moves & (moment.event >= moment.certain_stay)

    def update(self, moment: Moment, where: Tensor, prediction: Prediction | None) -> Tensor:
        if prediction is None:
            return moment.xt
        xt, s, t = (moment.at(values, where) for values in (moment.xt, moment.s, moment.t))
        if moment.dice.flawed:
            return moment.put(where, moment.draw(moment.process.posterior(xt, prediction.p0, s=s, t=t), where))
        u = moment.at(moment.event, where)
        return moment.put(where, moment.process.draw_posterior(xt, prediction.p0, u, s=s, t=t))
