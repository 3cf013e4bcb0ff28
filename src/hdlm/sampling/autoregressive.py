"""Autoregression: each token drawn from the network's prediction of it, once."""

from torch import Tensor

from hdlm.sampling.rule import Moment, Prediction, Rule
from hdlm.theory.reading import Reading


class Autoregressive(Rule):
    """One draw from p0 a position. For quench, where a step takes a position from full noise to clean."""

    name = "ar"

    def check(self, reading: Reading) -> None:
        """Fits everything: the process plays no part."""

    def candidates(self, moment: Moment) -> Tensor:
        return (moment.s < moment.t).expand_as(moment.xt)

    def update(self, moment: Moment, where: Tensor, prediction: Prediction | None) -> Tensor:
        return moment.xt if prediction is None else moment.put(where, moment.draw(prediction.p0, where))
