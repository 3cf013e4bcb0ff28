"""Chance, drawn ahead: all that a stretch of steps needs and that no network has a say in.

Times, the uniforms that decide what happens where, and the probabilities of staying are worked out for many steps at
once, since none of them depends on what the network will say.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hdlm.sampling.dice import EVENT, Dice
from hdlm.theory.hyperschedule import Step
from hdlm.theory.process import Process

MOST_STEPS, _MOST_NUMBERS = 64, 2**23


@dataclass(frozen=True)
class Stretch:
    """Consecutive steps and what may happen in them, over the positions `first`, ..., `first` + P - 1 of the schedule.

    `inside` [steps, 1, P]: which positions a step works on. `t`, `s` [steps, 1, P], float64: times before and after
    (both 1 outside). `event` [steps, batch, P]: the uniforms that decide whether something happens to a place.
    `stay_masked`, `stay_token` [steps, 1, P]: the probability that MASK stays from t to s, and the least probability
    that a token does, whatever the network says.
    """

    steps: tuple[Step, ...]
    first: int
    inside: Tensor
    t: Tensor
    s: Tensor
    event: Tensor
    stay_masked: Tensor
    stay_token: Tensor

    @property
    def width(self) -> int:
        """P, how many positions it is about."""
        return self.t.shape[-1]

    def one_by_one(self) -> Iterator["Stretch"]:
        """Its steps as stretches of their own, each over its own window."""
        for number, step in enumerate(self.steps):
            window = slice(step.start - self.first, step.stop - self.first)
            parts = {
                name: value[number : number + 1, :, window]
                for name, value in vars(self).items()
                if isinstance(value, Tensor)
            }
            yield replace(self, steps=(step,), first=step.start, **parts)


def look_ahead(steps: Iterable[Step], process: Process, dice: Dice, *, max_level: int) -> Iterator[Stretch]:
    """The steps with their chances, a stretch at a time; the steps of one window stay together if they are not many."""
    stretch: list[Step] = []
    for step in steps:
        first = stretch[0].start if stretch else step.start
        numbers = (len(stretch) + 1) * (step.stop - first) * dice.batch
        moved = not stretch or (step.start, step.stop) != (stretch[-1].start, stretch[-1].stop)
        if stretch and (numbers > _MOST_NUMBERS or (moved and len(stretch) >= MOST_STEPS)):
            yield _draw(stretch, process, dice, max_level)
            stretch = []
        stretch.append(step)
    if stretch:
        yield _draw(stretch, process, dice, max_level)


def _draw(steps: list[Step], process: Process, dice: Dice, max_level: int) -> Stretch:
    first, stop = min(step.start for step in steps), max(step.stop for step in steps)
    levels = torch.full((2, len(steps), 1, stop - first), max_level, dtype=torch.float64)
    inside = torch.zeros(len(steps), 1, stop - first, dtype=torch.bool)
    for row, step in enumerate(steps):
        window = slice(step.start - first, step.stop - first)
        levels[0, row, 0, window], levels[1, row, 0, window] = step.levels, step.next_levels
        inside[row, 0, window] = True
    t, s = (levels / max_level).to(dice.device)
    positions = torch.arange(first, stop, device=dice.device)
    numbers = torch.tensor([step.index for step in steps], device=dice.device)
    masked = torch.ones_like(t, dtype=torch.bool)
    return Stretch(
        tuple(steps),
        first,
        inside.to(dice.device),
        t,
        s,
        dice.throw(EVENT, numbers.view(-1, 1, 1), positions),
        process.certain_stay(masked, s=s, t=t),
        process.certain_stay(~masked, s=s, t=t),
    )
