"""Every random number of a sample, as a pure function of what it is for.

A number depends on the seed, the row's own key, the purpose, the step and the position alone: not on the batch that a
row is in, on whether there is a cache, or on which other numbers were asked for. So one seed means one text.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from hdlm.theory.random import keyed_uniform

START, EVENT, TOKEN, GUMBEL = 301, 302, 303, 304  # purposes

_FLOAT32_STEPS = 2**24  # what a float32 uniform can be: multiples of 2^-24


class Dice:
    """Uniforms for `keys` [batch], one integer per row. `flawed`: draw tokens as earlier work did, in float32."""

    def __init__(self, seed: int, keys: Tensor, *, flawed: bool = False) -> None:
        self._seed = seed
        self._keys = keys
        self.flawed = flawed

    @property
    def batch(self) -> int:
        """Number of rows."""
        return len(self._keys)

    @property
    def device(self) -> torch.device:
        """Where the numbers are made."""
        return self._keys.device

    def throw(self, purpose: int, step: int | Tensor, positions: Tensor) -> Tensor:
        """float64 uniforms in [0, 1), [batch, positions]; for steps [k, 1, 1]: [k, batch, positions]."""
        return keyed_uniform(self._seed, self._keys.unsqueeze(1), purpose, step, positions.unsqueeze(0))

    def throw_at(self, purpose: int, row: Tensor, step: Tensor, *keys: Tensor) -> Tensor:
        """The same uniforms at chosen rows, steps and positions [n] alone; further keys give further numbers."""
        return keyed_uniform(self._seed, self._keys[row], purpose, step, *keys)

    def flawed_tokens(self, weights: Tensor, row: Tensor, step: Tensor, position: Tensor) -> Tensor:
        """One state for each of the places [n], from weights [n, states].

        The Gumbel draw of earlier work: a float32 uniform has no values near 0 or 1 to speak of, so that unlikely
        tokens are drawn too rarely, as at a lower temperature.
        """
        states = torch.arange(weights.shape[-1], device=weights.device)
        u = self.throw_at(GUMBEL, row.unsqueeze(1), step.unsqueeze(1), position.unsqueeze(1), states)
        u = (u * _FLOAT32_STEPS).floor().float() / _FLOAT32_STEPS
        return (weights.float() / (1e-10 - torch.log(u + 1e-10))).argmax(-1)


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
