"""Checks of single numbers and words: each raises a `ValueError` that names the value and what is accepted.

Without torch, so that a recipe can be read and refused before anything heavy is loaded.
"""

import difflib
import math
import os
from collections.abc import Iterable
from typing import Any, TypeGuard, TypeVar

T = TypeVar("T")
LARGEST = 2**63 - 1  # what a tensor's integer can be
_LONGEST = 60  # characters of a value in a message


def shown(value: object) -> str:
    """A value as a message shows it: the middle of a very long one is left out."""
    text = repr(value)
    half = _LONGEST // 2
    return text if len(text) <= _LONGEST else f"{text[:half]}...{text[-half:]}"


def near(word: object, accepted: Iterable[str]) -> str:
    """What ends a refusal: the accepted word that looks most like this one; nothing where none does."""
    found = difflib.get_close_matches(str(word), list(accepted), n=1)
    return f"; did you mean {found[0]}?" if found else ""


def integer(name: str, value: object, *, low: int, high: int | None = None) -> int:
    """`value` as an int, refused unless it is a whole number in `low..high` (the largest of a tensor if None)."""
    most = LARGEST if high is None else high
    if isinstance(value, int) and not isinstance(value, bool):
        if low <= value <= most:
            return value
        high = most if value > most else high
    accepted = f"an integer >= {low}" if high is None else f"an integer in {low}..{high}"
    raise ValueError(f"{name} = {shown(value)} is not accepted: it must be {accepted}")


def is_number(value: Any) -> bool:
    """Whether it is a finite number, and not so large that no float holds it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= LARGEST if isinstance(value, int) else math.isfinite(value)


def is_whole(value: Any) -> TypeGuard[int]:
    """Whether it is an integer that a count can be."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST


def fraction(name: str, value: Any) -> float:
    """`value` as a float, refused outside [0, 1]."""
    if not is_number(value) or not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} = {shown(value)} is not accepted: it must be a number in [0, 1]")
    return float(value)


def positive(name: str, value: Any, *, zero: bool = False) -> float:
    """`value` as a float, refused unless it is finite and above 0 (or 0 itself, with `zero`)."""
    if not is_number(value) or value < 0 or (value == 0 and not zero):
        raise ValueError(
            f"{name} = {shown(value)} is not accepted: it must be a finite number {'>= 0' if zero else 'above 0'}"
        )
    return float(value)


def instance(name: str, value: object, kind: type[T]) -> T:
    """`value` itself, refused unless it is of the given kind."""
    if not isinstance(value, kind):
        raise ValueError(f"{name} = {shown(value)} is not accepted: it must be a {kind.__name__}")
    return value


def fits_memory(what: str, size: float) -> None:
    """Refuse what takes more bytes than this machine has, before they are asked for."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > there:
        raise ValueError(
            f"{what} would take {size / 2**30:,.0f} GiB of memory, and this machine has {there / 2**30:,.0f}"
        )


def function(name: str, value: object) -> None:
    """Refuse what cannot be called."""
    if not callable(value):
        raise ValueError(f"{name} = {shown(value)} is not accepted: it must be a function")


def boolean(name: str, value: object) -> bool:
    """`value` itself, refused unless it is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} = {shown(value)} is not accepted: it must be true or false")
    return value


def text(name: str, value: object) -> str:
    """`value` itself, refused unless it is a str of whole characters."""
    try:
        instance(name, value, str).encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} = {shown(value)} is not accepted: it is no valid Unicode") from None
    return str(value)


def choice(name: str, value: object, accepted: Iterable[str]) -> str:
    """`value` itself, refused unless it is one of the accepted words."""
    words = list(accepted)
    if not isinstance(value, str) or value not in words:
        raise ValueError(
            f"{name} = {shown(value)} is not accepted: it must be one of {', '.join(words)}{near(value, words)}"
        )
    return value
