"""Slots that share a noise level, so that a network works out what follows from it once.

Levels are in the order of the slots; runs say how many slots each serves, as groups of (levels, slots each).
"""

import math
from collections.abc import Callable

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


def apply_levels(
    work: Callable[..., Tensor], features: tuple[Tensor, ...], tables: tuple[Tensor, ...], runs: Runs
) -> Tensor:
    """`work(*features, *tables)`, features [batch, slots, width] and tables [batch, levels, width], run by run.

    The rows of a table are broadcast over the slots that they serve and never spread out: neither memory nor, in the
    backward pass, sums with conflicts.
    """
    if tables[0].shape[1] == 1:
        return work(*features, *tables)
    done, slot, level = [], 0, 0
    for levels, each in runs:
        parts = (x[:, slot : slot + levels * each].unflatten(1, (levels, each)) for x in features)
        rows = (table[:, level : level + levels].unsqueeze(2) for table in tables)
        done.append(work(*parts, *rows).flatten(1, 2))
        slot, level = slot + levels * each, level + levels
    return done[0] if len(done) == 1 else torch.cat(done, dim=1)


def levels_of(token: Tensor, settled: int) -> tuple[Tensor, Runs]:
    """Levels and runs of slots whose times are those of `token` [slots]: one for the settled, then runs of one size."""
    active = token[settled:]
    first, runs = (token[:1], ((1, settled),)) if settled else (token[:0], ())
    if not len(active):
        return first, runs
    starts = torch.cat([torch.tensor([True]), active[1:] != active[:-1]]).nonzero().flatten().tolist()
    each = math.gcd(*starts, len(active))
    return torch.cat([first, active[::each]]), (*runs, (len(active) // each, each))
