"""A recipe at toy size: its own process, schedules, objective and block style, one optimiser step on random tokens.

Shows that every part of a recipe fits the others, on any machine, without its data.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch

from hdlm.config.model import DenoiserConfig
from hdlm.config.recipe import Recipe
from hdlm.data.packed import Rows
from hdlm.nn.transformer import Denoiser
from hdlm.processes import ALONE
from hdlm.train.batch import Batches
from hdlm.train.step import Stepper

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
    return replace(
        recipe,
        length=length,
        model=replace(recipe.model, layers=2, width=64, heads=4, condition_width=32),
        schedules=tuple(member.shrunk(length, context=recipe.length) for member in recipe.schedules),
        global_batch=ROWS,
        micro_batch=ROWS,
        compile=False,
        sharded=False,
        hybrid=False,
    )


def dry_run(recipe: Recipe) -> DryRun:
    """One step of every hyperschedule of the recipe."""
    small = shrink(recipe)
    torch.manual_seed(small.seed)
    model = Denoiser(DenoiserConfig(vocab_size=VOCAB, **vars(small.model)))
    process = small.process.build(VOCAB)
    rows = Rows(np.random.default_rng(0).integers(0, VOCAB, (8, small.length)))
    slots, losses = [], []
    for number, (member, _) in enumerate(small.members):
        alone = replace(small, schedules=(member,), autoregressive_first=0.0, steps=1)
        batches = Batches(alone, rows, process, bos_id=0, device=ALONE.device)
        done = Stepper(alone, model, process, batches, ALONE).step()
        if done.skipped:
            raise ValueError(f"{recipe.name}: the toy step of hyperschedule {number} has no finite loss")
        slots.append(done.slots // ROWS)
        losses.append(done.loss)
    return DryRun(model.num_parameters, slots, losses)
