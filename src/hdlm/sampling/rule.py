"""What a step rule is: which positions it wants to hear of, and what becomes of a window.

The loop asks a rule for its candidates before the network runs, gives it the network's view of those places and no
others, and takes the window that it returns. Whether a place is a candidate may depend on chance, on the two times and
on what is masked, never on the network.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from hdlm.sampling.chances import Chance
from hdlm.sampling.dice import Dice
from hdlm.sampling.shaping import Shaping
from hdlm.theory.parameterization import clean_to_score
from hdlm.theory.process import Process
from hdlm.theory.random import categorical
from hdlm.theory.reading import Reading, rate_process


@dataclass(frozen=True)
class Moment:
    """One step of one window: states `xt` [batch, W], to be taken from the times `t` [W] to `s` [W].

    `free` [batch, W] is False where a token is given (by a prompt, or around a gap) or its row has ended; what a rule
    does there is not heard.
    """

    reading: Reading
    chance: Chance
    dice: Dice
    xt: Tensor
    free: Tensor

    @property
    def process(self) -> Process:
        """The noising process that is being undone."""
        return self.reading.process

    @property
    def t(self) -> Tensor:
        """Noise times before the step, [W]."""
        return self.chance.t

    @property
    def s(self) -> Tensor:
        """Noise times after the step, [W]."""
        return self.chance.s

    @property
    def event(self) -> Tensor:
        """The uniform that decides whether something happens to a place, [batch, W]."""
        return self.chance.event

    @cached_property
    def masked(self) -> Tensor:
        """Where the state is MASK, [batch, W]."""
        return self.process.is_mask(self.xt)

    @property
    def transfer(self) -> Tensor:
        """Probability that a position leaves MASK in this step, the paper's p_transfer: [W]."""
        return 1 - self.chance.stay_masked

    @cached_property
    def certain_stay(self) -> Tensor:
        """The least probability that a place stays as it is, whatever the network says: [batch, W]."""
        return torch.where(self.masked, self.chance.stay_masked, self.chance.stay_token)

    def at(self, values: Tensor, where: Tensor) -> Tensor:
        """`values` [W] or [batch, W] at the places where `where` is True: [places]."""
        return values.expand_as(where)[where]

    def draw(self, weights: Tensor, where: Tensor) -> Tensor:
        """One state per place from weights [places, states]: one uniform and an inverse CDF, exact to float64."""
        if self.dice.flawed:
            return self.dice.flawed_tokens(weights, where, self.chance.step.index, self.chance.positions)
        return categorical(weights, self.chance.token[where])

    def put(self, where: Tensor, tokens: Tensor) -> Tensor:
        """The window with `tokens` [places] put where `where` [batch, W] is True."""
        return self.xt.masked_scatter(where, tokens.to(self.xt.dtype))


class Prediction:
    """The network's view of some places: raw outputs [places, outputs] at states and times [places], read lazily."""

    def __init__(self, outputs: Tensor, xt: Tensor, t: Tensor, reading: Reading, shaping: Shaping) -> None:
        self._outputs, self._xt, self._t = outputs, xt, t
        self._reading, self._shaping = reading, shaping

    @cached_property
    def p0(self) -> Tensor:
        """The law of the clean token, shaped by temperature and truncation: [places, N]."""
        return self._log_p0.exp()

    @cached_property
    def _log_p0(self) -> Tensor:
        return self._shaping(self._reading.log_p0(self._outputs, self._xt, self._t))

    @cached_property
    def score(self) -> Tensor:
        """Ratios p_t(z) / p_t(xt): [places, N], from the network's own scores where nothing is shaped."""
        if self._shaping.is_plain:
            return self._reading.log_score(self._outputs, self._xt, self._t).exp()
        return clean_to_score(rate_process(self._reading.process), self._log_p0, self._xt, self._t).exp()


class Rule(ABC):
    """A way to go from one noise level to the next."""

    name: str

    @abstractmethod
    def check(self, reading: Reading) -> None:
        """Refuse, with a ValueError, a process or a parameterisation that this rule does not fit."""

    @abstractmethod
    def candidates(self, moment: Moment) -> Tensor:
        """Places whose outputs are needed: boolean [batch, W]."""

    @abstractmethod
    def update(self, moment: Moment, where: Tensor, prediction: Prediction | None) -> Tensor:
        """The window after the step, [batch, W].

        `where` is the candidates less what is not free, `prediction` the network's view of those places; None if there
        are none.
        """


def needs_mask(rule: Rule, reading: Reading) -> None:
    """Refuse a process without a MASK to leave."""
    if not reading.process.starts_masked:
        raise ValueError(f"sampler {rule.name!r} does not fit {reading.process!r}: it needs a process that masks")
