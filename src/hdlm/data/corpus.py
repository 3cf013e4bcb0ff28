"""Corpora by name or path, as splits of documents.

`stdlib`, the source code of the running Python's own library, is on every machine. The benchmark sets are looked for in
$HDLM_DATA, else in the user's cache; data sets of the Hugging Face hub come through `datasets`. Any file or folder of
text works like a named corpus: its documents are split by a hash of their place, the same on every machine.
"""

import hashlib
import os
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from hdlm.data import detokenize, readers
from hdlm.errors import first_line

SPLITS = ("train", "valid", "test")
SHIPPED = Path(__file__).parents[1] / "models"
MANY_FILES = 40  # from here on whole files go to one split; fewer are each cut by length


@dataclass(frozen=True)
class Corpus:
    """A named source of documents; `fingerprint` changes when what is read changes."""

    name: str
    documents: Callable[[str], Iterator[str]]
    fingerprint: Callable[[str], str]


@dataclass(frozen=True)
class _Named:
    """The files of a benchmark set, in the folder of its name below $HDLM_DATA, or `shipped` in this package."""

    files: dict[str, str]
    shipped: bool = False
    lines: bool = False
    columns: bool = False
    clean: Callable[[str], str] = str


NAMED = {
    "text8-prefix": _Named({"train": "train.txt.xz", "valid": "valid.txt", "test": "test.txt"}),
    "wiki": _Named({"train": "train.txt.xz", "valid": "valid.txt", "test": "test.txt"}),
    "hotpot-wiki": _Named({"train": "train.txt.xz"}),
    "novels": _Named({"train": "eltec-eng.txt.tar.xz"}),
    "ptb": _Named({split: f"ptb.{split}.txt" for split in SPLITS}, lines=True, clean=detokenize.ptb),
    "wikitext": _Named({"train": "train.raw.xz", "valid": "valid.raw", "test": "test.raw"}, clean=detokenize.wikitext),
    "lm1b": _Named({"valid": "valid.txt", "test": "test.txt"}, lines=True, clean=detokenize.lm1b),
    "stories-test": _Named({"test": "stories-test.jsonl.xz"}, shipped=True),
    "lambada": _Named({"test": "test.jsonl"}, clean=detokenize.lambada),
    "ag_news": _Named({"test": "test.csv"}, columns=True),
    "pubmed": _Named({"test": "test.jsonl.xz"}),
    "arxiv": _Named({"test": "test.jsonl.xz"}),
}

# Hub data sets: (path, the hub's name of each split, detokeniser). OpenWebText has no held-out part: the paper's is its
# last 100,000 documents.
_HELD_OUT = "train[-100000:]"
HUB = {
    "owt": ("Skylion007/openwebtext", {"train": "train[:-100000]", "valid": _HELD_OUT, "test": _HELD_OUT}, str),
    "lm1b-full": (
        "billion-word-benchmark/lm1b",
        {"train": "train", "valid": "test", "test": "test"},
        detokenize.lm1b,
    ),
}


def data_root() -> Path:
    """Where named sets are looked for: $HDLM_DATA, else the user's cache."""
    return Path(os.environ.get("HDLM_DATA") or cache_root() / "data")


def cache_root() -> Path:
    """Where files that can be made again are kept: $HDLM_CACHE, else ~/.cache/hdlm."""
    return Path(os.environ.get("HDLM_CACHE") or Path.home() / ".cache" / "hdlm")


def open_corpus(name: str) -> Corpus:
    """A corpus by its name, or from a file or folder."""
    if name == "stdlib":
        return _from_files(name, _stdlib_files())
    if name in NAMED:
        return _open_named(name)
    if name in HUB:
        return _open_hub(name)
    path = Path(name).expanduser()
    if path.is_dir():
        return _from_files(name, _files_below(path))
    if path.is_file():
        return _from_files(name, [(path.name, path)])
    known = ", ".join(["stdlib", *NAMED, *HUB])
    raise ValueError(f"data = {name!r} is not accepted: it is no file or folder here, and no name among {known}")


def _files_below(folder: Path, pattern: str = "*") -> list[tuple[str, Path]]:
    """Files that can be read, each with its place in the folder."""
    files = (path for path in sorted(folder.rglob(pattern)) if path.is_file() and readers.is_readable(path))
    return [(str(path.relative_to(folder)), path) for path in files]


