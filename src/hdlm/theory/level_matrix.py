"""Matrices of levels as rows of integers, checked entry by entry: what is wrong is named by its row and column.

Without torch, so that a file of levels can be refused before anything heavy is loaded. `custom.py` makes schedules of
them.
"""

import itertools
import operator
from typing import Any

from hdlm.theory.numbers import shown

MAX_LEVEL = 10_000_000

Levels = tuple[tuple[int, ...], ...]


def check_levels(name: str, value: Any) -> Levels:
    """`value` [steps + 1][length] as tuples, refused unless it starts at its maximum, never rises and ends at 0."""
    rows = _integers(name, value)
    top, last = rows[0][0], len(rows) - 1
    if not 1 <= top <= MAX_LEVEL:
        raise ValueError(f"{name} starts at {shown(top)}: the first row must be one level in 1..{MAX_LEVEL} everywhere")
    for number, wanted, which in ((0, top, "first"), (last, 0, "last")):
        for column, level in enumerate(rows[number]):
            if level != wanted:
                place = f"row {number}, column {column}"
                raise ValueError(f"{name} holds {shown(level)} at {place}: the {which} row must be {wanted} everywhere")
    for number, (above, row) in enumerate(itertools.pairwise(rows), start=1):
        if row != above and any(map(operator.gt, row, above)):
            column = next(i for i, (now, after) in enumerate(zip(above, row, strict=True)) if after > now)
            now, after = shown(above[column]), shown(row[column])
            place = f"row {number}, column {column}"
            raise ValueError(f"{name} rises from {now} to {after} at {place}: levels may never rise")
    return rows


def _integers(name: str, value: Any) -> Levels:
    """The rows, all equally long, of integers alone."""
    rows = [row.tolist() if hasattr(row, "tolist") else row for row in value] if isinstance(value, list | tuple) else []
    if len(rows) < 2 or not all(isinstance(row, list | tuple) for row in rows) or not rows[0]:
        raise ValueError(f"{name} is not a matrix of levels: it must be at least two rows, [steps + 1][length]")
    found = []
    for number, row in enumerate(rows):
        if len(row) != len(rows[0]):
            raise ValueError(f"{name} has {len(row)} columns in row {number}: it must have {len(rows[0])} as in row 0")
        found.append(tuple(row) if all(type(level) is int for level in row) else _converted(name, number, row))
    return tuple(found)


def _converted(name: str, number: int, row: Any) -> tuple[int, ...]:
    """A row whose integers may be of another kind than Python's own."""
    found = []
    for column, level in enumerate(row):
        try:
            if isinstance(level, bool):
                raise TypeError
            found.append(operator.index(level))
        except TypeError:
            place = f"row {number}, column {column}"
            raise ValueError(f"{name} holds {shown(level)} at {place}: it must be an integer") from None
    return tuple(found)
