"""The adaptive correction sampler: the original one, with second thoughts (algorithm 4)."""

from torch import Tensor

from hdlm.sampling.original import Original
from hdlm.sampling.rule import Moment
from hdlm.theory import checks
from hdlm.theory.gamma_hybrid import GammaHybrid
from hdlm.theory.reading import Reading


class AdaptiveCorrection(Original):
    """A token is drawn anew from the network's prediction with probability eta (1 - transfer). eta = 0: `original`."""

    name = "acs"

    def __init__(self, eta: float = 0.05) -> None:
        self.eta = checks.fraction("eta", eta)

    def check(self, reading: Reading) -> None:
        super().check(reading)
        if isinstance(reading.process, GammaHybrid) and reading.process.gamma == 0:
            raise ValueError(
                f"sampler 'acs' does not fit {reading.process!r}: a network of the absorbing process takes every token "
                "that is not MASK for certain; 'remask' corrects such models"
            )

    def candidates(self, moment: Moment) -> Tensor:
        corrected = ~moment.masked & (moment.event < self.eta * (1 - moment.transfer))
        return super().candidates(moment) | corrected
