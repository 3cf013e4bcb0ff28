"""A run's folder: whose it is, whether all processes see it, and what is told where it cannot be written.

Runs are begun again by whoever watches over them (torchrun's agents, Slurm, Kubernetes, a shell loop): the same command
goes on with the run that it has begun. Knows no network.
"""

import errno
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hdlm import weights
from hdlm.config.recipe import Recipe
from hdlm.files import remove_unfinished
from hdlm.folders import is_there, regular_file
from hdlm.processes import World
from hdlm.train.state import checkpoints

_SEEN_WITHIN = 90.0  # seconds in which a file shows on another node: network file systems remember for a minute


def is_restarted() -> bool:
    """Whether torchrun has started these processes before, and they did not come to their end."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") not in ("", "0")


def recipe_of(run: Path) -> Recipe:
    """The recipe of the run in a folder."""
    if not (run / "trainer" / "recipe.json").exists():
        raise ValueError(f"{run} is not accepted: it holds no run (trainer/recipe.json is missing)")
    return Recipe.from_json(weights.read_json(run / "trainer" / "recipe.json"))


def check_same(recipe: Recipe, out: Path) -> None:
    """Refuse to go on with a run of another recipe. Where its data lies may change: what is read is compared later."""
    theirs, ours = vars(recipe_of(out)), vars(recipe)
    for name in sorted(ours.keys() - {"data"}):
        if theirs[name] != ours[name]:
            raise ValueError(
                f"out = {str(out)!r} is not accepted: it holds a run of another recipe, whose {name} differs; go on "
                f"with --resume {out}, or name another folder"
            )


@contextmanager
def told_of_the_disk(out: Path) -> Iterator[None]:
    """What the system does not let be written ends the run with the path, what is safe, and how to go on."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        saved = checkpoints(out)
        safe = f"the last good checkpoint is {saved[-1]}" if saved else "no checkpoint had been saved"
        begun = (out / "trainer" / "recipe.json").exists()
        way = f"go on with: hdlm train --resume {out}" if begun else "begin again"
        told = f"{error.strerror or error}; {safe}; when that is mended, {way}"
        raise OSError(error.errno or errno.EIO, told, error.filename or str(out)) from error


@contextmanager
def held(out: Path, world: World) -> Iterator[None]:
    """Hold the run's folder, seen by all its processes, against others that would write the same files."""
    path = out / "trainer" / "lock"
    if not world.is_main:
        _check_seen(path, world)
        yield
        return
    (out / "trainer").mkdir(parents=True, exist_ok=True)
    if is_there(path):
        regular_file(path)  # a pipe would be waited for
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666)) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(f"{out} is not accepted: another process is training there") from None
        remove_unfinished(path.parent)
        _check_seen(path, world)
        yield


def _check_seen(path: Path, world: World) -> None:
    """Refuse a run whose processes do not all see the first one's `path`: each writes its shards beside it."""
    if world.size == 1:
        return
    token = world.from_main(secrets.token_hex(8))
    if world.is_main:
        path.write_text(token)
    until, seen = time.monotonic() + _SEEN_WITHIN, False
    world.barrier()
    while not (seen := seen or _holds(path, token)) and time.monotonic() < until:
        time.sleep(0.2)
    if world.any(not seen):
        raise ValueError(
            f"{path.parent} is not accepted: what the first process writes there is not seen by all {world.size}; a "
            "run's folder must lie on a file system that all nodes share"
        )


def _holds(path: Path, text: str) -> bool:
    try:
        return path.read_text() == text
    except OSError:
        return False
