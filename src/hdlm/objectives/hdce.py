"""The hybrid diffusion cross-entropy of the epsilon process (eq. hybrid_loss).

Cross-entropy of the clean token everywhere, weighted by what became of it: masked -alpha' / (1 - alpha), which is
1 / p_mask for alpha = 1 - t; unmasked and shuffled (xt != x0) lambda (1 - epsilon) / (1 - p_mask); unmasked and not
shuffled lambda epsilon / (1 - p_mask). In expectation the two unmasked classes weigh about the same.
"""

import torch
from torch import Tensor

from hdlm.objectives.objective import cross_entropy
from hdlm.theory.epsilon_hybrid import EpsilonHybrid

MAX_WEIGHT = 100.0


class HDCE:
    """`lambda_` weighs the unmasked positions.

    1 / (1 - p_mask) has infinite variance as t goes to 1; it is cut at MAX_WEIGHT, or left out with `divided=False`.
    """

    def __init__(self, process: EpsilonHybrid, *, lambda_: float = 1.0, divided: bool = True) -> None:
        if lambda_ < 0:
            raise ValueError(f"lambda = {lambda_!r} is not accepted: it must be >= 0")
        self._process = process
        self._lambda = lambda_
        self._divided = divided

    def weights(self, xt: Tensor, x0: Tensor, t: Tensor) -> Tensor:
        """The weight of each position [n]."""
        noise, epsilon = self._process.noise, self._process.epsilon
        unmasked = torch.where(xt != x0, torch.full_like(t, self._lambda * (1 - epsilon)), self._lambda * epsilon)
        if self._divided:
            unmasked = unmasked * (1 / noise.alpha(t)).clamp(max=MAX_WEIGHT)
        return torch.where(self._process.is_mask(xt), noise.unmasking(t), unmasked)

    def __call__(self, outputs: Tensor, xt: Tensor, x0: Tensor, t: Tensor) -> Tensor:
        return self.weights(xt, x0, t) * cross_entropy(outputs, x0)
