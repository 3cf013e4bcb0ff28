"""What a step rule is: which positions it wants to hear of, and what becomes of them.

The loop asks a rule for its candidates before the network runs, gives it the network's view of those places and no
others, and puts there what it draws. Whether a place is a candidate may depend on chance, on the two times and on what
is masked, never on the network.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from hdlm.sampling.chances import Stretch
from hdlm.sampling.dice import Dice
from hdlm.sampling.shaping import Shaping
from hdlm.theory.parameterization import clean_to_score
from hdlm.theory.process import Process
from hdlm.theory.random import categorical
from hdlm.theory.reading import Reading, rate_process


@dataclass(frozen=True)
class Moment:
    """Steps of a window, to be taken from the times `t` to `s` [steps, 1, P]: one, or many of a stretch at once.

    `masked` [steps, batch, P] is where the state is MASK before each; `free` [steps, batch, P] is False where a token
    is given (by a prompt, or around a gap), its row has ended or the place is outside the window; what a rule wants
    there is not heard.
    """

    reading: Reading
    stretch: Stretch
    dice: Dice
    masked: Tensor
    free: Tensor

    @property
    def process(self) -> Process:
        """The noising process that is being undone."""
        return self.reading.process

    @property
    def t(self) -> Tensor:
        """Noise times before the step."""
        return self.stretch.t

    @property
    def s(self) -> Tensor:
        """Noise times after the step."""
        return self.stretch.s

    @property
    def event(self) -> Tensor:
        """The uniform that decides whether something happens to a place."""
        return self.stretch.event

    @property
    def moves(self) -> Tensor:
        """Places whose level falls in the step."""
        return (self.s < self.t).expand_as(self.masked)

    @property
    def transfer(self) -> Tensor:
        """Probability that a position leaves MASK in this step, the paper's p_transfer."""
        return 1 - self.stretch.stay_masked

    @property
    def certain_stay(self) -> Tensor:
        """The least probability that a place stays as it is, whatever the network says."""
        return torch.where(self.masked, self.stretch.stay_masked, self.stretch.stay_token)


@dataclass(frozen=True)
class Places:
    """Places [n] of some rows that the network was asked about: states, times and the uniforms that decide."""

    process: Process
    dice: Dice
    xt: Tensor
    t: Tensor
    s: Tensor
    event: Tensor
    token: Tensor
    row: Tensor
    step: Tensor
    position: Tensor

    def draw(self, weights: Tensor) -> Tensor:
        """One state per place from weights [n, states]: one uniform and an inverse CDF, exact to float64."""
        if self.dice.flawed:
            return self.dice.flawed_tokens(weights, self.row, self.step, self.position)
        return categorical(weights, self.token)


class Prediction:
    """The network's view of some places: raw outputs [places, outputs] at states and times [places], read lazily."""

    def __init__(self, outputs: Tensor, xt: Tensor, t: Tensor, reading: Reading, shaping: Shaping) -> None:
        self._outputs, self._xt, self._t = outputs, xt, t
        self.reading, self._shaping = reading, shaping

    @cached_property
    def p0(self) -> Tensor:
        """The law of the clean token, shaped by temperature and truncation: [places, N]."""
        return self._log_p0.exp()

    @cached_property
    def unshaped_p0(self) -> Tensor:
        """The law of the clean token as the network has it: [places, N]."""
        return self._unshaped_log_p0.exp()

    @cached_property
    def _unshaped_log_p0(self) -> Tensor:
        return self.reading.log_p0(self._outputs, self._xt, self._t)

    @cached_property
    def _log_p0(self) -> Tensor:
        return self._shaping(self._unshaped_log_p0)

    @cached_property
    def score(self) -> Tensor:
        """Ratios p_t(z) / p_t(xt): [places, N], from the network's own scores where nothing is shaped."""
        if self._shaping.is_plain:
            return self.reading.log_score(self._outputs, self._xt, self._t).exp()
        return clean_to_score(rate_process(self.reading.process), self._log_p0, self._xt, self._t).exp()


class Rule(ABC):
    """A way to go from one noise level to the next."""

    name: str

    @abstractmethod
    def check(self, reading: Reading) -> None:
        """Refuse, with a ValueError, a process or a parameterisation that this rule does not fit."""

    def foresees(self, reading: Reading) -> bool:
        """Whether chance alone says what is masked when, so that candidates are known many steps ahead.

        MASK is then left, for good, in the first step whose `event` is not below `stay_masked`.
        """
        return True

    @abstractmethod
    def candidates(self, moment: Moment) -> Tensor:
        """Places whose outputs are needed: boolean [steps, batch, P]."""

    @abstractmethod
    def draw(self, places: Places, prediction: Prediction) -> Tensor:
        """What each place becomes, [n]."""

    def settle(
        self, moment: Moment, where: Tensor, before: Tensor, drawn: Tensor, prediction: Prediction | None
    ) -> Tensor:
        """The window [batch, W] after one step, from what it was `before` and with all that was drawn put in place.

        `where` [batch, W] is where the network was asked, in the order of `prediction`; None if nowhere. Only for rules
        that foresee nothing.
        """
        return drawn


def needs_mask(rule: Rule, reading: Reading) -> None:
    """Refuse a process without a MASK to leave."""
    if not reading.process.starts_masked:
        raise ValueError(f"sampler {rule.name!r} does not fit {reading.process!r}: it needs a process that masks")
