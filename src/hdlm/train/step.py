"""One optimiser step: batch, loss, backward, update. What a run repeats, and what `hdlm bench train` times.

Knows the network, its loss and its optimiser; no files, no log.
"""

import math
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from hdlm import backend as floors
from hdlm.config.build import build_reading
from hdlm.config.recipe import OptimizerSettings, Recipe
from hdlm.nn.transformer import Denoiser
from hdlm.objectives.bounds import training_objective
from hdlm.processes import World
from hdlm.theory.process import Process
from hdlm.theory.random import keyed_uniform
from hdlm.train.batch import Batch, Batches
from hdlm.train.distributed import full_tensor, no_sync, parallelize
from hdlm.train.loss import recompute_blocks
from hdlm.train.muon import Muon, parameter_groups
from hdlm.train.state import EMA, State

_DROPOUT = 301


@dataclass(frozen=True)
class StepResult:
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
    progress = (step - settings.warmup) / max(1, steps - settings.warmup)
    low = settings.final_share
    return settings.lr * (low + (1 - low) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))


class Stepper:
    """The network of a run, its loss and its optimiser, and where they are."""

    def __init__(
        self,
        recipe: Recipe,
        denoiser: Denoiser,
        process: Process,
        batches: Batches,
        world: World,
        *,
        backend: str | None = None,
    ) -> None:
        self.recipe, self.batches, self.world = recipe, batches, world
        loss = recipe.loss
        reading = build_reading(recipe.parameterization, process)
        objective = training_objective(reading, lambda_=loss.lambda_, divided=loss.divided)
        denoiser = denoiser.to(world.device).train()
        if recipe.recompute:
            recompute_blocks(denoiser)
        self.module = floors.loss_module(denoiser, objective, backend=backend, compile=recipe.compile)
        self._parallel = parallelize(self.module, world, sharded=recipe.sharded, hybrid=recipe.hybrid)
        optimizer = _make_optimizer(denoiser, recipe, world.device)
        self.state = State(denoiser, EMA(denoiser, recipe.ema), optimizer)
        self._prefetched: tuple[int, Batch] | None = None

    def step(self) -> StepResult:
        """One step over the global batch."""
        recipe, state, world = self.recipe, self.state, self.world
        seed = keyed_uniform(recipe.seed, _DROPOUT, state.step, world.rank).item()
        torch.manual_seed(int(seed * 2**53))
        total = torch.zeros((), dtype=torch.float64, device=world.device)
        slots = active = 0
        micro_batches = self._micro_batches(state.step)
        autocast = torch.autocast("cuda", torch.bfloat16) if world.device.type == "cuda" else nullcontext()
        for number, indices in enumerate(micro_batches):
            batch = self._batch(indices)
            with no_sync(self._parallel, last=number == len(micro_batches) - 1), autocast:
                losses = self._parallel(batch)
                share = len(indices) / recipe.global_batch
                loss = recipe.loss.beta2 * share * losses.active / losses.active_tokens
                if losses.settled_tokens:
                    loss = loss + recipe.loss.beta1 * share * losses.settled / losses.settled_tokens
                # Exchanged gradients are averaged over processes; the loss is a sum over them.
                (loss * world.size).backward()
            total += loss.detach().double()
            slots += batch.slots.token.numel() * world.size
            active += losses.active_tokens * world.size
        norm = full_tensor(torch.nn.utils.clip_grad_norm_(state.model.parameters(), recipe.optimizer.clip))
        found = self._update(torch.stack([world.sum(total), norm.to(total)]))
        state.optimizer.zero_grad(set_to_none=True)
        state.step += 1
        if world.device.type == "cuda" and state.step < recipe.steps:
            first = self._micro_batches(state.step)[0]
            self._prefetched = int(first[0]), self._batch(first)  # while the device works
        loss, grad_norm = found.tolist()
        skipped = not (math.isfinite(loss) and math.isfinite(grad_norm))
        state.updates += not skipped
        return StepResult(loss, slots, active, skipped)

    def rewind(self) -> None:
        """Take the samples from the first step's on again, with the weights as they are."""
        self.state.step, self._prefetched = 0, None

    def _micro_batches(self, step: int) -> tuple[Tensor, ...]:
        """This process's samples of a step, a micro-batch each."""
        own = self.recipe.global_batch // self.world.size
        first = step * self.recipe.global_batch + self.world.rank * own
        return torch.arange(first, first + own).split(self.recipe.micro_batch)

    def _batch(self, indices: Tensor) -> Batch:
        prefetched, self._prefetched = self._prefetched, None
        if prefetched is not None and prefetched[0] == int(indices[0]):
            return prefetched[1]
        return self.batches.at(indices, global_batch=self.recipe.global_batch)

    def _update(self, found: Tensor) -> Tensor:
        """One step of the optimiser; a loss or a gradient norm, `found` [2], that is no number changes nothing.

        Gives `found` back. On a GPU the step is on its way before the host knows what it holds.
        """
        recipe, state = self.recipe, self.state
        for group in state.optimizer.param_groups:
            group["lr"] = learning_rate(recipe.optimizer, state.step, recipe.steps)
        fine = found.isfinite().all()
        ahead = found.is_cuda and not recipe.sharded
        if ahead:
            state.optimizer.found_inf = (~fine).float()  # pyright: ignore[reportAttributeAccessIssue]
        if ahead or fine:
            state.optimizer.step()
            state.average.update(state.model, state.updates + 1, where=fine)
        return found


def _make_optimizer(model: Denoiser, recipe: Recipe, device: torch.device) -> torch.optim.AdamW:
    settings = recipe.optimizer
    groups = parameter_groups(model, settings.weight_decay, orthogonal=settings.orthogonal)
    kind, betas = Muon if settings.orthogonal else torch.optim.AdamW, (settings.beta1, settings.beta2)
    return kind(groups, lr=settings.lr, betas=betas, eps=settings.eps, fused=device.type == "cuda")
