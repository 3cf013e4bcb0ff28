"""Prepared data at a URL of any kind that fsspec knows: its files are fetched into the cache once, and read from there.

A file counts as fetched when it has the digest that the index gives it; until then it has another name. Knows no text.
"""

import fcntl
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hdlm.data.digest import file_digest
from hdlm.data.places import INDEX, is_url
from hdlm.data.prepared import TOKENIZER, Prepared, read_prepared
from hdlm.errors import first_line
from hdlm.files import clear_aside, written_aside
from hdlm.folders import cache_root

_BLOCK = 2**22  # bytes fetched at a time
_MAX_INDEX = 2**24


def open_prepared(data: str, tell: Callable[[str, int, int], None] = lambda what, done, total: None) -> Prepared:
    """The folder of tokens of this name or at this URL; `tell` is told what is fetched, and bytes of how many."""
    return _fetch(data, tell) if is_url(data) else read_prepared(data)


def _fetch(url: str, tell: Callable[[str, int, int], None]) -> Prepared:
    """A copy in the cache, made by who comes first; it is known by its index, so that it is never stale."""
    system, root = _opened(url)
    index = _read(system, f"{root}/{INDEX}", f"{url}/{INDEX}")
    folder = cache_root() / "prepared" / hashlib.sha256(url.encode() + b"\0" + index).hexdigest()[:32]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / INDEX).is_file():
            clear_aside(folder)
            with written_aside(folder / INDEX) as aside:
                aside.write_bytes(index)
        found = read_prepared(folder)
        shards = [shard for shards in found.splits.values() for shard in shards]
        size = {"<u2": 2, "<u4": 4}[found.dtype]
        total, done = sum(shard.tokens for shard in shards) * size, 0
        for file, digest, due in [
            (TOKENIZER, found.tokenizer_sha256, None),
            *((shard.file, shard.sha256, shard.tokens * size) for shard in shards),
        ]:
            path = folder / file
            if not path.is_file() or (due is not None and path.stat().st_size != due):
                tell(f"fetching {file}", done, total)
                _copy(system, f"{root}/{file}", f"{url}/{file}", path, digest)
            done += due or 0
    return found


def _opened(url: str) -> tuple[Any, str]:
    """The file system of a URL and the path in it."""
    try:
        import fsspec
    except ImportError:
        raise ValueError(f"data = {url!r} is a URL and needs: pip install 'hdlm[remote]'") from None
    try:
        system, root = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise ValueError(f"data = {url!r} is not accepted: {first_line(error)}") from None
    return system, root.rstrip("/")


def _read(system: Any, path: str, url: str) -> bytes:
    try:
        with system.open(path, "rb") as file:
            found = file.read(_MAX_INDEX + 1)
    except Exception as error:
        raise ValueError(f"{url} could not be had: {first_line(error)}") from None
    if len(found) > _MAX_INDEX:
        raise ValueError(f"{url} is not accepted: it is larger than any index")
    return found


def _copy(system: Any, path: str, url: str, target: Path, digest: str) -> None:
    """Fetch one file, refused where it is not the one that the index knows."""
    with written_aside(target) as aside:
        try:
            with system.open(path, "rb") as file, aside.open("wb") as copy:
                while block := file.read(_BLOCK):
                    copy.write(block)
        except OSError as error:
            if getattr(error, "filename", None) == str(aside):
                raise
            raise ValueError(f"{url} could not be had: {first_line(error)}") from None
        if file_digest(aside) != digest:
            raise ValueError(f"{url} is damaged or another one: its SHA-256 is not that of {INDEX}")
