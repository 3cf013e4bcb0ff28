"""The loss of a batch with less work: blocks compiled once for all, attention by block masks, head and loss as one."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hdlm.fast.attention import training_attention
from hdlm.fast.gradients import gradient_by_autograd, gradient_by_kernel, has_kernel
from hdlm.fast.head_loss import head_loss, logits_dtype
from hdlm.nn.transformer import Denoiser
from hdlm.objectives.objective import Objective
from hdlm.theory.layout import Slots
from hdlm.train.batch import Targets
from hdlm.train.loss import LossModule


class FastLossModule(LossModule):
    """`LossModule` with other means. `compile`: its blocks share one program, which takes seconds and not a minute."""

    def __init__(self, denoiser: Denoiser, objective: Objective, *, compile: bool = False) -> None:
        super().__init__(denoiser, objective)
        wrap: Callable[[Any], Any] = torch.compile if compile else lambda piece: piece
        self._compile, self._compiled_objectives = compile, dict[type, Objective]()
        # The rotary table is no part of these: a compiler would melt it into every block and work it out again in each.
        self._embed, self._head_features = wrap(denoiser.embed), wrap(denoiser.head.features)
        self._blocks = [wrap(block) for block in denoiser.blocks]

    def features(self, slots: Slots) -> Tensor:
        layout, denoiser = slots.layout, self.denoiser
        rope, attend = denoiser.rope(layout.position), training_attention(layout)
        x, condition = self._embed(slots.token, slots.weight), denoiser.condition(slots.sigma)
        for block in self._blocks:
            x = block(x, condition, layout.runs, rope, attend)
        return self._head_features(x, condition, layout.runs)

    def total(self, features: Tensor, targets: Targets, objective: Objective) -> Tensor:
        flat = features[:, targets.slot].flatten(0, 1)
        x0, xt, t = targets.x0.flatten(), targets.xt.flatten(), targets.t.flatten()
        weight, count = targets.weight.expand(targets.x0.shape).flatten(), self.denoiser.config.outputs
        if has_kernel(objective, flat.device, logits_dtype(flat)):
            gradient = gradient_by_kernel(objective, xt, x0, t, weight, count)
        else:
            gradient = gradient_by_autograd(self._compiled(objective), xt, x0, t, weight, count)
        return head_loss(self.denoiser.head, flat, gradient)

    def _compiled(self, objective: Objective) -> Objective:
        """The objective, compiled where the network is, so that it needs no copies of the logits."""
        if not self._compile:
            return objective
        if type(objective) not in self._compiled_objectives:
            self._compiled_objectives[type(objective)] = torch.compile(objective.__call__)
        return self._compiled_objectives[type(objective)]
