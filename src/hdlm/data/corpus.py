"""Corpora by name or path, as splits of documents.

`stdlib`, the source code of the running Python's own library, is on every machine. Named sets (`sets.py`) are looked
for in $HDLM_DATA, else in the user's cache, and where they are not there on the Hugging Face hub. Any file or folder of
text works like a named corpus: its documents are split by a hash of their place, the same on every machine. Its text is
UTF-8 unless another encoding is named; that of named sets is theirs.
"""

import hashlib
import sysconfig
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain, islice
from pathlib import Path

from hdlm.data import readers
from hdlm.data.digest import file_digest
from hdlm.data.encoding import UTF_8, Encoding
from hdlm.data.listing import NO_FILES, Listing, list_folder
from hdlm.data.meter import Meter
from hdlm.data.places import is_prepared, is_url, path_of
from hdlm.data.sets import SETS, SPLITS, TRAIN, VALID, NamedSet, files_of, folder_of

MANY_FILES = 40  # from here on whole files go to one split; fewer are each cut by length


@dataclass(frozen=True)
class Corpus:
    """A source of documents, by split; `fingerprint` of a split changes when what is read changes.

    `parts`: the documents of several splits in one pass, each with its split; a meter is told how far that is.
    `scored`: what an evaluation reads, the held-out part of a set and all of a file or folder. `listing`: the files
    that a folder gives, or the one that there is.
    """

    name: str
    parts: Callable[[Collection[str], Meter], Iterator[tuple[str, str]]]
    fingerprint: Callable[[str], str]
    scored: Callable[[], Iterator[str]]
    listing: Listing = NO_FILES
    encoding: Encoding = UTF_8
    splits: tuple[str, ...] = SPLITS

    def documents(self, split: str) -> Iterator[str]:
        """The documents of one split."""
        return (document for _, document in self.parts((split,), Meter()))


# Data of recipes that is drawn, not found.
_DRAWN = {"stories/train.npy": "benchmarks/stories/make_corpus.py draws it (docs/results.md says how)"}


def is_set(name: str) -> bool:
    """Whether this is the name of a set, and no path."""
    return name == "stdlib" or name in SETS


def locate(name: str) -> str:
    """The name of a set as it is, a path made absolute, so that it means the same from everywhere; refused if neither.

    Only files and folders are data: what is a pipe or a device would not be there a second time.
    """
    path = path_of(name)
    if is_set(name) or is_url(name):
        return name
    if name and (path.is_file() or path.is_dir()):
        return str(path.absolute())
    if name and path.exists():
        raise ValueError(f"data = {name!r} is not accepted: it is neither a file nor a folder")
    if name in _DRAWN:
        raise ValueError(f"data = {name!r} is not here: {_DRAWN[name]}")
    known = ", ".join(["stdlib", *SETS])
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
    if name in SETS:
        return _open_named(name, SETS[name])
    if is_prepared(name):
        raise ValueError(f"data = {name!r} is not accepted: it is prepared tokens, and text is needed here")
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
    if name in SETS:
        return readers.read_nats(files_of(name, "test")[0]) if SETS[name].shipped else None
    return readers.read_nats(path_of(name), encoding=Encoding.named(encoding))


def _from_files(name: str, listing: Listing, encoding: Encoding, *, whole: bool = False) -> Corpus:
    """A corpus of files; `whole`: all of them is what an evaluation reads."""
    files = listing.read
    if not files:
        raise ValueError(f"data = {name!r} is not accepted: the folder holds no text ({listing})")

    whole_files = len(files) >= MANY_FILES and all(readers.kind_of(path) in readers.TEXT for _, path in files)

    def parts(splits: Collection[str], meter: Meter) -> Iterator[tuple[str, str]]:
        wanted = [file for file in files if not whole_files or split_of(file[0]) in splits]
        meter.total = sum(path.stat().st_size for _, path in wanted)
        for place, path in wanted:
            found = readers.read(path, encoding=encoding, meter=meter)
            if whole_files:
                yield from ((split_of(place), document) for document in found)
            else:
                yield from (part for part in _split_documents(place, found) if part[0] in splits)

    @cache
    def content() -> bytes:
        return b"".join(_name_bytes(place) + b"\0" + bytes.fromhex(file_digest(path)) for place, path in files)

    def fingerprint(split: str) -> str:
        return hashlib.sha256(f"{split}\0{encoding}\0".encode() + content()).hexdigest()

    def scored() -> Iterator[str]:
        if not whole:
            return corpus.documents("test")
        return (document for _, path in files for document in readers.read(path, encoding=encoding))

    corpus = Corpus(name, parts, fingerprint, scored, listing, encoding)
    return corpus


