"""How much of all that there is to read has been read: bytes of files, or rows. Knows nothing of what they hold."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


def _nothing() -> int:
    return 0


@dataclass
class Meter:
    """`done` of `total`, and how far the file is that is open; a total of 0 is not known."""

    total: int = 0
    done: int = 0
    position: Callable[[], int] = _nothing

    @property
    def share(self) -> float | None:
        """The part that has been read, where that is known."""
        return min(1.0, (self.done + self.position()) / self.total) if self.total else None

    @contextmanager
    def following(self, position: Callable[[], int], size: int) -> Iterator[None]:
        """Count a file of this size as far as it is read, and all of it in the end."""
        self.position = position
        try:
            yield
        finally:
            self.position, self.done = _nothing, self.done + size
