"""Checks of single numbers and words: each raises a `ValueError` that names the value and what is accepted.

Without torch, so that a recipe can be read and refused before anything heavy is loaded.
"""

import math
from collections.abc import Iterable
from typing import Any, TypeVar

T = TypeVar("T")


def integer(name: str, value: object, *, low: int, high: int | None = None) -> int:
    """`value` as an int, refused unless it is a whole number in `low..high` (no upper end if None)."""
    accepted = f"an integer in {low}..{high}" if high is not None else f"an integer >= {low}"
    if isinstance(value, int) and not isinstance(value, bool) and low <= value and (high is None or value <= high):
        return value
    raise ValueError(f"{name} = {value!r} is not accepted: it must be {accepted}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def fraction(name: str, value: Any) -> float:
    """`value` as a float, refused outside [0, 1]."""
    if not _is_number(value) or not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} = {value!r} is not accepted: it must be a number in [0, 1]")
    return float(value)


def positive(name: str, value: Any, *, zero: bool = False) -> float:
    """`value` as a float, refused unless it is finite and above 0 (or 0 itself, with `zero`)."""
    if not _is_number(value) or not 0 <= value < math.inf or (value == 0 and not zero):
        raise ValueError(
            f"{name} = {value!r} is not accepted: it must be a finite number {'>= 0' if zero else 'above 0'}"
        )
    return float(value)


def instance(name: str, value: object, kind: type[T]) -> T:
    """`value` itself, refused unless it is of the given kind."""
    if not isinstance(value, kind):
        raise ValueError(f"{name} = {value!r} is not accepted: it must be a {kind.__name__}")
    return value


def boolean(name: str, value: object) -> bool:
    """`value` itself, refused unless it is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} = {value!r} is not accepted: it must be true or false")
    return value


def choice(name: str, value: object, accepted: Iterable[str]) -> str:
    """`value` itself, refused unless it is one of the accepted words."""
    words = list(accepted)
    if not isinstance(value, str) or value not in words:
        raise ValueError(f"{name} = {value!r} is not accepted: it must be one of {', '.join(words)}")
    return value
