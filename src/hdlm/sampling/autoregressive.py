"""Autoregression: each token drawn from the network's prediction of it, once."""

from torch import Tensor

from hdlm.sampling.rule import Moment, Places, Prediction, Rule
from hdlm.theory.reading import Reading


class Autoregressive(Rule):
    """One draw from p0 a position. For quench, where a step takes a position from full noise to clean."""

    name = "ar"

    def check(self, reading: Reading) -> None:
        """Fits everything: the process plays no part."""

    def candidates(self, moment: Moment) -> Tensor:
        return moment.moves

    def draw(self, places: Places, prediction: Prediction) -> Tensor:
        return places.draw(prediction.p0)
