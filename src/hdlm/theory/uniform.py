"""The uniform process: a token is replaced by a uniform one, any number of times. No MASK state.

The gamma-hybrid process with gamma = 1, on the N real tokens alone.
"""

import torch
from torch import Tensor

from hdlm.theory.gamma_hybrid import GammaHybrid
from hdlm.theory.noise import Noise


class Uniform(GammaHybrid):
    """Replacement only: a token is itself with probability alpha(t), else uniform over the vocabulary."""

    def __init__(self, vocab_size: int, noise: Noise | None = None) -> None:
        super().__init__(vocab_size, 1.0, noise)

    def __repr__(self) -> str:
        return f"Uniform({self.vocab_size}, noise={self.noise})"

    @property
    def mask_id(self) -> None:
        return None

    def embedding_weight(self, t: Tensor) -> Tensor:
        """1: there is no MASK embedding to mix with."""
        return torch.ones_like(t)
