"""Network and objective as one module that gives the loss of a batch: what DDP and FSDP2 wrap.

The head runs on the slots that carry a loss alone, a chunk of them at a time: the logits of a whole batch never exist.
This is the plain text of it; `fast.training` computes the same with kernels, and is held to it. Knows no optimiser.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hdlm.nn.transformer import Denoiser
from hdlm.objectives.objective import NextToken, Objective
from hdlm.theory import checks
from hdlm.theory.layout import Slots
from hdlm.train.batch import Batch, Targets


@dataclass(frozen=True)
class Losses:
    """Sums over a batch: of the active tokens' losses, and of the settled ones', with how many there were.

    What comes after a row's end is counted and costs nothing, so that parts of a batch add up to the whole.
    """

    active: Tensor
    active_tokens: int
    settled: Tensor
    settled_tokens: int


class LossModule(nn.Module):
    """A denoiser and its objective."""

    def __init__(self, denoiser: Denoiser, objective: Objective) -> None:
        super().__init__()
        self.denoiser = denoiser
        self._objective = objective

    def forward(self, batch: Batch) -> Losses:
        """Loss sums of a batch, differentiable."""
        features = self.features(batch.slots)
        with checks.trusted():
            objective = NextToken() if batch.autoregressive else self._objective
            active = self.total(features, batch.active, objective)
            if batch.settled is None:
                return Losses(active, batch.active.x0.numel(), torch.zeros_like(active), 0)
            settled = self.total(features, batch.settled, NextToken())
        return Losses(active, batch.active.x0.numel(), settled, batch.settled.x0.numel())

    def features(self, slots: Slots) -> Tensor:
        """What the head reads, [batch, slots, width]."""
        return self.denoiser.trunk(slots)

    def total(self, features: Tensor, targets: Targets, objective: Objective) -> Tensor:
        """The weighted sum of an objective over the slots that carry it."""
        head, flat = self.denoiser.head, features[:, targets.slot].flatten(0, 1)
        x0, xt, t = targets.x0.flatten(), targets.xt.flatten(), targets.t.flatten()
        weight = targets.weight.expand(targets.x0.shape).flatten()

        def loss(part: Tensor, rows: slice) -> Tensor:
            return (objective(head(part), xt[rows], x0[rows], t[rows]) * weight[rows]).sum()

        chunks = head.chunks(len(flat))
        if len(chunks) == 1:
            return loss(flat, chunks[0])
        parts = [checkpoint(loss, flat[rows], rows, use_reentrant=False, preserve_rng_state=False) for rows in chunks]
        return torch.stack(parts).sum()  # pyright: ignore[reportArgumentType]


def recompute_blocks(denoiser: Denoiser) -> None:
    """Let blocks keep their input alone for the backward pass, and work out the rest again there."""
    for block in denoiser.blocks:
        # The method and not the module is wrapped, so that parameters keep their names, and FSDP its hooks outside.
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
