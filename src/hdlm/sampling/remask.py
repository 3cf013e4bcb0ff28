"""ReMDM: tokens may go back to MASK, and masked places leave so much sooner that the noise level is kept."""

import torch
from torch import Tensor

from hdlm.sampling.rule import Moment, Places, Prediction, Rule, needs_mask
from hdlm.theory import checks
from hdlm.theory.reading import Reading


class Remask(Rule):
    """A token is masked again with probability eta times the most that the level of the next step allows."""

    name = "remask"

    def __init__(self, eta: float = 0.05) -> None:
        self.eta = checks.fraction("eta", eta)

    def check(self, reading: Reading) -> None:
        needs_mask(self, reading)

    def _again(self, moment: Moment) -> tuple[Tensor, Tensor]:
        """Probabilities of a token to be masked again, and of MASK to leave."""
        mask_t, mask_s = (moment.process.channel(time).mask for time in (moment.t, moment.s))
        again = self.eta * (mask_s / (1 - mask_t).clamp(min=1e-300)).clamp(max=1)
        leave = (mask_t - mask_s + again * (1 - mask_t)) / mask_t.clamp(min=1e-300)
        moves = moment.s < moment.t
        return torch.where(moves, again, 0.0), torch.where(moves, leave.clamp(max=1), 0.0)

    def foresees(self, reading: Reading) -> bool:
        """MASK comes back."""
        return False

    def candidates(self, moment: Moment) -> Tensor:
        _, leave = self._again(moment)
        return moment.masked & (moment.event >= 1 - leave)

    def draw(self, places: Places, prediction: Prediction) -> Tensor:
        return places.draw(prediction.p0)

    def settle(
        self, moment: Moment, where: Tensor, before: Tensor, drawn: Tensor, prediction: Prediction | None
    ) -> Tensor:
        again, _ = self._again(moment)
        forgotten = (~moment.masked & (moment.event < again) & moment.free)[0]
        mask_id = moment.process.mask_id
        assert mask_id is not None
        return torch.where(forgotten, mask_id, drawn)
