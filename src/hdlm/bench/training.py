"""Training steps timed: the real step of the real trainer, on random tokens, one case after the other."""

import statistics
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch

from hdlm.bench.cost import count_row, step_work
from hdlm.bench.roofline import Ceiling, seconds
from hdlm.config import recipes
from hdlm.config.model import DenoiserConfig
from hdlm.config.recipe import MixtureMember, ModelSettings, Recipe
from hdlm.data.packed import Rows
from hdlm.nn.transformer import Denoiser
from hdlm.processes import World
from hdlm.train.batch import Batches
from hdlm.train.step import Stepper


@dataclass(frozen=True)
class TrainCase:
    """A recipe's network, process, schedule and loss, at one batch size."""

    label: str
    recipe: Recipe
    batch: int


@dataclass(frozen=True)
class TrainRow:
    """What a case took. `share`: of the floor (see `roofline`); `spread`: fastest and slowest step."""

    label: str
    batch: int
    slots: int
    step_ms: float
    spread: tuple[float, float]
    slots_per_ms: float
    active_per_ms: float
    memory_gib: float | None
    floor_ms: float
    share: float
    first_s: float
    loss: float


def gpu_cases() -> list[TrainCase]:
    """The paper's table of training throughput at its sizes, and both processes by block and by slide."""
    epsilon = recipes.get("owt-epsilon-block256")
    slide = replace(epsilon, schedules=(MixtureMember("slide", 256),))
    return [
        TrainCase("AR", recipes.get("owt-ar"), 64),
        TrainCase("MDLM (absorbing, flat)", recipes.get("owt-mdlm"), 64),
        TrainCase("SEDD (absorbing scores, flat)", recipes.get("owt-sedd-absorb"), 64),
        TrainCase("epsilon, block 256, aligned", epsilon, 32),
        TrainCase("epsilon, block 256, aligned, one window a row", replace(epsilon, doubled=False), 64),
        TrainCase("epsilon, slide 256, aligned", slide, 32),
        TrainCase("gamma, block 256, aligned", recipes.get("owt-gamma-block256-clean"), 32),
        TrainCase("gamma, slide 256, aligned", recipes.get("owt-gamma-slide256-clean"), 32),
        TrainCase("gamma, block 256, shifted", recipes.get("owt-gamma-block256-shifted-clean"), 32),
    ]


def cpu_cases() -> list[TrainCase]:
    """The same cases at a size that a CPU can do."""
    model = ModelSettings(layers=2, width=128, heads=4)
    found = []
    for case in gpu_cases():
        members = tuple(replace(m, width=None if m.width is None else 16) for m in case.recipe.schedules)
        size = replace(model, conditioned=case.recipe.model.conditioned)
        recipe = replace(case.recipe, length=64, model=size, schedules=members, compile=False)
        found.append(TrainCase(case.label.replace("256", "16"), recipe, case.batch // 8))
    return found


def make_stepper(case: TrainCase, vocab_size: int, device: torch.device, *, backend: str | None = None) -> Stepper:
    """The trainer's step for a case, on random rows. Without dropout, which no table here has."""
    model = replace(case.recipe.model, dropout=0.0)
    recipe = replace(case.recipe, model=model, global_batch=case.batch, micro_batch=case.batch)
    torch.manual_seed(0)
    denoiser = Denoiser(DenoiserConfig(vocab_size=vocab_size, **asdict(model)))
    process = recipe.process.build(vocab_size)
    tokens = np.random.default_rng(0).integers(0, vocab_size, (4 * case.batch, recipe.length))
    batches = Batches(recipe, Rows(tokens), process, bos_id=0, device=device)
    return Stepper(recipe, denoiser, process, batches, World(0, 1, device), backend=backend)


def time_training(
    case: TrainCase, *, vocab_size: int, steps: int, device: torch.device, ceiling: Ceiling, backend: str | None
) -> TrainRow:
    """The median over `steps` steps, after the first ones."""
    torch.compiler.reset()
    stepper = make_stepper(case, vocab_size, device, backend=backend)
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    first = seconds(stepper.step, device)
    for _ in range(steps):  # every mask of these steps is made now, as in a long run it has been
        stepper.step()
    stepper.rewind()
    done = stepper.step()
    times = [seconds(stepper.step, device) for _ in range(steps)]
    batch = stepper.batches.at(torch.arange(case.batch), global_batch=case.batch)
    row = count_row(batch.slots.layout, settled_loss=batch.settled is not None)
    model = stepper.state.model
    floor = ceiling.floor(step_work(model.config, row, rows=case.batch, parameters=model.num_parameters))
    median = statistics.median(times)
    memory = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None
    return TrainRow(
        label=case.label,
        batch=case.batch,
        slots=row.slots,
        step_ms=1e3 * median,
        spread=(1e3 * min(times), 1e3 * max(times)),
        slots_per_ms=done.slots / median / 1e3,
        active_per_ms=done.active_tokens / median / 1e3,
        memory_gib=memory,
        floor_ms=1e3 * floor,
        share=floor / median,
        first_s=first,
        loss=done.loss,
    )
