"""Hyperschedules from any matrix of levels, for sampling."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from hdlm.theory.hyperschedule import Hyperschedule, Step, measured_width


class Custom(Hyperschedule):
    """Any matrix of levels [steps + 1, length]: all at max_level first, all at 0 last, never rising.

    For sampling only. Where the settled positions are not a prefix it runs as one window without a cache. Rows that
    repeat the one before count as steps (`rate` is length / steps) but need no network call: `walk` passes over them.
    """

    kind = "custom"

    def __init__(self, levels: Tensor | Sequence[Sequence[int]]) -> None:
        try:
            matrix = torch.as_tensor(levels)
        except (ValueError, TypeError, RuntimeError) as error:
            raise ValueError(f"levels is not a matrix of integers [steps + 1, length]: {error}") from None
        if matrix.ndim != 2 or matrix.shape[0] < 2 or matrix.shape[1] < 1:
            raise ValueError(f"levels has shape {tuple(matrix.shape)}: it must be [steps + 1, length], steps >= 1")
        if matrix.is_floating_point() or matrix.is_complex() or matrix.dtype == torch.bool:
            raise ValueError(f"levels is {matrix.dtype}: it must hold integers")
        self._levels = matrix.long().clone()
        self.length = matrix.shape[1]
        self.max_level = int(matrix[0, 0])
        self._validate()
        self._width = measured_width(self._levels)
        self._in_order = bool(((self._levels == 0).long().diff(dim=1) <= 0).all())
        self.has_prefix = self._in_order and bool((self._levels[:-1] == 0).any())

    def __repr__(self) -> str:
        return f"Custom(length={self.length}, steps={self.steps}, max_level={self.max_level})"

    def _identity(self) -> tuple[Any, ...]:
        return tuple(map(tuple, self._levels.tolist()))

    def _validate(self) -> None:
        levels, top = self._levels, self.max_level
        if top < 1:
            raise ValueError(f"levels starts at {top}: the first row must be max_level >= 1 everywhere")
        for row, wanted, name in ((levels[0], top, "first"), (levels[-1], 0, "last")):
            wrong = (row != wanted).nonzero()
            if len(wrong):
                i = int(wrong[0])
                raise ValueError(f"levels holds {row[i].item()} at position {i} of the {name} row: it must be {wanted}")
        rises = (levels[1:] > levels[:-1]).nonzero()
        if len(rises):
            step, i = rises[0].tolist()
            now, after = levels[step, i].item(), levels[step + 1, i].item()
            raise ValueError(f"levels rises from {now} to {after} at step {step}, position {i}: levels may never rise")

    @property
    def levels(self) -> Tensor:
        return self._levels

    @property
    def steps(self) -> int:
        return self._levels.shape[0] - 1

    @property
    def width(self) -> int:
        return self._width

    @property
    def rate(self) -> float:
        return self.length / self.steps

    def walk(self) -> Iterator[Step]:
        for index in range(self.steps):
            if torch.equal(self._levels[index], self._levels[index + 1]):
                continue
            start, stop = 0, self.length
            if self._in_order:
                settled, active, _ = self.partition(index)
                start = int(settled.sum())
                stop = int(active.nonzero().max()) + 1
            yield Step(index, start, stop, self._levels[index, start:stop], self._levels[index + 1, start:stop])
