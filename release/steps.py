"""A list of checks, done in order: a row of a table each, and an end at the first that fails.

A check is a function that gives back what it saw, in a few words, or raises `FailedError`. Knows nothing of what is
checked.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

Check = Callable[[], str]


class FailedError(Exception):
    """What is wrong, in one line."""


def go_through(checks: Mapping[str, Check]) -> int:
    """Do the checks and print the table as it grows; the exit code."""
    width = max(map(len, checks))
    for name, check in checks.items():
        print(f"{name:<{width}}  ", end="", flush=True)
        begun = time.perf_counter()
        try:
            said = check()
        except FailedError as error:
            print(f"FAILED {time.perf_counter() - begun:7.1f} s", flush=True)
            print(f"{name}: {' '.join(str(error).split())[:500]}", file=sys.stderr)
            return 1
        print(f"ok     {time.perf_counter() - begun:7.1f} s  {said}", flush=True)
    return 0


def output(
    command: Sequence[str | Path],
    *,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    code: int = 0,
    errors: bool = False,
) -> str:
    """Standard output (or error) of a command that ends with `code`; else the last line that it said is what failed."""
    words = [str(word) for word in command]
    try:
        shown = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    except OSError as error:
        raise FailedError(f"{words[0]}: {error.strerror}") from None
    if shown.returncode != code:
        lines = [line for line in (shown.stdout + shown.stderr).splitlines() if line.strip()]
        said = lines[-1] if lines else "it said nothing"
        raise FailedError(f"`{' '.join(words)}` ended with {shown.returncode} instead of {code}: {said}")
    return shown.stderr if errors else shown.stdout
