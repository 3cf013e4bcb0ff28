"""Slots that share a noise level, so that a network works out what follows from it once.

Levels are in the order of the slots; runs say how many slots each serves, as groups of (levels, slots each).
"""

import math

import torch
from torch import Tensor

Runs = tuple[tuple[int, int], ...]


def spread(table: Tensor, runs: Runs) -> Tensor:
    """Rows of a table [batch, levels, width] repeated for the slots that they serve: [batch, slots, width].

    One level for all slots stays one row, [batch, 1, width].
    """
    if table.shape[1] == 1:
        return table
    parts = table.split([levels for levels, _ in runs], dim=1)
    sizes = (each for _, each in runs)
    return torch.cat(
        [part.unsqueeze(2).expand(-1, -1, each, -1).flatten(1, 2) for part, each in zip(parts, sizes, strict=True)],
        dim=1,
    )


def levels_of(token: Tensor, settled: int) -> tuple[Tensor, Runs]:
    """Levels and runs of slots whose times are those of `token` [slots]: one for the settled, then runs of one size."""
    active = token[settled:]
    first, runs = (token[:1], ((1, settled),)) if settled else (token[:0], ())
    if not len(active):
        return first, runs
    starts = torch.cat([torch.tensor([True]), active[1:] != active[:-1]]).nonzero().flatten().tolist()
    each = math.gcd(*starts, len(active))
    return torch.cat([first, active[::each]]), (*runs, (len(active) // each, each))
