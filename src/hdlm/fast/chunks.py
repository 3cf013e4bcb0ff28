"""Consecutive steps taken together, and all of their chances that no network has a say in.

Times, the uniforms that decide what happens where, and the probabilities of staying are worked out for many steps at
once, since none of them depends on what the network will say.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from hdlm.sampling.rng import EVENT, SampleRNG
from hdlm.sampling.rule import Times
from hdlm.theory.hyperschedule import Step
from hdlm.theory.process import Process

MAX_STEPS, _MAX_NUMBERS = 64, 2**23


@dataclass(frozen=True)
class StepChunk:
    """Consecutive steps over the positions `first`, ..., `first` + P - 1 of the schedule.

    `inside` [steps, 1, P]: which positions a step works on. `t`, `s` [steps, 1, P], float64: times before and after
    (both 1 outside), and in `times` what follows from them. `event` [steps, batch, P]: the uniforms that decide whether
    something happens to a position.
    """

    steps: tuple[Step, ...]
    first: int
    inside: Tensor
    t: Tensor
    s: Tensor
    event: Tensor
    times: Times

    @property
    def width(self) -> int:
        """P, how many positions it is about."""
        return self.t.shape[-1]


def look_ahead(steps: Iterable[Step], process: Process, rng: SampleRNG, *, max_level: int) -> Iterator[StepChunk]:
    """The steps with their chances, a chunk at a time; the steps of one window stay together if they are not many."""
    chunk: list[Step] = []
    for step in steps:
        first = chunk[0].start if chunk else step.start
        numbers = (len(chunk) + 1) * (step.stop - first) * rng.batch
        moved = not chunk or (step.start, step.stop) != (chunk[-1].start, chunk[-1].stop)
        if chunk and (numbers > _MAX_NUMBERS or (moved and len(chunk) >= MAX_STEPS)):
            yield _draw(chunk, process, rng, max_level)
            chunk = []
        chunk.append(step)
    if chunk:
        yield _draw(chunk, process, rng, max_level)


def _draw(steps: list[Step], process: Process, rng: SampleRNG, max_level: int) -> StepChunk:
    first, stop = min(step.start for step in steps), max(step.stop for step in steps)
    levels = torch.full((2, len(steps), 1, stop - first), max_level, dtype=torch.float64)
    inside = torch.zeros(len(steps), 1, stop - first, dtype=torch.bool)
    for row, step in enumerate(steps):
        window = slice(step.start - first, step.stop - first)
        levels[0, row, 0, window], levels[1, row, 0, window] = step.levels, step.next_levels
        inside[row, 0, window] = True
    t, s = (levels / max_level).to(rng.device)
    positions = torch.arange(first, stop, device=rng.device)
    numbers = torch.tensor([step.index for step in steps], device=rng.device)
    event = rng.uniform(EVENT, numbers.view(-1, 1, 1), positions)
    return StepChunk(tuple(steps), first, inside.to(rng.device), t, s, event, Times(process, s, t))
