"""What a step rule is: how a window goes from the noise times t to s, given the network's view of it.

A rule is one verb, `step`: state, prediction, times and random numbers in, new tokens out. States,
predictions and random numbers are [batch, W], W the positions of the window; times are [W], for all rows. What a
rule knows before the network has run (`needs`) is for those who would rather not ask it: declaring it changes no text.
`Thinned` rules treat every position by itself and know all of that ahead.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from hdlm.config.sampling import DrawSettings
from hdlm.sampling.rng import StepRandom
from hdlm.sampling.warping import is_plain, warp
from hdlm.theory.parameterization import clean_to_score
from hdlm.theory.process import Process
from hdlm.theory.reading import Reading, rate_process


@dataclass(frozen=True)
class State:
    """A window before a step: `tokens`, and where they may change (not given, not settled, the row not ended)."""

    tokens: Tensor
    masked: Tensor
    free: Tensor


@dataclass(frozen=True)
class Times:
    """The noise times of a step, from `t` down to `s`, and what follows from them alone. Float64, one a position."""

    process: Process
    s: Tensor
    t: Tensor

    @property
    def moves(self) -> Tensor:
        """Positions whose level falls in the step."""
        return self.s < self.t

    @cached_property
    def stay_masked(self) -> Tensor:
        """Probability that MASK stays, which no network has a say in."""
        return self.process.certain_stay(torch.ones_like(self.t, dtype=torch.bool), s=self.s, t=self.t)

    @cached_property
    def stay_token(self) -> Tensor:
        """The least probability that a token stays, whatever the network says."""
        return self.process.certain_stay(torch.zeros_like(self.t, dtype=torch.bool), s=self.s, t=self.t)

    @property
    def transfer(self) -> Tensor:
        """Probability that a position leaves MASK, the paper's p_transfer."""
        return 1 - self.stay_masked


