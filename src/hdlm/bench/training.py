"""Training steps timed: the real step of the real trainer, on random tokens, one case after the other."""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch

from hdlm import recipes
from hdlm.bench.roofline import Ceiling, step_work, synchronize
from hdlm.data.packed import Rows
from hdlm.nn.config import DenoiserConfig
from hdlm.nn.transformer import Denoiser
from hdlm.recipe import MixtureMember, ModelSettings, Recipe
from hdlm.train.batch import Batches
from hdlm.train.distributed import World
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

    def to_json(self) -> dict:
        """All numbers by name."""
        return asdict(self)


def gpu_cases() -> list[TrainCase]:
    """The paper's table of training throughput at its sizes, and both processes by block and by slide."""
    epsilon = recipes.get("owt-epsilon-block256")
    slide = replace(epsilon, schedules=(MixtureMember("slide", 256),))
    return [
        TrainCase("AR", recipes.get("owt-ar"), 64),
        TrainCase("MDLM (absorbing, flat)", recipes.get("owt-mdlm"), 64),
        TrainCase("SEDD (absorbing scores, flat)", recipes.get("owt-sedd-absorb"), 64),
        TrainCase("epsilon, block 256, aligned", epsilon, 32),
        TrainCase("epsilon, slide 256, aligned", slide, 32),
        TrainCase("gamma, block 256, aligned", recipes.get("owt-gamma-block256"), 32),
        TrainCase("gamma, slide 256, aligned", recipes.get("owt-gamma-slide256"), 32),
        TrainCase("gamma, block 256, shifted", recipes.get("owt-gamma-block256-shifted"), 32),
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


def time_training(
    cases: list[TrainCase], *, vocab_size: int, steps: int, device: torch.device, ceiling: Ceiling
) -> Iterator[TrainRow]:
    """A row per case: the median over `steps` steps, after the first three."""
    for case in cases:
        torch.compiler.reset()
        yield _time(case, vocab_size, steps, device, ceiling)


def make_stepper(case: TrainCase, vocab_size: int, device: torch.device) -> Stepper:
    """The trainer's step for a case, on random rows. Without dropout, which no table here has."""
    model = replace(case.recipe.model, dropout=0.0)
    recipe = replace(case.recipe, model=model, global_batch=case.batch, micro_batch=case.batch)
    torch.manual_seed(0)
    denoiser = Denoiser(DenoiserConfig(vocab_size=vocab_size, **asdict(model)))
    process = recipe.process.build(vocab_size)
    tokens = np.random.default_rng(0).integers(0, vocab_size, (4 * case.batch, recipe.length))
    batches = Batches(recipe, Rows(tokens), process, bos_id=0, device=device)
    return Stepper(recipe, denoiser, process, batches, World(0, 1, device))


def _time(case: TrainCase, vocab_size: int, steps: int, device: torch.device, ceiling: Ceiling) -> TrainRow:
    stepper = make_stepper(case, vocab_size, device)
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    first = _seconds(stepper.step, device)
    for _ in range(steps):  # every mask of these steps is made now, as in a long run it has been
        stepper.step()
    stepper.rewind()
    times, done = [], stepper.step()
    for _ in range(steps):
        times.append(_seconds(stepper.step, device))
    batch = stepper.batches.at(torch.arange(case.batch), global_batch=case.batch)
    head_slots = sum(part.x0.numel() for part in (batch.active, batch.settled) if part is not None)
    config = stepper.state.model.config
    work = step_work(
        config,
        slots=done.slots,
        pairs=case.batch * int(batch.slots.layout.mask().sum()),
        head_slots=head_slots,
        parameters=stepper.state.model.num_parameters,
    )
    seconds, floor = statistics.median(times), work.floor(ceiling)
    memory = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None
    return TrainRow(
        label=case.label,
        batch=case.batch,
        slots=batch.slots.token.shape[1],
        step_ms=1e3 * seconds,
        spread=(1e3 * min(times), 1e3 * max(times)),
        slots_per_ms=done.slots / seconds / 1e3,
        active_per_ms=done.active_tokens / seconds / 1e3,
        memory_gib=memory,
        floor_ms=1e3 * floor,
        share=floor / seconds,
        first_s=first,
        loss=done.loss,
    )


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    synchronize(device)
    began = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - began
