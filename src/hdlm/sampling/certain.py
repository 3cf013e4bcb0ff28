"""Unmask first where the network is most certain, at least as many per step as the schedule does on average."""

import math

import torch
from torch import Tensor

from hdlm.sampling.rule import Moment, Places, Prediction, Rule, needs_mask
from hdlm.theory import checks
from hdlm.theory.reading import Reading


class Certain(Rule):
    """Every masked place draws a token; those are kept where the network's likeliest token has the most probability.

    After a step no more are masked than the schedule expects, rounded. Which places are settled does not depend on what
    was drawn: where MASK is all the noise and a step settles one, the text follows the network's own law, taken in an
    order that the network chooses. Where it settles several, they are drawn independently.

    `threshold`: places where the likeliest token has more than that are settled too, and the network is not asked
    again until the schedule has caught up: fewer calls, and little lost, since such draws hardly depend on each other.
    Certainty is the network's own, before temperature and truncation.
    """

    name = "certain"

    def __init__(self, threshold: float = 1.0) -> None:
        self.threshold = checks.fraction("threshold", threshold)

    def check(self, reading: Reading) -> None:
        needs_mask(self, reading)

    def foresees(self, reading: Reading) -> bool:
        """The network says which places leave MASK."""
        return False

    def _due(self, moment: Moment, masked: Tensor) -> tuple[Tensor, Tensor]:
        """Of places that are masked [..., batch, P]: those that must leave now, and how many must [..., batch, 1]."""
        last = masked & (moment.s == 0)
        full = moment.process.channel(torch.ones_like(moment.s)).mask
        left = (moment.process.channel(moment.s).mask / full * (moment.free & moment.moves)).sum(-1, keepdim=True)
        count = masked.sum(-1, keepdim=True) - (left + 0.5).floor().long()
        return last, count.maximum(last.sum(-1, keepdim=True))

    def candidates(self, moment: Moment) -> Tensor:
        masked = moment.masked & moment.free & moment.moves
        return masked & (self._due(moment, masked)[1] > 0)

    def draw(self, places: Places, prediction: Prediction) -> Tensor:
        return places.draw(prediction.p0)

    def certainty(self, p0: Tensor, drawn: Tensor) -> Tensor:
        """By what places are ranked, [places], from the network's law [places, N] and what was drawn there [places]."""
        return p0.amax(-1)

    def settle(
        self, moment: Moment, where: Tensor, before: Tensor, drawn: Tensor, prediction: Prediction | None
    ) -> Tensor:
        if prediction is None:
            return before
        certainty = torch.full(where.shape, -math.inf, dtype=torch.float64, device=where.device)
        certainty = certainty.masked_scatter(where, self.certainty(prediction.unshaped_p0, drawn[where]).double())
        last, count = (x[0] for x in self._due(moment, where.unsqueeze(0)))
        rank = certainty.masked_fill(last, math.inf).argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        return torch.where(where & ((rank < count) | (certainty > self.threshold)), drawn, before)
