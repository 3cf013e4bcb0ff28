"""Writing so that a reader finds the old or the new, never half of it: written aside, then renamed into place.

Links are followed, and stay. What is no regular file (a pipe, a terminal, /dev/stdout) is written through. Errors of
the system name the path that was asked for. Knows no format but JSON.
"""

import errno
import json
import math
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_ASIDE = ".aside-"  # how the name of a folder of unfinished files begins
_PENDING = ".pending"  # a folder of finished files that all belong one level up


def json_text(data: Any, **style: Any) -> str:
    """JSON that every reader takes: a float that is no finite number is null. `style`: as of `json.dumps`."""
    try:
        return json.dumps(data, allow_nan=False, **style)
    except ValueError:
        return json.dumps(_finite(data), allow_nan=False, **style)


def _finite(data: Any) -> Any:
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {name: _finite(value) for name, value in data.items()}
    return [_finite(value) for value in data] if isinstance(data, list | tuple) else data


def check_file(path: str | Path) -> None:
    """Refuse a path that no file could be written to; leaves nothing there."""
    target = _target(Path(path))
    if target is not None:
        _check_writable(path, target.parent)


def check_folder(folder: str | Path) -> None:
    """Refuse a folder that nothing could be written into, be it there or to be made; leaves nothing there."""
    target = _resolved(Path(folder))
    if target.exists() and not target.is_dir():
        raise ValueError(f"{folder} is not accepted: it is a file, and a folder is to be written")
    _check_writable(folder, target)


def free_space(folder: str | Path) -> int:
    """Bytes that are free where a folder is, or will be."""
    return shutil.disk_usage(_first_there(_resolved(Path(folder)))).free


