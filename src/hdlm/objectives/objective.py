"""What every training objective is: a network's outputs and what they should have said, to a loss per token.

`outputs` [n, N] are the raw outputs for n tokens, `xt` their noisy and `x0` their clean tokens, `t` their times, [n].
The result [n] is in nats; its mean over tokens and uniform times is the objective. Never calls a network.
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F


class Objective(Protocol):
    """Outputs and targets in, loss per token out."""

    def __call__(self, outputs: Tensor, xt: Tensor, x0: Tensor, t: Tensor) -> Tensor:
        """Loss [n] of outputs [n, N]."""
        ...


def cross_entropy(outputs: Tensor, x0: Tensor) -> Tensor:
    """-log p(x0) [n] in at least float32 from logits [n, N]."""
    wide = outputs if outputs.dtype.itemsize >= 4 else outputs.float()
    return F.cross_entropy(wide, x0.long(), reduction="none")


class NextToken:
    """The exact negative log-likelihood of autoregression; noise plays no part."""

    def weights(self, xt: Tensor, x0: Tensor, t: Tensor) -> Tensor:
        """All positions weigh the same, [n]."""
        return torch.ones_like(t)

    def __call__(self, outputs: Tensor, xt: Tensor, x0: Tensor, t: Tensor) -> Tensor:
        return cross_entropy(outputs, x0)
