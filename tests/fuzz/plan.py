"""What one case does: a command line or a call, and all that a judge has to know about it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass
class Plan:
    """One case.

    `argv`: words for the command line; or `call`, which gives a result or raises. `check` is asked about what came of
    it, the text on standard output or the result, and raises AssertionError where that is wrong. `expect`: "right" or
    "refused" where only one of them is correct. `writes`: the only paths that may change. `endless`: the work asked for
    may have no end, so that an interrupt is sent; what it stops must stop cleanly.
    """

    title: str
    argv: list[str] | None = None
    call: Callable[[], Any] | None = None
    check: Callable[[Any], None] | None = None
    expect: str | None = None
    writes: tuple[str, ...] = ()
    endless: bool = False

    def to_json(self) -> dict[str, Any]:
        """What can leave the process."""
        kept = {name: getattr(self, name) for name in ("title", "argv", "expect", "writes", "endless")}
        return kept | {"called": self.call is not None}


@dataclass(frozen=True)
class Outcome:
    """What became of a case's process. `status`: of its exit, negative for a signal; `late`: it had to be killed."""

    status: int
    late: bool
    interrupted: bool
    seconds: float
    stdout: str
    stderr: str
    changed: tuple[str, ...] = ()
    left_running: bool = False


@dataclass(frozen=True)
class Verdict:
    """`kind`: right, refused, stopped or failed; then `why`, and `where` in the code, if a line is to blame."""

    kind: str
    why: str = ""
    where: str = ""