def entries(folder: str | Path) -> set[str]:
    """Names of all that a folder holds but for what interrupted writing left there; none of one that is not there."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return {name for name in names if not name.startswith(_ASIDE) and name != _PENDING}


def clear_aside(folder: str | Path) -> None:
    """Remove what interrupted writing left in a folder: only for who knows that nobody else is writing there."""
    for path in Path(folder).glob(f"{_ASIDE}*"):
        shutil.rmtree(path, ignore_errors=True)


def check_replaceable(folder: str | Path, names: Iterable[str]) -> None:
    """Refuse a folder in which one of the files to be written is a folder, which no file can take the place of."""
    for name in names:
        if os.path.isdir(Path(folder) / name):
            raise ValueError(f"{Path(folder) / name} is not accepted: it is a folder, and a file is to be written")


def is_written_through(path: str | Path) -> bool:
    """Whether a path is no regular file, so that all that is ever written there is read."""
    return _target(Path(path)) is None


@contextmanager
def written_aside(path: str | Path) -> Iterator[Path]:
    """A temporary path of the same name, whose file takes the place of `path` when the block ends well.

    It gets the mode of the file that it replaces. A path that is no regular file is copied into instead.
    """
    path = Path(path)
    target = _target(path)
    with _told_of(path):
        if target is None:
            with tempfile.TemporaryDirectory(prefix=_ASIDE) as folder:
                yield Path(folder, path.name)
                _copy_into(Path(folder, path.name), path)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        with _aside(target.parent, mode=0o700) as folder:
            new = folder / path.name
            yield new
            _settle(new, target, _fresh_mode(folder))
            os.replace(new, target)
        _sync(target.parent)


@contextmanager
def files_written_aside(folder: str | Path, *, without: Iterable[str] = ()) -> Iterator[Path]:
    """An empty folder whose files all come into `folder` together when the block ends well; names `without` go.

    Up to one rename all is as it was, from then on all is new: what is interrupted later is for `finish_writing`.
    """
    target = _resolved(Path(folder))
    with _told_of(folder):
        target.mkdir(parents=True, exist_ok=True)
        finish_writing(target)
        with _aside(target) as aside:
            new = aside / "new"
            new.mkdir()
            yield new
            for name in without:
                (new / name).mkdir()  # a folder stands for a file that is to go
            _settle_all(new, target)
            os.rename(new, target / _PENDING)
            _sync(target)
            finish_writing(target)


def finish_writing(folder: str | Path) -> None:
    """Bring in what `files_written_aside` was interrupted in: called before a folder that it writes is read."""
    folder = Path(folder)
    pending = folder / _PENDING
    if pending.is_symlink() or not pending.is_dir():  # a link could lead to what is not ours to move
        return
    for path in sorted(pending.iterdir()):
        with suppress(FileNotFoundError):  # another process finishes it as well
            if path.is_dir():
                (folder / path.name).unlink(missing_ok=True)
                path.rmdir()
            else:
                os.replace(path, folder / path.name)
    _sync(folder)
    with suppress(FileNotFoundError):
        pending.rmdir()


def remove_unfinished(folder: str | Path) -> None:
    """Remove what killed processes were writing there: for who alone may write there now."""
    for path in Path(folder).glob(f"{_ASIDE}*"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)


@contextmanager
def folder_written_aside(folder: str | Path, *, replace: bool = True) -> Iterator[Path]:
    """An empty folder that takes the place of `folder` when the block ends well, and with `replace` that of an old one.

    Without, a folder that another process has put there meanwhile stays.
    """
    target = _resolved(Path(folder))
    if target.exists() and not target.is_dir():
        raise ValueError(f"{folder} is not accepted: it is a file, and a folder is to be written")
    with _told_of(folder):
        target.parent.mkdir(parents=True, exist_ok=True)
        with _aside(target.parent) as aside:
            new, old = aside / "new", aside / "old"
            new.mkdir()
            yield new
            _settle_all(new, target)
            try:
                if replace and target.exists():
                    shutil.copymode(target, new)
                    os.rename(target, old)
                os.rename(new, target)
            except BaseException as error:
                if old.exists() and not target.exists():
                    os.rename(old, target)
                if replace or not isinstance(error, OSError) or not target.exists():
                    raise
        _sync(target.parent)


def _resolved(path: Path) -> Path:
    """Where a path leads after all links, whether or not there is anything yet."""
    if "\0" in str(path):
        raise ValueError(f"{str(path)!r} is not accepted: it holds a zero byte, and no name does")
    for number, part in enumerate(path.parts):
        before = Path(*path.parts[:number])
        if part == ".." and not before.is_dir():  # who reads it would not get past that
            raise ValueError(f"{path} is not accepted: {before} is no folder")
    found = Path(os.path.realpath(path))
    if found.is_symlink():
        raise ValueError(f"{path} is not accepted: it is a link that leads to itself")
    return found


def _target(path: Path) -> Path | None:
    """The regular file that a path is or will be; None for what is written through; anything else is refused."""
    if _descriptor(path) is not None:
        return None
    found = _resolved(path)
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
            raise ValueError(f"{path} is not accepted: {error.strerror}") from None
        if path.is_symlink() and not found.parent.is_dir():
            raise ValueError(f"{path} is not accepted: it is a link to {found}, whose folder does not exist") from None
        return found
    if stat.S_ISREG(mode):
        return found
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        return None
    kind = "a folder" if stat.S_ISDIR(mode) else "a block device" if stat.S_ISBLK(mode) else "a socket"
    raise ValueError(f"{path} is not accepted: it is {kind}, and a file is to be written")


def _descriptor(path: Path) -> int | None:
    """The open file of this process that a path such as /dev/stdout names, whatever that file may be."""
    for _ in range(40):
        folder = os.path.realpath(path.parent)
        if folder == f"/proc/{os.getpid()}/fd" and path.name.isdecimal() and path.is_symlink():
            return int(path.name)
        if not path.is_symlink():
            return None
        path = Path(folder, os.readlink(path))
    return None


def _copy_into(file: Path, path: Path) -> None:
    """Write all of a file into what is there already."""
    print(end="", flush=True)  # standard output may be what it is copied into
    descriptor = _descriptor(path)
    target = os.open(path, os.O_WRONLY) if descriptor is None else os.dup(descriptor)
    with open(target, "wb") as into, file.open("rb") as source:
        shutil.copyfileobj(source, into)


def _check_writable(path: str | Path, folder: Path) -> None:
    """Refuse `path` unless files can be made in a folder, or in what there is of the way to it."""
    folder = _first_there(folder)
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = f"nothing can be written in {folder} ({error.strerror})"
        raise ValueError(f"{path} is not accepted: {reason}") from None


def _first_there(folder: Path) -> Path:
    """The folder, or the nearest above it that exists."""
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    return folder


@contextmanager
def _aside(parent: Path, mode: int = 0o777) -> Iterator[Path]:
    """A new folder of nobody else's, removed in the end with all that is still in it."""
    folder = parent / f"{_ASIDE}{secrets.token_hex(4)}"
    folder.mkdir(mode)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _told_of(path: str | Path) -> Iterator[None]:
    """Errors of the system name `path`, not a file aside, also those that writers in Rust tell in words alone."""
    try:
        yield
    except OSError as error:
        if error.errno is None or (error.filename is not None and _ASIDE not in str(error.filename)):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    except Exception as error:
        told = re.search(r"\(os error (\d+)\)", str(error))
        if told is None:
            raise
        raise OSError(int(told[1]), os.strerror(int(told[1])), str(path)) from error


def _fresh_mode(folder: Path) -> int:
    """The mode that a new file has here, by the umask; some writers make files that are their owner's alone."""
    probe = folder / ".mode"
    descriptor = os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    try:
        return stat.S_IMODE(os.fstat(descriptor).st_mode)
    finally:
        os.close(descriptor)
        probe.unlink()


def _settle(file: Path, old: Path, fresh: int) -> None:
    """Give a new file the mode of the one that it replaces, or a fresh one, and bring it to the disk."""
    mode = stat.S_IMODE(old.stat().st_mode) if old.is_file() else fresh
    descriptor = os.open(file, os.O_RDONLY)
    try:
        if stat.S_IMODE(os.fstat(descriptor).st_mode) != mode:
            os.fchmod(descriptor, mode)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _settle_all(new: Path, old: Path) -> None:
    """The same for all files of a new folder and those of the same names in the old one."""
    fresh = _fresh_mode(new)
    for path in sorted(new.rglob("*")):
        if path.is_file():
            _settle(path, old / path.relative_to(new), fresh)
    for path in (new, *new.rglob("*/")):
        _sync(path)


def _sync(folder: Path) -> None:
    """Bring the names in a folder to the disk, where the file system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
