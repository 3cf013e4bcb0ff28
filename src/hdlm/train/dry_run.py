"""A recipe at toy size: its own process, schedules, objective and block style, one optimiser step on random tokens.

Shows that every part of a recipe fits the others, on any machine, without its data.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch

from hdlm.data.packed import Rows
from hdlm.nn.config import DenoiserConfig
from hdlm.nn.transformer import Denoiser
from hdlm.objectives.choose import training_objective
from hdlm.recipe import MixtureMember, Recipe
from hdlm.train.batch import Batches
from hdlm.train.loss import LossModule

VOCAB, LENGTH, ROWS = 97, 64, 4


@dataclass(frozen=True)
class DryRun:
    """What one toy step of each hyperschedule came to."""

    parameters: int
    slots: list[int]
    losses: list[float]


def shrink(recipe: Recipe) -> Recipe:
    """The recipe with everything that costs time made small, windows in proportion."""
    length = min(recipe.length, LENGTH)

    def smaller(member: MixtureMember) -> MixtureMember:
        width = None if member.width is None else max(1, member.width * length // recipe.length)
        return replace(member, width=width)

    model = replace(recipe.model, layers=2, width=64, heads=4, condition_width=32)
    return replace(
        recipe,
        length=length,
        model=model,
        schedules=tuple(map(smaller, recipe.schedules)),
        global_batch=ROWS,
        compile=False,
    )


def dry_run(recipe: Recipe) -> DryRun:
    """One step of every hyperschedule of the recipe."""
    small = shrink(recipe)
    torch.manual_seed(small.seed)
    model = Denoiser(DenoiserConfig(vocab_size=VOCAB, **vars(small.model)))
    process = small.process.build(VOCAB)
    rows = Rows(np.random.default_rng(0).integers(0, VOCAB, (8, small.length)))
    batches = Batches(small, rows, process, bos_id=0, device=torch.device("cpu"))
    slots, losses = [], []
    module = LossModule(model, training_objective(process, clean=small.parameterization == "clean"))
    for number in range(len(small.schedules)):
        optimizer = torch.optim.AdamW(model.parameters(), lr=small.optimizer.lr)
        batch = batches.at(torch.arange(ROWS), global_batch=ROWS, member=number)
        result = module(batch)
        loss = small.loss.beta2 * result.active / result.active_tokens
        if result.settled_tokens:
            loss = loss + small.loss.beta1 * result.settled / result.settled_tokens
        loss.backward()
        optimizer.step()
        slots.append(batch.slots.token.shape[1])
        losses.append(loss.item())
    return DryRun(model.num_parameters, slots, losses)
