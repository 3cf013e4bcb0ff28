"""Cases that are wrong in every way that the judge knows, and a few that are right: does it see the difference?"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from fuzz import server
from fuzz.plan import Plan
from fuzz.sandbox import Box
from hdlm.cli import main as command_line


def _say(status: int, *, out: str = "", err: str = "") -> Callable[[], int]:
    """A command that says something and ends."""

    def act() -> int:
        print(out, end="")
        print(err, end="", file=sys.stderr)
        return status

    return act


def _write(name: str, status: int = 0) -> Callable[[], int]:
    def act() -> int:
        Path(name).write_text("x")
        return _say(status, err="hdlm: no\n" * (status == 2))()

    return act


def _raise(error: BaseException) -> Callable[[], int]:
    def act() -> int:
        raise error

    return act


def _hang(*, deaf: bool) -> int:
    if deaf:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    time.sleep(60)
    return 0


def _leave_a_process() -> int:
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
    return 0


def _die() -> int:
    os.kill(os.getpid(), signal.SIGSEGV)
    return 0


def _fill_memory() -> int:
    return len(bytearray(2 * server.MEMORY))


def _never(text: str) -> None:
    raise AssertionError(f"{text!r} is no answer")


# What is done, what is known of it, and the verdict: its kind, and a part of why.
PLANTED: dict[str, tuple[Callable[[], int], dict, str, str]] = {
    "right": (_say(0, out="yes"), {}, "right", ""),
    "refusal": (_say(2, err="hdlm: x = 3 is not accepted\n"), {}, "refused", ""),
    "refusal after notes": (_say(2, err="hdlm: note: slow\nstep 1\nhdlm: no\n"), {}, "refused", ""),
    "endless, stopped": (lambda: _hang(deaf=False), {"endless": True}, "stopped", ""),
    "asked to write": (_write("new.txt"), {"writes": ("up/work/new.txt",)}, "right", ""),
    "cache": (lambda: _write(f"{os.environ['HDLM_CACHE']}/x")(), {}, "right", ""),
    "traceback": (_raise(KeyError("x")), {}, "failed", "traceback: KeyError"),
    "memory": (_fill_memory, {}, "failed", "traceback: MemoryError"),
    "status": (_say(1, err="hdlm: oh\n"), {}, "failed", "exit status 1"),
    "silent refusal": (_say(2), {}, "failed", "other than one line"),
    "two lines": (_say(2, err="hdlm: a\nb\n"), {}, "failed", "other than one line"),
    "long line": (_say(2, err=f"hdlm: {'x' * 700}\n"), {}, "failed", "a line of"),
    "accident": (_say(2, err="hdlm: math domain error\n"), {}, "failed", "by accident"),
    "signal": (_die, {}, "failed", "died of signal 11"),
    "hang": (lambda: _hang(deaf=False), {}, "failed", "no endless work"),
    "deaf hang": (lambda: _hang(deaf=True), {"endless": True}, "failed", "not even when interrupted"),
    "stray file": (_write("stray.txt"), {}, "failed", "which nobody asked for"),
    "stray file above": (_write("../../stray.txt"), {}, "failed", "which nobody asked for"),
    "half-written": (_write(".aside-0123abcd"), {"writes": ("up/work",)}, "failed", "left behind"),
    "refused and wrote": (_write("x", 2), {"writes": ("up/work/x",)}, "failed", "refused, but changed"),
    "changed input": (_write("input.txt"), {}, "failed", "changed 'up/work/input.txt'"),
    "wrong answer": (_say(0, out="no"), {"check": _never}, "failed", "'no' is no answer"),
    "accepted": (_say(0), {"expect": "refused"}, "failed", "accepted what must be refused"),
    "refused": (_say(2, err="hdlm: no\n"), {"expect": "right"}, "failed", "refused what is valid"),
    "left running": (_leave_a_process, {}, "failed", "left a process running"),
}


def run_all(top: Path) -> int:
    """Run them; prints a line of JSON each, and the exit status says whether all verdicts were as they should be."""
    server.ENDLESS_SECONDS, server.WALL_SECONDS, server.GRACE_SECONDS = 0.3, 2.0, 1.0
    good = True
    for number, (name, (act, known, kind, why)) in enumerate(PLANTED.items()):

        def make(box: Box, act=act, known=known, name=name) -> Plan:
            (box.work / "input.txt").write_text("input")
            command_line.main = lambda argv: act()
            return Plan(name, argv=[], **known)

        found = server.run(number, "planted", make, Box(top / f"case-{number}", top)).verdict
        seen = found.kind == kind and why in found.why
        good = good and seen
        print(json.dumps({"planted": name, "seen": seen, "kind": found.kind, "why": found.why}))
    return 0 if good else 1
