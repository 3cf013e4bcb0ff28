"""Unmask the most certain first, as many per step as the schedule has unmasked on average by then."""

import math

import torch
from torch import Tensor

from hdlm.sampling.rule import Moment, Places, Prediction, Rule, needs_mask
from hdlm.theory.reading import Reading


class Confidence(Rule):
    """Every masked place draws a token; those that the network gave the highest probability are kept.

    The number left masked is the schedule's expectation, rounded, so that each step settles a fixed number. Not exact:
    it prefers what is easy.
    """

    name = "confidence"

    def check(self, reading: Reading) -> None:
        needs_mask(self, reading)

    def foresees(self, reading: Reading) -> bool:
        """The network says which places leave MASK."""
        return False

    def candidates(self, moment: Moment) -> Tensor:
        return moment.masked

    def draw(self, places: Places, prediction: Prediction) -> Tensor:
        return places.draw(prediction.p0)

    def settle(
        self, moment: Moment, where: Tensor, before: Tensor, drawn: Tensor, prediction: Prediction | None
    ) -> Tensor:
        if prediction is None:
            return before
        certainty = prediction.p0.gather(-1, drawn[where].unsqueeze(-1)).squeeze(-1).double()
        grid = torch.full(where.shape, -math.inf, dtype=torch.float64, device=where.device)
        grid = grid.masked_scatter(where, certainty)
        s, free = moment.s[0], moment.free[0]
        due = where & (s == 0)
        grid = grid.masked_fill(due, math.inf)

        full = moment.process.channel(torch.ones_like(s)).mask
        left = (moment.process.channel(s).mask / full * free).sum(1)
        count = (where.sum(1) - (left + 0.5).floor().long()).maximum(due.sum(1))
        rank = grid.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        chosen = where & (rank < count.unsqueeze(1))
        return torch.where(chosen, drawn, before)