def _stdlib_files() -> list[tuple[str, Path]]:
    """The library's own modules: no tests, no installed packages."""
    left_out = {"test", "tests", "idle_test", "site-packages", "dist-packages", "lib2to3", "__pycache__", "config"}
    found = _files_below(Path(sysconfig.get_paths()["stdlib"]), "*.py")
    return [(place, path) for place, path in found if left_out.isdisjoint(Path(place).parts)]


def split_of(place: str) -> str:
    """Which split a document at this place belongs to: 90% train, 5% valid, 5% test, by hash."""
    share = int.from_bytes(hashlib.sha256(place.encode()).digest()[:4], "big") / 2**32
    return "train" if share < 0.9 else "valid" if share < 0.95 else "test"


def known_nats(name: str) -> list[float] | None:
    """Of a set or file whose source is known, what that source needs for each document; None for all others."""
    if name in NAMED:
        return readers.read_nats(_named_path(name, "test")) if NAMED[name].shipped else None
    return readers.read_nats(Path(name).expanduser())


def _from_files(name: str, files: list[tuple[str, Path]]) -> Corpus:
    if not files:
        raise ValueError(f"data = {name!r} is not accepted: the folder holds no text")

    whole_files = len(files) >= MANY_FILES and all(readers.kind_of(path) in readers.TEXT for _, path in files)

    def documents(split: str) -> Iterator[str]:
        for place, path in files:
            if not whole_files:
                yield from _split_documents(place, readers.read(path), split)
            elif split_of(place) == split:
                yield from readers.read(path)

    def fingerprint(split: str) -> str:
        digest = hashlib.sha256(split.encode())
        for place, path in files:
            with path.open("rb") as file:
                digest.update(place.encode() + b"\0" + hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()

    return Corpus(name, documents, fingerprint)


def _split_documents(place: str, documents: Iterator[str], split: str) -> Iterator[str]:
    """By hash of each document's number; a single document is cut by length instead, at the ends of lines."""
    first = list(islice(documents, 2))
    if len(first) == 1:
        text, number = first[0], SPLITS.index(split)
        cuts = [0, *(_line_end(text, int(len(text) * share)) for share in (0.9, 0.95)), len(text)]
        if cuts[number] < cuts[number + 1]:
            yield text[cuts[number] : cuts[number + 1]]
        return
    for number, document in enumerate(chain(first, documents)):
        if split_of(f"{place}#{number}") == split:
            yield document


def _line_end(text: str, at: int) -> int:
    """The end of a line near `at`, or `at` itself where lines are long."""
    end = text.find("\n", at, at + 2000)
    return end + 1 if end >= 0 else at


def _named_path(name: str, split: str) -> Path:
    return (SHIPPED if NAMED[name].shipped else data_root() / name) / NAMED[name].files[split]


def _open_named(name: str) -> Corpus:
    named = NAMED[name]
    only_train = set(named.files) == {"train"}

    def path_of(split: str) -> Path:
        split = "train" if only_train else split
        if split not in named.files:
            raise ValueError(f"data = {name!r} has no split {split!r}: it has {', '.join(named.files)}")
        path = _named_path(name, split)
        if not path.exists():
            raise ValueError(f"data = {name!r} is not at {path}: set HDLM_DATA to the folder that holds it")
        return path

    def documents(split: str) -> Iterator[str]:
        path = path_of(split)
        found = readers.read_columns(path) if named.columns else readers.read(path, lines=named.lines)
        found = _split_documents(name, found, split) if only_train else found
        yield from map(named.clean, found)

    def fingerprint(split: str) -> str:
        with path_of(split).open("rb") as file:
            return f"{name}-{hashlib.file_digest(file, 'sha256').hexdigest()}"

    return Corpus(name, documents, fingerprint)


def _open_hub(name: str) -> Corpus:
    path, splits, clean = HUB[name]

    def documents(split: str) -> Iterator[str]:
        try:
            import datasets  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise ValueError(f"data = {name!r} comes from the hub and needs: pip install 'hdlm[datasets]'") from None
        try:
            rows = datasets.load_dataset(path, split=splits[split])
        except Exception as error:
            raise ValueError(f"data = {name!r} could not be had from the hub: {first_line(error)}") from None
        yield from (clean(row["text"]) for row in rows)

    return Corpus(name, documents, lambda split: f"{path}-{splits[split]}")
