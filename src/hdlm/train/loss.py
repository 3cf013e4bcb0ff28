"""Network and objective as one module that gives the loss of a batch: what DDP, FSDP2 and the compiler wrap.

The head runs on the slots that carry a loss alone, a chunk of them at a time (`head.py`): the logits of a whole batch
never exist. Knows no optimiser.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hdlm.nn.attention import plan_for
from hdlm.nn.transformer import Denoiser
from hdlm.objectives.objective import NextToken, Objective
from hdlm.objectives.slope import has_kernel, slope_by_autograd, slope_by_kernel
from hdlm.theory import checks
from hdlm.train.batch import Batch, Targets
from hdlm.train.head import chunks_of, head_loss, logits_dtype


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

    def __init__(self, denoiser: Denoiser, objective: Objective, *, compile: bool = False) -> None:
        super().__init__()
        self.denoiser = denoiser
        self._objective = objective
        self._pieces = denoiser.pieces(compiled=compile)
        self._compile, self._kernels = compile, dict[type, Objective]()

    def forward(self, batch: Batch, judge: Objective | None = None) -> Losses | Tensor:
        """Loss sums of a batch, differentiable; with a `judge`, each row's sum and count instead [batch, 2]."""
        features = self._features(batch)
        if judge is not None:
            return self._row_sums(features, batch.active, judge)
        with checks.trusted():
            objective = NextToken() if batch.autoregressive else self._objective
            active = self._sum(features, batch.active, objective)
            if batch.settled is None:
                return Losses(active, batch.active.x0.numel(), torch.zeros_like(active), 0)
            settled = self._sum(features, batch.settled, NextToken())
        return Losses(active, batch.active.x0.numel(), settled, batch.settled.x0.numel())

    def _features(self, batch: Batch) -> Tensor:
        slots, layout = batch.slots, batch.slots.layout
        rope = self.denoiser.rope(layout.position)
        inputs = (slots.token, slots.sigma, slots.weight, rope, layout.runs, plan_for(layout))
        return self.denoiser.run(*inputs, pieces=self._pieces)

    def _row_sums(self, features: Tensor, targets: Targets, objective: Objective) -> Tensor:
        """Each row's summed loss over its own active tokens, and how many they are, [batch, 2]: for validation."""
        flat = features[:, targets.slot].flatten(0, 1)
        x0, xt, t = targets.x0.flatten(), targets.xt.flatten(), targets.t.flatten()
        with checks.trusted():
            parts = [
                objective(self.denoiser.head(flat[rows]), xt[rows], x0[rows], t[rows])
                for rows in chunks_of(len(flat), self.denoiser.config.outputs)
            ]
        weight = targets.weight.expand(targets.x0.shape)
        return torch.stack([(torch.cat(parts).view(weight.shape) * weight).sum(1), weight.sum(1)], 1)

    def _sum(self, features: Tensor, targets: Targets, objective: Objective) -> Tensor:
        """Weighted sum of an objective over the chosen slots, chunk by chunk."""
        flat = features[:, targets.slot].flatten(0, 1)
        x0, xt, t = targets.x0.flatten(), targets.xt.flatten(), targets.t.flatten()
        weight = targets.weight.expand(targets.x0.shape).flatten()
        count = self.denoiser.config.outputs

        if has_kernel(objective, flat.device, logits_dtype(flat)):
            slope = slope_by_kernel(objective, xt, x0, t, weight, count)
        else:
            slope = slope_by_autograd(self._compiled(objective), xt, x0, t, weight, count)
        return head_loss(self.denoiser.head, flat, slope)

    def _compiled(self, objective: Objective) -> Objective:
        """The objective, compiled where the network is, so that it needs no copies of the logits."""
        if not self._compile:
            return objective
        if type(objective) not in self._kernels:
            self._kernels[type(objective)] = torch.compile(objective.__call__)
        return self._kernels[type(objective)]
