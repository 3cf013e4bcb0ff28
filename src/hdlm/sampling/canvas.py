"""What generation starts from: tokens that are given, and places to be filled."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hdlm.sampling.dice import START, Dice
from hdlm.theory.process import Process
from hdlm.theory.random import uniform_token


@dataclass(frozen=True)
class Canvas:
    """Rows of tokens [batch, length] of which those in `given` [batch, length] never change.

    `starts`: per row, where the schedule's first position lies. Everything before it is given and settled; what is
    given after it lies inside a window, among the noise.
    """

    tokens: Tensor
    given: Tensor
    starts: tuple[int, ...]

    @property
    def batch(self) -> int:
        """Number of rows."""
        return self.tokens.shape[0]

    @property
    def length(self) -> int:
        """Positions, given ones included; rows with a shorter start leave the last ones unused."""
        return self.tokens.shape[1]


def canvas_of(
    rows: Sequence[Sequence[int | None]],
    starts: Sequence[int],
    process: Process,
    dice: Dice,
    *,
    device: torch.device | str = "cpu",
) -> Canvas:
    """A canvas of rows in which None is to be filled.

    Empty places hold MASK, or where the process never masks a token of its prior.
    """
    width = max(len(row) for row in rows)
    values = torch.tensor([[-1 if x is None else x for x in [*row, *[None] * (width - len(row))]] for row in rows])
    values = values.to(device)
    given = values >= 0
    if process.starts_masked:
        assert process.mask_id is not None
        empty = torch.full_like(values, process.mask_id)
    else:
        # Chance goes by the place within the schedule, so that a row's text does not depend on its neighbours.
        index = torch.arange(width, device=values.device)
        shift = torch.tensor(starts, device=values.device).unsqueeze(1)
        u = dice.throw(START, 0, index).gather(1, (index - shift).clamp(min=0))
        empty = uniform_token(u, process.vocab_size)
    return Canvas(torch.where(given, values, empty), given, tuple(starts))
