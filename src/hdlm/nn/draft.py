"""The draft head: a light causal layer over a window's features, for drafts that know what was drafted before.

A window of MASK guesses each of its tokens as if the others were unknown. When its features are there, this layer walks
over them token by token: it mixes a position's features with the token before it and a state of its own, and the
network's own head scores what comes out. Nothing but drafts goes through it: what the network itself says of a text
does not change. Knows no process and no random number.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hdlm.config.model import DenoiserConfig


class DraftHead(nn.Module):
    """One step of the walk; it starts as no change at all, from a state of zeros."""

    def __init__(self, config: DenoiserConfig) -> None:
        super().__init__()
        self.size, self._eps = config.draft_width, config.norm_eps
        self.inner = nn.Linear(2 * config.width + self.size, self.size, bias=False)
        self.outer = nn.Linear(self.size, config.width, bias=False)
        if not self.inner.weight.is_meta:
            nn.init.normal_(self.inner.weight, std=0.03)
        nn.init.zeros_(self.outer.weight)

    def start(self, features: Tensor) -> Tensor:
        """The state [batch, size] before the first position, of features [batch, ..., width]."""
        return features.new_zeros(len(features), self.size)

    def forward(
        self, features: Tensor, previous: Tensor, state: Tensor, linear: Callable[[Tensor, Tensor], Tensor] = F.linear
    ) -> tuple[Tensor, Tensor]:
        """Features [batch, width] that know the token before, whose embedding is `previous`, and the next state."""
        known = F.rms_norm(previous, (previous.shape[-1],), None, self._eps)
        state = F.silu(linear(torch.cat([features, known.to(features.dtype), state], dim=-1), self.inner.weight))
        return features + linear(state, self.outer.weight), state
