"""How far a command is, shown on standard error."""

import sys
import time
from collections.abc import Callable
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hdlm.errors import UnwrittenError

T = TypeVar("T")
PAUSE = 15.0  # seconds between two lines of progress where there is no terminal


def progress_bar(*, quiet: bool) -> Progress:
    """A bar that goes away when all is done; nothing is shown where `quiet`, or where there is no terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal)


def told(work: Callable[[Callable[[str, int, int], None]], T], *, quiet: bool) -> tuple[T, UnwrittenError | None]:
    """What work comes to, which tells how far it is (what, done, total), and what of it could not be written.

    Shown as a bar; where there is no terminal, as a line now and then.
    """
    with progress_bar(quiet=quiet) as bar:
        task, spoken = bar.add_task("", total=1), time.monotonic()

        def tell(what: str, done: int, total: int) -> None:
            nonlocal spoken
            bar.update(task, description=what, completed=done, total=total)
            if bar.disable and not quiet and time.monotonic() - spoken > PAUSE:
                print(f"{what}: {done:,} of {total:,}", file=sys.stderr, flush=True)
                spoken = time.monotonic()

        try:
            return work(tell), None
        except UnwrittenError as error:
            return error.result, error
