"""Every random number of a sample, as a pure function of what it is for.

A number depends on the seed, the row's own key, the purpose, the step and the position alone: not on the batch that a
row is in, on whether there is a cache, or on which other numbers were asked for. So one seed means one text.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hdlm.theory.random import categorical, keyed_uniform, race

START, EVENT, TOKEN, GUMBEL, LENGTH = 301, 302, 303, 304, 305  # purposes

_FLOAT32_STEPS = 2**24  # what a float32 uniform can be: multiples of 2^-24


@dataclass(frozen=True)
class StepRandom:
    """The random numbers of one step, one of each kind a position [...], float64 in [0, 1).

    `event` decides whether something happens, `token` what. `gumbel`: where draws are to be as flawed as those of
    earlier work, gives one uniform for each of so many states as well [..., states]. `races`: draw by a race, so that
    laws that are nearly the same draw the same.
    """

    event: Tensor
    token: Tensor
    gumbel: Callable[[int], Tensor] | None = None
    races: bool = False

    def at(self, chosen: Any) -> "StepRandom":
        """Those of some positions alone, chosen by an index or a mask; not for flawed draws."""
        return replace(self, event=self.event[chosen], token=self.token[chosen])

    def racing(self) -> "StepRandom":
        """The same numbers, to draw by a race."""
        return replace(self, races=True)

    def draw(self, weights: Tensor) -> Tensor:
        """One state a position from weights [..., states]: one uniform and an inverse CDF, or a race; exact to float64.

        Or the Gumbel draw of earlier work: a float32 uniform has no values near 0 or 1 to speak of, so that unlikely
        tokens are drawn too rarely, as at a lower temperature.
        """
        if self.gumbel is None:
            return race(weights, self.token) if self.races else categorical(weights, self.token)
        u = (self.gumbel(weights.shape[-1]) * _FLOAT32_STEPS).floor().float() / _FLOAT32_STEPS
        return (weights.float() / (1e-10 - torch.log(u + 1e-10))).argmax(-1)


class SampleRNG:
    """Random numbers of the rows `keys` [batch], one integer each. `flawed`: draw tokens as earlier work did."""

    def __init__(self, seed: int, keys: Tensor, *, flawed: bool = False) -> None:
        self.seed, self.keys, self.flawed = seed, keys, flawed

    @property
    def batch(self) -> int:
        """Number of rows."""
        return len(self.keys)

    @property
    def device(self) -> torch.device:
        """Where the numbers are made."""
        return self.keys.device

    def uniform(self, purpose: int, step: int | Tensor, positions: Tensor) -> Tensor:
        """float64 uniforms in [0, 1), [batch, positions]; for steps [k, 1, 1]: [k, batch, positions]."""
        return keyed_uniform(self.seed, self.keys.unsqueeze(1), purpose, step, positions.unsqueeze(0))

    def uniform_at(self, purpose: int, row: Tensor, step: Tensor, position: Tensor) -> Tensor:
        """The same uniforms at chosen rows, steps and positions [n] alone."""
        return keyed_uniform(self.seed, self.keys[row], purpose, step, position)

    def step(self, number: int, positions: Tensor) -> StepRandom:
        """All that a step needs at some positions [W] of the schedule: [batch, W]."""

        def gumbel(states: int) -> Tensor:
            state, rows = torch.arange(states, device=self.device), self.keys.view(-1, 1, 1)
            return keyed_uniform(self.seed, rows, GUMBEL, number, positions.view(1, -1, 1), state)

        event, token = (self.uniform(purpose, number, positions) for purpose in (EVENT, TOKEN))
        return StepRandom(event, token, gumbel if self.flawed else None)


def row_keys(prompts: Sequence[Sequence[int]]) -> list[int]:
    """A key per row: the prompt's own fingerprint, and for the second, third ... row of one prompt the next key."""
    seen: Counter[int] = Counter()
    keys = []
    for prompt in prompts:
        digest = hashlib.sha256(b"".join(int(token).to_bytes(8, "big") for token in prompt)).digest()
        fingerprint = int.from_bytes(digest[:7], "big")
        keys.append(fingerprint + seen[fingerprint])
        seen[fingerprint] += 1
    return keys