class Prediction:
    """The network's view of some positions: raw outputs [..., N] at states and times [...], read when asked.

    `witness`: a number of the run's that becomes NaN where what is read is not finite, on the device, so that nothing
    waits for it.
    """

    def __init__(
        self,
        outputs: Tensor,
        xt: Tensor,
        t: Tensor,
        reading: Reading,
        settings: DrawSettings,
        witness: Tensor | None = None,
    ) -> None:
        self._outputs, self._xt, self._t = outputs, xt, t
        self.reading, self._settings, self._witness = reading, settings, witness

    @cached_property
    def _own_log_p0(self) -> Tensor:
        log_p0 = self.reading.log_p0(self._outputs, self._xt, self._t)
        self._tell_witness(log_p0[..., 0])  # of a law one entry tells of all: it is normalised
        return log_p0

    def _tell_witness(self, said: Tensor) -> None:
        """Add numbers [...] of which one is NaN where the outputs are not finite; what is clean already is not read."""
        if self._witness is not None:
            self._witness += torch.where(self._t > 0, said, 0.0).sum()

    @cached_property
    def _log_p0(self) -> Tensor:
        return warp(self._own_log_p0, self._settings)

    @cached_property
    def p0(self) -> Tensor:
        """The law of the clean token, warped by temperature and truncation: [..., N]."""
        return self._log_p0.exp()

    @cached_property
    def own_p0(self) -> Tensor:
        """The law of the clean token as the network has it, before temperature and truncation: [..., N]."""
        return self._own_log_p0.exp()

    @cached_property
    def score(self) -> Tensor:
        """Ratios p_t(z) / p_t(xt): [..., N], from the network's own scores where nothing is warped."""
        if is_plain(self._settings):
            score = self.reading.log_score(self._outputs, self._xt, self._t).exp()
            self._tell_witness(0 * score.sum(-1))
            return score
        return clean_to_score(rate_process(self.reading.process), self._log_p0, self._xt, self._t).exp()

    def draw(self, random: StepRandom, *, as_trained: bool = False) -> Tensor:
        """A clean token for every position, from `p0`: [...]. `as_trained`: with the weights that HDCE has given it."""
        if not (as_trained and self.reading.reweighted):
            return random.draw(self.p0)
        return random.draw(warp(self.reading.log_trained(self._outputs, self._xt, self._t), self._settings).exp())

    def certainty(self) -> Tensor:
        """The probability of the likeliest token, before temperature and truncation: [...], float64."""
        return self.own_p0.amax(-1).double()

    def entropy(self) -> Tensor:
        """The entropy of the clean token in nats, before temperature and truncation: [...], float64."""
        return torch.special.entr(self.own_p0).sum(-1).double()

    def probability(self, tokens: Tensor, *, warped: bool = True) -> Tensor:
        """The probability of some tokens [...], as drawn from or as the network has it; NaN for MASK."""
        p0 = self.p0 if warped else self.own_p0
        found = p0.gather(-1, tokens.clamp(max=p0.shape[-1] - 1).unsqueeze(-1)).squeeze(-1)
        return torch.where(tokens < p0.shape[-1], found, math.nan)

    def likeliest(self, count: int) -> tuple[Tensor, Tensor]:
        """The `count` likeliest tokens as the network has it, and the logs of their probabilities: [..., count]."""
        found = self._own_log_p0.topk(min(count, self._own_log_p0.shape[-1]), dim=-1)
        return found.indices, found.values

    def log_probability(self, tokens: Tensor) -> Tensor:
        """The natural log of the probability of some tokens [...] as the network has it; NaN for MASK."""
        law = self._own_log_p0
        found = law.gather(-1, tokens.clamp(max=law.shape[-1] - 1).unsqueeze(-1)).squeeze(-1)
        return torch.where(tokens < law.shape[-1], found, math.nan)

    def told(self, tokens: Tensor, logprobs: bool, likeliest: int) -> dict[str, Any]:
        """What frames say of it where somebody asked: of some tokens [...], and of the likeliest."""
        return {
            "logprobs": self.log_probability(tokens) if logprobs else None,
            "likeliest": self.likeliest(likeliest) if likeliest else None,
        }


class Rule(ABC):
    """A way to go from one noise level to the next. `settings`: the names of its own among those of a draw."""

    name: ClassVar[str]
    settings: ClassVar[tuple[str, ...]] = ()

    def check(self, reading: Reading) -> None:  # noqa: B027, most rules fit most processes
        """Refuse, with a ValueError, a process or a parameterisation that this rule does not fit."""

    @abstractmethod
    def step(self, state: State, prediction: Prediction, times: Times, random: StepRandom) -> Tensor:
        """The window's tokens after the step; what is not free stays whatever is said of it."""

    def needs(self, masked: Tensor, free: Tensor, times: Times, event: Tensor) -> Tensor | None:
        """Optional: where the network's answer can matter, from what is masked, times and chance. None: anywhere."""
        return None

    def _needs_mask(self, reading: Reading) -> None:
        if not reading.process.starts_masked:
            raise ValueError(f"sampler {self.name!r} does not fit {reading.process!r}: it needs a process that masks")


class Thinned(Rule):
    """A rule of positions by themselves, in which MASK is left for good in the first step whose `event` is not below
    `stay_masked`: where it needs the network is known many steps ahead.
    """

    def foresees(self, reading: Reading) -> bool:
        """Whether that is so with this reading."""
        return True

    @abstractmethod
    def needs(self, masked: Tensor, free: Tensor, times: Times, event: Tensor) -> Tensor: ...

    @abstractmethod
    def draw(self, tokens: Tensor, prediction: Prediction, times: Times, random: StepRandom) -> Tensor:
        """What positions become that need the network."""

    def step(self, state: State, prediction: Prediction, times: Times, random: StepRandom) -> Tensor:
        needed = self.needs(state.masked, state.free, times, random.event)
        return torch.where(needed, self.draw(state.tokens, prediction, times, random), state.tokens)
