"""One optimiser step: batch, loss, backward, update. What a run repeats, and what `hdlm bench train` times.

Knows the network, its loss and its optimiser; no files, no log.
"""

import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hdlm.nn.transformer import Denoiser
from hdlm.objectives.choose import training_objective
from hdlm.recipe import OptimizerSettings, Recipe
from hdlm.theory.process import Process
from hdlm.theory.random import keyed_uniform
from hdlm.train import distributed
from hdlm.train.batch import Batch, Batches
from hdlm.train.distributed import World, whole, without_exchange
from hdlm.train.loss import LossModule
from hdlm.train.muon import Muon, decays, groups_of
from hdlm.train.state import Average, State

_DROPOUT = 301


@dataclass(frozen=True)
class Stepped:
    """What a step came to: the mean loss over the global batch, slots and active tokens processed.

    `skipped`: the loss or a gradient was no number, and nothing was changed.
    """

    loss: float
    slots: int
    active_tokens: int
    skipped: bool


def learning_rate(settings: OptimizerSettings, step: int, steps: int) -> float:
    """Linear warmup, then a cosine from `lr` down to `final_share` of it at the last step."""
    if step < settings.warmup:
        return settings.lr * (step + 1) / settings.warmup
    along = (step - settings.warmup) / max(1, steps - settings.warmup)
    low = settings.final_share
    return settings.lr * (low + (1 - low) * 0.5 * (1 + math.cos(math.pi * min(1.0, along))))


class Stepper:
    """The network of a run, its loss and its optimiser, and where they are."""

    def __init__(self, recipe: Recipe, denoiser: Denoiser, process: Process, batches: Batches, world: World) -> None:
        self.recipe, self.batches, self.world = recipe, batches, world
        loss = recipe.loss
        clean = recipe.parameterization == "clean"
        objective = training_objective(process, clean=clean, lambda_=loss.lambda_, divided=loss.divided)
        denoiser = denoiser.to(world.device).train()
        self.module = LossModule(denoiser, objective, compile=recipe.compile)
        self._spread = distributed.spread(self.module, world, sharded=recipe.sharded)
        optimizer = _make_optimizer(denoiser, recipe, world.device)
        self.state = State(denoiser, Average(denoiser, recipe.ema), optimizer)
        self._ready: tuple[int, Batch] | None = None

    def step(self) -> Stepped:
        """One step over the global batch."""
        recipe, state, world = self.recipe, self.state, self.world
        seed = keyed_uniform(recipe.seed, _DROPOUT, state.step, world.rank).item()
        torch.manual_seed(int(seed * 2**53))
        total = torch.zeros((), dtype=torch.float64, device=world.device)
        slots = active = 0
        parts = self._parts(state.step)
        autocast = torch.autocast("cuda", torch.bfloat16) if world.device.type == "cuda" else nullcontext()
        for number, indices in enumerate(parts):
            batch = self._batch(indices)
            with without_exchange(self._spread, last=number == len(parts) - 1), autocast:
                losses = self._spread(batch)
                share = len(indices) / recipe.global_batch
                loss = recipe.loss.beta2 * share * losses.active / losses.active_tokens
                if losses.settled_tokens:
                    loss = loss + recipe.loss.beta1 * share * losses.settled / losses.settled_tokens
                # Exchanged gradients are averaged over processes; the loss is a sum over them.
                (loss * world.size).backward()
            total += loss.detach().double()
            slots += batch.slots.token.numel() * world.size
            active += losses.active_tokens * world.size
        norm = torch.nn.utils.clip_grad_norm_(state.model.parameters(), recipe.optimizer.clip)
        norm = whole(norm) if isinstance(norm, Tensor) else torch.tensor(norm)
        found = self._update(torch.stack([world.sum(total), norm.to(total)]))
        state.optimizer.zero_grad(set_to_none=True)
        state.step += 1
        if world.device.type == "cuda" and state.step < recipe.steps:
            self._prepare(self._parts(state.step)[0])  # while the device works
        loss, length = found.tolist()
        skipped = not (math.isfinite(loss) and math.isfinite(length))
        state.updates += not skipped
        return Stepped(loss, slots, active, skipped)

    def rewind(self) -> None:
        """Take the samples from the first step's on again, with the weights as they are."""
        self.state.step, self._ready = 0, None

    def _parts(self, step: int) -> tuple[Tensor, ...]:
        """This process's samples of a step, a micro-batch each."""
        own = self.recipe.global_batch // self.world.size
        first = step * self.recipe.global_batch + self.world.rank * own
        return torch.arange(first, first + own).split(self.recipe.micro_batch)

    def _prepare(self, indices: Tensor) -> None:
        self._ready = (int(indices[0]), self.batches.at(indices, global_batch=self.recipe.global_batch))

    def _batch(self, indices: Tensor) -> Batch:
        if self._ready is None or self._ready[0] != int(indices[0]):
            self._prepare(indices)
        assert self._ready is not None
        batch, self._ready = self._ready[1], None
        return batch

    def _update(self, found: Tensor) -> Tensor:
        """One step of the optimiser; a loss or a gradient norm, `found` [2], that is no number changes nothing.

        Gives `found` back. On a GPU the step is on its way before the host knows what it holds.
        """
        recipe, state = self.recipe, self.state
        for group in state.optimizer.param_groups:
            group["lr"] = learning_rate(recipe.optimizer, state.step, recipe.steps)
        fine = found.isfinite().all()
        blind = found.is_cuda and not recipe.sharded
        if blind:
            state.optimizer.found_inf = (~fine).float()  # pyright: ignore[reportAttributeAccessIssue]
        if blind or fine:
            state.optimizer.step()
            state.average.update(state.model, state.updates + 1, really=fine)
        return found


def _make_optimizer(model: Denoiser, recipe: Recipe, device: torch.device) -> torch.optim.AdamW:
    settings = recipe.optimizer
    shared: dict[str, Any] = {
        "lr": settings.lr,
        "betas": (settings.beta1, settings.beta2),
        "eps": settings.eps,
        "fused": device.type == "cuda",
    }
    if settings.kind == "muon":
        return Muon(groups_of(model, settings.weight_decay), **shared)
    named = list(model.named_parameters())
    groups = [
        {"params": [p for name, p in named if decays(name, p) == which], "weight_decay": settings.weight_decay * which}
        for which in (True, False)
    ]
    return torch.optim.AdamW(groups, **shared)
