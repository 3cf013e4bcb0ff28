"""Unmask first what was drawn with the most probability."""

from torch import Tensor

from hdlm.sampling.certain import Certain


class Confidence(Certain):
    """As `Certain`, but a place is ranked by the probability of the token that it drew.

    Not exact, however many steps: unlikely draws are thrown away, as at a lower temperature.
    """

    name = "confidence"

    def certainty(self, p0: Tensor, drawn: Tensor) -> Tensor:
        return p0.gather(-1, drawn.unsqueeze(-1)).squeeze(-1)