def _split_documents(place: str, documents: Iterator[str]) -> Iterator[tuple[str, str]]:
    """Each with its split, by hash of its number; a single document is cut by length instead, at the ends of lines."""
    first = list(islice(documents, 2))
    if len(first) == 1:
        text = first[0]
        yield from _pieces(text, [_line_end(text, int(len(text) * share)) for share in (0.9, 0.95)] + [len(text)])
        return
    for number, document in enumerate(chain(first, documents)):
        yield split_of(f"{place}#{number}"), document


def _pieces(text: str, ends: list[int]) -> Iterator[tuple[str, str]]:
    """A text cut into the three splits, of which those without text are left out."""
    for split, start, end in zip(SPLITS, [0, *ends], ends, strict=False):
        if start < end:
            yield split, text[start:end]


def _line_end(text: str, at: int) -> int:
    """The end of a line near `at`, or `at` itself where lines are long."""
    end = text.find("\n", at, at + 2000)
    return end + 1 if end >= 0 else at


def _open_named(name: str, named: NamedSet) -> Corpus:
    """A set by its name: its files where they are here, else the hub's."""

    def parts(splits: Collection[str], meter: Meter) -> Iterator[tuple[str, str]]:
        for split in splits:
            if split not in named.splits:
                raise ValueError(f"data = {name!r} has no split {split!r}: it has {', '.join(named.splits)}")
        if named.cut:
            found = _cut_text(name, named, meter)
        elif named.tail:
            found = _tail_held_out(name, named, splits, meter)
        elif set(named.files) == {TRAIN}:
            found = _split_documents(name, _texts(name, named, TRAIN, meter))
        else:
            found = ((split, text) for split in splits for text in _texts(name, named, split, meter))
        yield from ((split, named.clean(text)) for split, text in found if split in splits)

    def fingerprint(split: str) -> str:
        read = split if split in named.files else TRAIN
        files = files_of(name, read)
        if files:
            return f"{name}-{'-'.join(file_digest(path) for path in files)}"
        if named.hub is None:
            raise _absent(name, read)
        return f"{name}-{named.hub.fingerprint(read)}"

    corpus = Corpus(name, parts, fingerprint, lambda: corpus.documents(named.held_out), splits=named.splits)
    return corpus


def _texts(name: str, named: NamedSet, split: str, meter: Meter, start: int = 0) -> Iterator[str]:
    """The texts of a split as they are written, from number `start` on."""
    files = files_of(name, split)
    if files:
        meter.total += sum(path.stat().st_size for path in files)
        yield from islice(chain.from_iterable(_read(path, named, meter) for path in files), start, None)
        return
    if named.hub is None:
        raise _absent(name, split)
    meter.total += named.hub.rows.get(split, 0) - start
    for text in named.joined(named.hub.texts(split, name, start=start)):
        yield text
        meter.done += 1


def _read(path: Path, named: NamedSet, meter: Meter) -> Iterator[str]:
    if named.columns:
        return readers.read_columns(path, meter=meter)
    return readers.read(path, lines=named.lines, meter=meter)


def _absent(name: str, split: str) -> ValueError:
    place = folder_of(name) / SETS[name].files[split]
    return ValueError(f"data = {name!r} is not at {place}: set HDLM_DATA to the folder that holds it")


def _tail_held_out(name: str, named: NamedSet, splits: Collection[str], meter: Meter) -> Iterator[tuple[str, str]]:
    """All documents of a training text, of which the last ones are the validation split."""
    files = files_of(name, TRAIN)
    rows = sum(readers.count(path) for path in files) if files or named.hub is None else named.hub.rows[TRAIN]
    end = max(0, rows - named.tail)
    start, stop = 0 if TRAIN in splits else end, rows if VALID in splits else end
    for number, text in enumerate(islice(_texts(name, named, TRAIN, meter, start), stop - start), start=start):
        yield (TRAIN if number < end else VALID), text


def _cut_text(name: str, named: NamedSet, meter: Meter) -> Iterator[tuple[str, str]]:
    """A text of which it is known where its splits end, in one piece or as the hub has it, which may be in three."""
    text, due = "", named.cut[-1]
    for split in (TRAIN,) if files_of(name, TRAIN) or named.hub is None else SPLITS:
        if len(text) < due:
            text += "".join(_texts(name, named, split, meter))
    text = text.rstrip("\n")
    if len(text) != due:
        raise ValueError(f"data = {name!r} is not accepted: it has {len(text):,} characters, and must have {due:,}")
    yield from _pieces(text, list(named.cut))
