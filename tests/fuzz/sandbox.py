"""The private folder of a case: where it runs, the places in it that a path may name, and what changed in it.

TOP/out, TOP/err      standard output and error
TOP/box/home          HOME, with cache/ (HDLM_CACHE) and tmp/ (TMPDIR)
TOP/box/up/work       the current folder, so that `..` and `../..` stay inside
"""

import hashlib
import os
import random
import re
import shutil
import tempfile
from pathlib import Path

from hdlm import files

TEXT = "the quick brown fox jumps over the lazy dog\n"
# What is written aside has such a name, and none may stay.
ASIDE = re.compile(rf"^{re.escape(files._ASIDE)}|^{re.escape(files._PENDING)}$")


class Box:
    """The folders of a case and the templates that its files are copied from."""

    def __init__(self, top: Path, templates: Path) -> None:
        self.top, self.templates = top, templates
        self.root, self.home, self.work = top / "box", top / "box" / "home", top / "box" / "up" / "work"
        self.cache = self.home / "cache"

    def enter(self) -> None:
        """Make the folders and become a process whose world they are."""
        for folder in (self.cache, self.home / "tmp", self.work):
            folder.mkdir(parents=True)
        os.chdir(self.work)
        inside = {
            "HOME": self.home,
            "TMPDIR": self.home / "tmp",
            "HDLM_CACHE": self.cache,
            "HDLM_DATA": self.home / "data",
            "XDG_CACHE_HOME": self.cache,
            "MPLCONFIGDIR": self.cache,
            "HF_HOME": self.cache,
        }
        os.environ.update({name: str(path) for name, path in inside.items()})
        tempfile.tempdir = None  # found anew, in TMPDIR

    def copy(self, template: str, name: str | None = None) -> str:
        """A template's file or folder, copied into the current folder; its name."""
        name, source = name or Path(template).name, self.templates / template
        (shutil.copytree if source.is_dir() else shutil.copyfile)(source, self.work / name)
        return name

    def text(self, name: str = "text.txt", lines: int = 60) -> str:
        """A file of plain text, enough for all three splits; its name."""
        (self.work / name).write_text(TEXT * lines)
        return name

    def place(self, rng: random.Random) -> str:
        """A path that somebody may hand over by mistake, all that it needs made: always inside the box."""
        kind = rng.choice(PLACES)
        name = kind(self.work) if callable(kind) else kind
        return str(self.work / name) if rng.random() < 0.2 and "\0" not in name else name


def _file(work: Path) -> str:
    (work / "file.txt").write_text(TEXT)
    return "file.txt"


def _empty_file(work: Path) -> str:
    (work / "empty").write_bytes(b"")
    return "empty"


def _folder(work: Path) -> str:
    (work / "folder").mkdir(exist_ok=True)
    return "folder"


def _full_folder(work: Path) -> str:
    (work / "full").mkdir(exist_ok=True)
    (work / "full" / "notes.txt").write_text(TEXT)
    return "full"


def _fifo(work: Path) -> str:
    if not (work / "fifo").exists():
        os.mkfifo(work / "fifo")
    return "fifo"


def _link(name: str, target: str):
    def make(work: Path) -> str:
        if not os.path.lexists(work / name):
            (work / name).symlink_to(target)
        return name

    return make


def _unreadable(work: Path) -> str:
    (work / "unreadable.txt").touch()
    (work / "unreadable.txt").chmod(0)
    return "unreadable.txt"


def _locked(work: Path) -> str:
    (work / "locked").mkdir(exist_ok=True)
    (work / "locked").chmod(0o555)
    return "locked/new.txt"


def _odd_name(name: str):
    def make(work: Path) -> str:
        (work / name).write_text(TEXT)
        return name

    return make


PLACES = (
    _file,
    _empty_file,
    _folder,
    _full_folder,
    _fifo,
    _link("link.txt", "file.txt"),
    _link("dangling", "nowhere/at/all"),
    _link("loop", "loop"),
    _link("above", ".."),
    _unreadable,
    _locked,
    _odd_name("with space 'and' \"quotes\".txt"),
    _odd_name("glob*[a]?.txt"),
    _odd_name("é\u0301😀.txt"),
    _odd_name("line\nbreak.txt"),
    _odd_name("bytes\udcff.txt"),
    _odd_name("-dash.txt"),
    _odd_name(".hidden"),
    "missing",
    "missing/deeper/still.txt",
    "missing.html",
    "missing.json",
    "file.txt/below",
    ".",
    "..",
    "../sibling.txt",
    "../../top.txt",
    "./a/../b.txt",
    "new/",
    "x" * 300,
    "y" * 250 + ".txt",
    "d/" * 2500 + "deep",
    "nul\0.txt",
)


def snapshot(root: Path) -> dict[str, tuple]:
    """Every entry below `root` by its place: its kind, and what it holds."""
    found: dict[str, tuple] = {}
    for folder, folders, names in os.walk(root):
        for name in (*folders, *names):
            path = os.path.join(folder, name)
            found[os.path.relpath(path, root)] = _entry(path)
    return found


def _entry(path: str) -> tuple:
    if os.path.islink(path):
        return "link", os.readlink(path)
    if os.path.isdir(path):
        return ("folder",)
    if not os.path.isfile(path):
        return ("special", os.lstat(path).st_mode)
    try:
        with open(path, "rb") as file:
            return "file", hashlib.file_digest(file, "sha1").hexdigest()
    except PermissionError:
        return "file", os.lstat(path).st_size, os.lstat(path).st_mtime_ns


def changes(before: dict[str, tuple], after: dict[str, tuple]) -> list[str]:
    """Places that are new, gone or other than they were."""
    return sorted(place for place in before.keys() | after.keys() if before.get(place) != after.get(place))
