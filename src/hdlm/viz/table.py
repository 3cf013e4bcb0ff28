"""Rows of words and numbers as a table in a terminal."""

from collections.abc import Iterable, Sequence
from typing import Any

from rich.table import Table


def table(names: Sequence[str], rows: Iterable[Sequence[str]], *, words: int = 1, **style: Any) -> Table:
    """A table of which the first columns hold `words`, the others numbers; `style`: as of rich's."""
    shown = Table(**style)
    for column, name in enumerate(names):
        shown.add_column(name, justify="left" if column < words else "right")
    for row in rows:
        shown.add_row(*row)
    return shown


def formatted(columns: dict[str, str], rows: Iterable[dict[str, Any]], **style: Any) -> Table:
    """A table of rows that hold their numbers by name, each column a format of them."""
    return table(list(columns), [[form.format(**row) for form in columns.values()] for row in rows], **style)
