"""Right, refused, stopped or failed: what a case's exit status, output and files say."""

import re
import signal
from pathlib import PurePosixPath
from typing import Any

from fuzz.plan import Outcome, Verdict
from fuzz.sandbox import ASIDE

LONGEST_LINE = 600
_DIVERGED = "hdlm: training has diverged"  # which no look at a recipe tells; what there is of the run stays
WRONG = 71  # exit status of a case whose answer is wrong
_FRAME = re.compile(r'File "[^"]*?/((?:src/hdlm|hdlm|fuzz)/[^"]*)", line (\d+)')
# A refusal in these words was none: something further down choked.
_ACCIDENTS = (
    "not enough values to unpack", "too many values to unpack", "invalid literal for int()", "could not convert string",
    "cannot convert float", "math domain error", "arg is an empty sequence", "argument is empty", "embedded null",
    "surrogates not allowed", "Exceeds the limit", "zero-size array", "cannot reshape", "object is not",
    "unsupported operand", "operands could not be broadcast", "is ambiguous", "has no attribute", "unhashable",
    "must be called with a dataclass", "Out of range float values", "Buffer dtype mismatch",
)  # fmt: skip


def judge(plan: dict[str, Any], outcome: Outcome) -> Verdict:
    """The verdict on a case."""
    stderr = outcome.stderr
    if outcome.left_running:
        return Verdict("failed", "left a process running")
    if outcome.late:
        return Verdict("failed", f"did not end within its time{', not even when interrupted' * outcome.interrupted}")
    if outcome.status == -signal.SIGXCPU:
        return Verdict("failed", "took more processor time than it may")
    if outcome.status < 0:
        return Verdict("failed", f"died of signal {-outcome.status}", _last_frame(stderr))
    if outcome.status == WRONG:
        return Verdict("failed", f"wrong answer: {_last_line(stderr)}")
    if "Traceback (most recent call last)" in stderr:
        return Verdict("failed", f"traceback: {_last_line(stderr)}", _last_frame(stderr))
    if "Exception ignored" in stderr:
        return Verdict("failed", "an exception was ignored", _last_frame(stderr))
    stray = _stray(plan, outcome)
    if stray:
        return Verdict("failed", stray)
    if outcome.interrupted and outcome.status in (0, 130):
        if not plan["endless"]:
            return Verdict("failed", "did not end within its time, and was no endless work")
        return Verdict("stopped")
    if outcome.status == 2:
        return _refused(plan, stderr)
    if outcome.status != 0:
        return Verdict("failed", f"exit status {outcome.status}: {_last_line(stderr)}")
    if plan["expect"] == "refused":
        return Verdict("failed", "accepted what must be refused")
    return Verdict("right")


def _refused(plan: dict[str, Any], stderr: str) -> Verdict:
    """What was said before is progress; the refusal itself is the one last line."""
    if plan["expect"] == "right":
        return Verdict("failed", f"refused what is valid: {_last_line(stderr)}")
    lines = [line for line in stderr.split("\n") if line and not line.startswith("hdlm: note:")]
    line = lines[-1] if lines else ""
    if not re.match(r"hdlm[\w -]*: \S", line) or sum(one.startswith("hdlm") for one in lines) > 1:
        return Verdict("failed", f"refused in other than one line: {lines[-3:]!r}"[:LONGEST_LINE])
    if len(line) > LONGEST_LINE and not plan["called"]:
        return Verdict("failed", f"refused in a line of {len(line)} characters: {line[:60]!r} ...")
    accident = next((words for words in _ACCIDENTS if words in line), None)
    if accident is not None:
        return Verdict("failed", f"refused by accident: {line[:200]}")
    return Verdict("refused")


def _stray(plan: dict[str, Any], outcome: Outcome) -> str | None:
    """What changed that should not have."""
    for place in outcome.changed:
        path = PurePosixPath(place)
        if any(ASIDE.match(part) for part in path.parts):
            return f"left behind {place!r}"
        if _is_below(path, "home/cache") or path.parts[-2:] == ("trainer", "lock"):
            continue
        if outcome.status == 2 and _DIVERGED not in outcome.stderr:
            return f"refused, but changed {place!r}"
        if not any(_may_change(path, wanted) for wanted in plan["writes"]):
            return f"changed {place!r}, which nobody asked for"
    return None


def _may_change(path: PurePosixPath, wanted: str) -> bool:
    """Whether a change at `path` is part of writing `wanted`: it, what is in it, leads to it or is beside it."""
    target = PurePosixPath(wanted)
    beside = path.parent == target.parent and path.stem == target.stem
    return _is_below(path, wanted) or _is_below(target, str(path)) or beside


def _is_below(path: PurePosixPath, folder: str) -> bool:
    parts = PurePosixPath(folder).parts
    return path.parts[: len(parts)] == parts


def _last_line(stderr: str) -> str:
    lines = [line for line in stderr.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "(nothing said)"


def _last_frame(stderr: str) -> str:
    """The last line of hdlm's own code in a traceback."""
    frames = [(file, line) for file, line in _FRAME.findall(stderr) if "hdlm/" in file] or _FRAME.findall(stderr)
    return f"{frames[-1][0]}:{frames[-1][1]}" if frames else ""
