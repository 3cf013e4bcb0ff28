"""The absorbing process: a token is masked and stays so. The process of MDLM and masked language models.

The gamma-hybrid process with gamma = 0. A token that is not MASK is the clean one, so its posterior and
score never look at p0.
"""

from hdlm.theory.gamma_hybrid import GammaHybrid
from hdlm.theory.noise import Linear, Noise


class Absorbing(GammaHybrid):
    """Masking only: a token is MASK with probability 1 - alpha(t), else itself."""

    def __init__(self, vocab_size: int, noise: Noise | None = None) -> None:
        super().__init__(vocab_size, 0.0, noise if noise is not None else Linear())

    def __repr__(self) -> str:
        return f"Absorbing({self.vocab_size}, noise={self.noise})"
