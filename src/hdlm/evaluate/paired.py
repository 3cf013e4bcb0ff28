"""One quantity of several contenders on the same units: values, and differences paired unit by unit.

A value is a ratio of sums over units (pieces of text, samples of one seed), its error by linearisation. What all
contenders find hard together does not enter the error of their difference. Knows no model and no text.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

SEEN = 2.0  # errors from which on a difference is seen


@dataclass(frozen=True)
class Difference:
    """`model` minus `against` in one measure, with the paired standard error (None: one unit only)."""

    measure: str
    model: str
    against: str
    value: float
    error: float | None

    @property
    def ratio(self) -> float | None:
        """The difference in errors, as of a paired t-test; None where there is no error to go by."""
        return self.value / self.error if self.error else None

    @property
    def words(self) -> str:
        """What can be said of it."""
        if self.error is None:
            return "no error known"
        if abs(self.value) <= SEEN * self.error:
            return "no difference seen"
        return "lower" if self.value < 0 else "higher"

    def to_json(self) -> dict[str, Any]:
        """All of it by name."""
        return vars(self) | {"ratio": self.ratio, "words": self.words}


@dataclass(frozen=True)
class Measure:
    """`sums` and `weights` [contenders, units] of a quantity whose value is the one over the other, over all units."""

    name: str
    unit: str
    models: tuple[str, ...]
    sums: np.ndarray
    weights: np.ndarray

    @classmethod
    def of(
        cls, name: str, unit: str, models: Sequence[str], sums: Sequence[Sequence[float]], weights: Sequence[Any]
    ) -> "Measure":
        """From lists; one list of weights is that of all contenders."""
        values = np.array(sums, dtype=np.float64)
        shares = np.broadcast_to(np.array(weights, dtype=np.float64), values.shape)
        return cls(name, unit, tuple(models), values, shares)

    @property
    def values(self) -> list[float]:
        """Each contender's value."""
        return (self.sums.sum(1) / self.weights.sum(1)).tolist()

    @property
    def errors(self) -> list[float | None]:
        """The standard error of each value over units."""
        return [self._error(residual) for residual in self._residuals()]

    def difference(self, number: int, against: int = 0) -> Difference:
        """One contender minus another, by their numbers."""
        values, residuals = self.values, self._residuals()
        error = self._error(residuals[number] - residuals[against])
        names = self.models[number], self.models[against]
        return Difference(self.name, *names, values[number] - values[against], error)

    def to_json(self) -> dict[str, Any]:
        """Values with errors, and the full matrix of differences: row minus column."""
        every = range(len(self.models))
        pairs = [[self.difference(row, column) for column in every] for row in every]
        return {
            "unit": self.unit,
            "units": self.sums.shape[1],
            "models": list(self.models),
            "values": self.values,
            "errors": self.errors,
            "differences": [[pair.value for pair in row] for row in pairs],
            "difference_errors": [[pair.error for pair in row] for row in pairs],
        }

    def _residuals(self) -> np.ndarray:
        """What each unit adds to the deviation of each value, [contenders, units]."""
        values = np.array(self.values)[:, None]
        return (self.sums - values * self.weights) / self.weights.sum(1, keepdims=True)

    def _error(self, residual: np.ndarray) -> float | None:
        count = len(residual)
        return math.sqrt(float(np.square(residual).sum()) * count / (count - 1)) if count > 1 else None
