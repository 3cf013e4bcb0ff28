"""Corpora by name or path, as splits of documents.

`stdlib`, the source code of the running Python's own library, is on every machine. The benchmark sets are looked for in
$HDLM_DATA, else in the user's cache; data sets of the Hugging Face hub come through `datasets`. Any file or folder of
text works like a named corpus: its documents are split by a hash of their place, the same on every machine. Its text is
UTF-8 unless another encoding is named; that of named sets is theirs.
"""

import hashlib
import os
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain, islice
from pathlib import Path

from hdlm.data import detokenize, readers
from hdlm.data.encoding import UTF_8, Encoding
from hdlm.data.listing import NO_FILES, Listing, list_folder
from hdlm.errors import first_line
from hdlm.folders import SHIPPED, data_root

SPLITS = ("train", "valid", "test")
MANY_FILES = 40  # from here on whole files go to one split; fewer are each cut by length


@dataclass(frozen=True)
class Corpus:
    """A source of documents, by split; `fingerprint` of a split changes when what is read changes.

    `scored`: what an evaluation reads, the held-out part of a set and all of a file or folder. `listing`: the files
    that a folder gives, or the one that there is.
    """

    name: str
    documents: Callable[[str], Iterator[str]]
    fingerprint: Callable[[str], str]
    scored: Callable[[], Iterator[str]]
    listing: Listing = NO_FILES
    encoding: Encoding = UTF_8


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

# Data of recipes that is drawn, not found.
_DRAWN = {"stories/train.npy": "benchmarks/stories/make_corpus.py draws it (docs/results.md says how)"}


def is_set(name: str) -> bool:
    """Whether this is the name of a set, and no path."""
    return name == "stdlib" or name in NAMED or name in HUB


def path_of(name: str) -> Path:
    """A name as a path, ~ being the user's folder."""
    return Path(os.path.expanduser(name))


def locate(name: str) -> str:
    """The name of a set as it is, a path made absolute, so that it means the same from everywhere; refused if neither.

    Only files and folders are data: what is a pipe or a device would not be there a second time.
    """
    path = path_of(name)
    if is_set(name):
        return name
    if name and (path.is_file() or path.is_dir()):
        return str(path.absolute())
    if name and path.exists():
        raise ValueError(f"data = {name!r} is not accepted: it is neither a file nor a folder")
    if name in _DRAWN:
        raise ValueError(f"data = {name!r} is not here: {_DRAWN[name]}")
    known = ", ".join(["stdlib", *NAMED, *HUB])
    raise ValueError(f"data = {name!r} is not accepted: it is no file or folder here, and no name among {known}")


def is_read(path: Path, name: str) -> bool:
    """Whether files at this path are among those that are read of a folder."""
    folder, path = path_of(name).resolve(), path.resolve()
    if is_set(name) or not path.is_relative_to(folder):
        return False
    return not readers.is_hidden(path.relative_to(folder))


def open_corpus(name: str, encoding: str = "utf-8") -> Corpus:
    """A corpus by its name, or from a file or folder whose text has this encoding (`Encoding.named`)."""
    how, path = Encoding.named(encoding), path_of(name)
    locate(name)
    if is_set(name) and how != UTF_8:
        raise ValueError(f"encoding = {encoding!r} is not accepted: data = {name!r} has its own; it is for your files")
    if name == "stdlib":
        return _from_files(name, Listing(_stdlib_files()), UTF_8)
    if name in NAMED:
        return _open_named(name)
    if name in HUB:
        return _open_hub(name)
    if path.is_dir():
        return _from_files(name, list_folder(path), how, whole=True)
    readers.check_readable(path)
    return _from_files(name, Listing(((path.name, path),)), how, whole=True)


def _stdlib_files() -> tuple[tuple[str, Path], ...]:
    """The library's own modules: no tests, no installed packages."""
    left_out = {"test", "tests", "idle_test", "site-packages", "dist-packages", "lib2to3", "__pycache__", "config"}
    folder = Path(sysconfig.get_paths()["stdlib"])
    found = ((path.relative_to(folder), path) for path in sorted(folder.rglob("*.py")) if path.is_file())
    return tuple((str(place), path) for place, path in found if left_out.isdisjoint(place.parts))


def split_of(place: str) -> str:
    """Which split a document at this place belongs to: 90% train, 5% valid, 5% test, by hash."""
    share = int.from_bytes(hashlib.sha256(_name_bytes(place)).digest()[:4], "big") / 2**32
    return "train" if share < 0.9 else "valid" if share < 0.95 else "test"


def _name_bytes(place: str) -> bytes:
    """The bytes of a file's name, which need not be UTF-8."""
    return place.encode(errors="surrogateescape")


def known_nats(name: str, encoding: str = "utf-8") -> list[float] | None:
    """Of a set or file whose source is known, what that source needs for each document; None for all others."""
    if name in NAMED:
        return readers.read_nats(_named_path(name, "test")) if NAMED[name].shipped else None
    return readers.read_nats(path_of(name), encoding=Encoding.named(encoding))


def _from_files(name: str, listing: Listing, encoding: Encoding, *, whole: bool = False) -> Corpus:
    """A corpus of files; `whole`: all of them is what an evaluation reads."""
    files = listing.read
    if not files:
        raise ValueError(f"data = {name!r} is not accepted: the folder holds no text ({listing})")

    whole_files = len(files) >= MANY_FILES and all(readers.kind_of(path) in readers.TEXT for _, path in files)

    def documents(split: str) -> Iterator[str]:
        for place, path in files:
            if not whole_files:
                yield from _split_documents(place, readers.read(path, encoding=encoding), split)
            elif split_of(place) == split:
                yield from readers.read(path, encoding=encoding)

    @cache
    def content() -> bytes:
        return b"".join(_name_bytes(place) + b"\0" + file_digest(path) for place, path in files)

    def fingerprint(split: str) -> str:
        return hashlib.sha256(f"{split}\0{encoding}\0".encode() + content()).hexdigest()

    def scored() -> Iterator[str]:
        if not whole:
            return documents("test")
        return (document for _, path in files for document in readers.read(path, encoding=encoding))

    return Corpus(name, documents, fingerprint, scored, listing, encoding)


def file_digest(path: Path) -> bytes:
    """A digest of all that a file holds, about a second a GiB."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


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

    def file_of(split: str) -> Path:
        split = "train" if only_train else split
        if split not in named.files:
            raise ValueError(f"data = {name!r} has no split {split!r}: it has {', '.join(named.files)}")
        path = _named_path(name, split)
        if not path.exists():
            raise ValueError(f"data = {name!r} is not at {path}: set HDLM_DATA to the folder that holds it")
        return path

    def documents(split: str) -> Iterator[str]:
        path = file_of(split)
        found = readers.read_columns(path) if named.columns else readers.read(path, lines=named.lines)
        found = _split_documents(name, found, split) if only_train else found
        yield from map(named.clean, found)

    def fingerprint(split: str) -> str:
        return f"{name}-{file_digest(file_of(split)).hex()}"

    held_out = "valid" if "test" not in named.files and "valid" in named.files else "test"
    return Corpus(name, documents, fingerprint, lambda: documents(held_out))


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

    return Corpus(name, documents, lambda split: f"{path}-{splits[split]}", lambda: documents("test"))
