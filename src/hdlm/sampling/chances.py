"""Chance, drawn ahead: all that a stretch of steps needs and that no network has a say in.

Times, the uniforms that decide what happens where, and the probabilities of staying are worked out for many steps at
once, since none of them depends on what the network will say.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from hdlm.sampling.dice import EVENT, TOKEN, Dice
from hdlm.theory.hyperschedule import Step
from hdlm.theory.process import Process

_MOST_STEPS, _MOST_NUMBERS = 64, 2**22


@dataclass(frozen=True)
class Chance:
    """One step's share: its window's positions [W], times t and s [W], float64, and what may happen there.

    `event`, `token` [batch, W]: the uniforms that decide whether something happens to a place, and which token it gets.
    `stay_masked`, `stay_token` [W]: the probability that MASK stays from t to s, and the least probability that a token
    does, whatever the network says.
    """

    step: Step
    positions: Tensor
    t: Tensor
    s: Tensor
    event: Tensor
    token: Tensor
    stay_masked: Tensor
    stay_token: Tensor


def look_ahead(steps: Iterable[Step], process: Process, dice: Dice, *, max_level: int) -> Iterator[Chance]:
    """The steps with their chances, a stretch at a time."""
    stretch: list[Step] = []
    for step in steps:
        first = stretch[0].start if stretch else step.start
        numbers = (len(stretch) + 1) * (step.stop - first) * dice.batch
        if stretch and (len(stretch) == _MOST_STEPS or numbers > _MOST_NUMBERS):
            yield from _draw(stretch, process, dice, max_level)
            stretch = []
        stretch.append(step)
    if stretch:
        yield from _draw(stretch, process, dice, max_level)


def _draw(steps: list[Step], process: Process, dice: Dice, max_level: int) -> Iterator[Chance]:
    first, stop = min(step.start for step in steps), max(step.stop for step in steps)
    levels = torch.full((2, len(steps), stop - first), max_level, dtype=torch.float64)
    for row, step in enumerate(steps):
        window = slice(step.start - first, step.stop - first)
        levels[0, row, window], levels[1, row, window] = step.levels, step.next_levels
    t, s = (levels / max_level).to(dice.device)
    positions = torch.arange(first, stop, device=dice.device)
    numbers = torch.tensor([step.index for step in steps], device=dice.device)
    event, token = (dice.throw(purpose, numbers.view(-1, 1, 1), positions) for purpose in (EVENT, TOKEN))
    masked = torch.ones_like(t, dtype=torch.bool)
    stay_masked, stay_token = (process.certain_stay(state, s=s, t=t) for state in (masked, ~masked))
    for row, step in enumerate(steps):
        window = slice(step.start - first, step.stop - first)
        yield Chance(
            step,
            positions[window],
            t[row, window],
            s[row, window],
            event[row, :, window],
            token[row, :, window],
            stay_masked[row, window],
            stay_token[row, window],
        )
