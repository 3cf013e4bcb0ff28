"""How errors are told: those of others in one line, those of writing after the result that was to be written."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def first_line(error: BaseException) -> str:
    """The first line of what an error says, or its kind where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


class NotFiniteError(ValueError):
    """A network's outputs, or the losses of a run, are no finite numbers."""


class UnwrittenError(Exception):
    """What was found, `result`, could not be written: the message names each path and says why."""

    def __init__(self, message: str, result: Any = None) -> None:
        super().__init__(message)
        self.result = result


class Outputs:
    """The files that one piece of work writes, of which any may fail without costing the result."""

    def __init__(self) -> None:
        self._failed: dict[Path, str] = {}

    @contextmanager
    def writing(self, path: Path) -> Iterator[None]:
        """Note an error of the block instead of raising it, until the same path has been written all the same."""
        try:
            yield
        except OSError as error:
            self._failed[path] = f"{path}: {error.strerror or first_line(error)}"
        except ValueError as error:
            self._failed[path] = first_line(error)
        else:
            self._failed.pop(path, None)

    def has(self, path: Path) -> bool:
        """Whether nothing went wrong with a path."""
        return path not in self._failed

    def tell(self, result: Any = None) -> None:
        """Raise what was noted, with the result in hand."""
        if self._failed:
            raise UnwrittenError(f"not written: {'; '.join(self._failed.values())}", result)


@contextmanager
def outputs() -> Iterator[Outputs]:
    """The files of a block that shows its result whatever becomes of them: told in the end, however the block ends."""
    found = Outputs()
    try:
        yield found
    finally:
        found.tell()
