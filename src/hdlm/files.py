"""Writing so that a reader never finds half of anything: written aside, then renamed into place."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written_aside(path: str | Path) -> Iterator[Path]:
    """A temporary path beside `path`, of the same suffix, that takes its place when the block ends well."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        yield aside
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


@contextmanager
def folder_written_aside(folder: str | Path, *, replace: bool = True) -> Iterator[Path]:
    """The same for a folder: an empty one beside it takes its place, and with `replace` that of one that was there.

    Without, a folder that another process has put there meanwhile stays.
    """
    folder = Path(folder)
    aside, old = (folder.with_name(f".{folder.name}.{kind}.{os.getpid()}") for kind in ("new", "old"))
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        yield aside
        if replace and folder.exists():
            os.rename(folder, old)
        try:
            os.rename(aside, folder)
        except OSError:
            if replace or not folder.exists():
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
