"""The files below a folder: which are read as text, which are not, and why. Knows names and kinds, not contents."""

import os
from dataclasses import dataclass
from pathlib import Path, PurePath

from hdlm.data import readers

_NAMED = 3  # skipped files that are named; the others are counted


@dataclass(frozen=True)
class Listing:
    """Files to read, each with its place in the folder, and those left out, each with the reason."""

    read: tuple[tuple[str, Path], ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()

    @property
    def is_one_file(self) -> bool:
        """Whether there is no more to say of it than its name."""
        return len(self.read) == 1 and not self.skipped

    def __str__(self) -> str:
        """`3 files read, 2 skipped: a.pdf (.pdf is not read), pipe (no regular file)`."""
        words = f"{len(self.read):,} file{'s' * (len(self.read) != 1)} read"
        if not self.skipped:
            return words
        named = [f"{place} ({why})" for place, why in self.skipped[:_NAMED]]
        more = [f"{len(self.skipped) - _NAMED:,} more"] if len(self.skipped) > _NAMED else []
        return f"{words}, {len(self.skipped):,} skipped: {', '.join([*named, *more])}"


NO_FILES = Listing()


def list_folder(folder: Path) -> Listing:
    """All files of a folder and of those in it, in the order of their places; hidden ones do not count."""
    read, skipped = [], []
    for path in sorted(_entries(folder)):
        place = str(path.relative_to(folder))
        why = _why_not(path)
        if why is None:
            read.append((place, path))
        else:
            skipped.append((place, why))
    return Listing(tuple(read), tuple(skipped))


def _entries(folder: Path) -> list[Path]:
    """Everything but folders; a folder that cannot be listed is an error, and links to folders are not followed."""
    found = []
    for place, folders, files in os.walk(folder, onerror=_refuse):
        folders[:] = [name for name in folders if not readers.is_hidden(PurePath(name))]
        links = [name for name in folders if (Path(place) / name).is_symlink()]
        found += [Path(place) / name for name in (*links, *files) if not readers.is_hidden(PurePath(name))]
    return found


def _refuse(error: OSError) -> None:
    raise error


def _why_not(path: Path) -> str | None:
    """Why a file is not read; None where it is."""
    if path.is_dir():
        return "a link to a folder"
    if not path.is_file():
        return "no regular file"
    if readers.is_readable(path):
        return None
    return f"{readers.kind_of(path)} is not read" if readers.kind_of(path) else "no suffix"
