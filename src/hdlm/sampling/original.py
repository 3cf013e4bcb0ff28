"""MDLM's sampler along a hyperschedule: masked positions are unmasked, unmasked ones stay (algorithm 3)."""

from torch import Tensor

from hdlm.sampling.rule import Moment, Places, Prediction, Rule, needs_mask
from hdlm.theory.reading import Reading


class Original(Rule):
    """A masked position takes a token from p0 with probability `transfer`; a token is never touched again.

    The exact posterior of the absorbing process. For the others a plain way to use their networks.
    """

    name = "original"

    def check(self, reading: Reading) -> None:
        needs_mask(self, reading)

    def candidates(self, moment: Moment) -> Tensor:
        return moment.masked & (moment.event >= moment.stretch.stay_masked)

    def draw(self, places: Places, prediction: Prediction) -> Tensor:
        return places.draw(prediction.p0)
