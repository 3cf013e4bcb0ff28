"""The masked bound: weighted cross-entropy on the positions that are MASK (MDLM, BD3-LM).

For the absorbing process its integral over the noise times, plus the prior's divergence (0 where alpha(1) = 0), bounds
-log p from above, whatever the hyperschedule.
"""

import torch
from torch import Tensor

from hdlm.objectives.objective import cross_entropy
from hdlm.theory.noise import Noise
from hdlm.theory.process import Process


def masked_bound(noise: Noise, log_prob: Tensor, is_mask: Tensor, t: Tensor) -> Tensor:
    """Loss per position [...], in nats per unit of time, from the log-probability [...] given to the hidden token."""
    return -torch.where(is_mask, noise.unmasking(t), 0.0) * torch.where(is_mask, log_prob, 0.0)


class MaskedBound:
    """The masked bound of logits over the clean token, for the absorbing process."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def weights(self, xt: Tensor, x0: Tensor, t: Tensor) -> Tensor:
        """The weight of each position's cross-entropy [n]: 0 unless it is MASK."""
        return torch.where(self._process.is_mask(xt), self._process.noise.unmasking(t), 0.0)

    def __call__(self, outputs: Tensor, xt: Tensor, x0: Tensor, t: Tensor) -> Tensor:
        return masked_bound(self._process.noise, -cross_entropy(outputs, x0), self._process.is_mask(xt), t)
