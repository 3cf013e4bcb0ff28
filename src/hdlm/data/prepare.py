"""Text to a folder of tokens, by several processes, to be gone on with after any interruption.

One process reads, and gives out the text of a shard at a time; others encode. What each shard holds follows from the
text alone, so that the bytes are the same for any number of processes, and those of the token cache. Knows no training.
"""

import fcntl
import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from hdlm import weights
from hdlm.data.corpus import Corpus, is_read, locate, open_corpus
from hdlm.data.meter import Meter
from hdlm.data.packed import is_matrix
from hdlm.data.places import INDEX, MAKING, PLAN, is_prepared, is_url
from hdlm.data.prepared import (
    TOKENIZER,
    Prepared,
    Source,
    dtype_of,
    read_prepared,
    write_index,
    write_tokenizer,
)
from hdlm.data.sets import TRAIN
from hdlm.data.shard import SHARD, Shard, Work, works
from hdlm.data.tokenizer import CorpusTokenizer, make_tokenizer
from hdlm.data.workers import Task, Told, encode
from hdlm.files import check_folder, clear_aside, entries, json_text, written_aside
from hdlm.theory import numbers


@dataclass(frozen=True)
class Progress:
    """How far preparing is: what it does, tokens made and kept, tokens made now a second, seconds left if known."""

    doing: str
    documents: int = 0
    tokens: int = 0
    share: float | None = None
    tokens_per_second: float = 0.0
    seconds_left: float | None = None


Tell = Callable[[Progress], None]


def prepare(
    data: str,
    out: str | Path,
    *,
    tokenizer: str,
    workers: int | None = None,
    encoding: str = "utf-8",
    tell: Tell = lambda progress: None,
) -> Prepared:
    """The tokens of a corpus, by name or path, in the folder `out`, made by so many `workers` (None: one a core).

    Called again with the same `out` it goes on, or finds all done; with another tokenizer or text it refuses.
    """
    folder = Path(out)
    workers = len(os.sched_getaffinity(0)) if workers is None else numbers.integer("workers", workers, low=1)
    check_folder(folder)
    corpus = open_corpus(_located(data, str(out)), encoding)
    if not (entries(folder) <= {MAKING} or is_prepared(str(folder))):
        raise ValueError(f"out = {str(out)!r} is not accepted: the folder is not empty; tokens need one of their own")
    tell(Progress("reading the text's digest"))
    content = {split: corpus.fingerprint(split) for split in corpus.splits}
    source = Source(corpus.name, str(corpus.encoding), content, tokenizer)
    with _locked(folder), _nothing_left_of_a_refusal(folder):
        return _prepare(corpus, source, folder, workers, tell)


def command_for(data: str, tokenizer: str, encoding: str) -> str:
    """The command line that prepares some data, for a person to run."""
    how = [] if encoding == "utf-8" else ["--encoding", encoding]
    return shlex.join(["hdlm", "data", "prepare", data, "--tokenizer", tokenizer, *how, "--out", "DIR"])


def _located(data: str, out: str) -> str:
    """Where the text is, refused where it needs no preparing, or where that would read what it writes."""
    if is_url(out):
        raise ValueError(f"out = {out!r} is not accepted: prepare in a folder here, and copy that there")
    if is_prepared(data):
        raise ValueError(f"data = {data!r} is not accepted: it is prepared already")
    if is_matrix(data):
        raise ValueError(f"data = {data!r} is not accepted: it is a matrix of tokens, which needs no preparing")
    place = locate(data)
    if is_read(Path(out), place):
        raise ValueError(f"out = {out!r} is not accepted: it is inside of data = {data!r}, and would be read")
    return place


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder against a second process that would write the same files, and leave no lock in a whole one."""
    making, missing = folder / MAKING, [place for place in (folder, *folder.parents) if not place.exists()]
    making.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(making / "lock", os.O_RDWR | os.O_CREAT, 0o666)) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(f"out = {str(folder)!r} is not accepted: another process is preparing there") from None
        try:
            _clear(folder)
            yield
        finally:
            _clear(folder)
            if (folder / INDEX).is_file() or not (making / PLAN).is_file():
                shutil.rmtree(making)
            for place in missing:
                if not entries(place):
                    place.rmdir()


@contextmanager
def _nothing_left_of_a_refusal(folder: Path) -> Iterator[None]:
    """What was begun here goes where the text itself is refused, or nothing was done: mended text is another text."""
    begun_before = (folder / MAKING / PLAN).is_file() or (folder / INDEX).is_file()
    try:
        yield
    except (ValueError, OSError) as error:
        done = list((folder / MAKING).glob("*.bin.json"))
        if not begun_before and (isinstance(error, ValueError) or not done):
            for path in (folder / TOKENIZER, folder / MAKING / PLAN, *folder.glob("*.bin"), *done):
                path.unlink(missing_ok=True)
        raise


def _clear(folder: Path) -> None:
    for place in (folder, folder / MAKING):
        clear_aside(place)


def _prepare(corpus: Corpus, source: Source, folder: Path, workers: int, tell: Tell) -> Prepared:
    if (folder / INDEX).is_file():
        found = read_prepared(folder)
        _check_same(found.source, source, found.tokenizer, folder)
        for split in found.splits:
            found.sequence(split)  # refused where a shard is gone
        return found
    tokenizer = _tokenizer(corpus, source, folder, tell)
    shards = _shards(corpus, source, tokenizer, folder, workers, tell)
    return write_index(folder, source, tokenizer, shards)


def _tokenizer(corpus: Corpus, source: Source, folder: Path, tell: Tell) -> CorpusTokenizer:
    """The tokenizer, made once: what was begun with another one, or of another text, is refused."""
    plan, file = folder / MAKING / PLAN, folder / TOKENIZER
    if plan.is_file():
        begun = weights.read_json(plan)
        if begun.get("shard") != SHARD:
            raise ValueError(f"{folder} is not accepted: it was begun by another version; remove it, or name another")
        kept = make_tokenizer(str(file), []) if file.is_file() else None
        _check_same(Source(**begun["source"]), source, kept, folder)
        if kept is not None:
            return kept

    def told() -> Iterator[str]:
        for number, document in enumerate(corpus.documents(TRAIN), start=1):
            yield document
            tell(Progress("training the tokenizer", documents=number))

    made = make_tokenizer(source.tokenizer, told())
    with written_aside(plan) as aside:
        aside.write_text(json_text({"source": asdict(source), "shard": SHARD}), encoding="utf-8")
    write_tokenizer(folder, made)
    return made


def _check_same(begun: Source, asked: Source, kept: CorpusTokenizer | None, folder: Path) -> None:
    """Refuse to go on in a folder that is of something else than what is asked for."""
    if begun.content != asked.content:
        what = "encoding" if begun.encoding != asked.encoding else "text"
        ours, theirs = (getattr(each, "encoding" if what == "encoding" else "name") for each in (asked, begun))
        same = "; its content has changed since" if ours == theirs else f", not {ours!r}"
        raise ValueError(f"out = {str(folder)!r} is not accepted: it holds tokens of the {what} {theirs!r}{same}")
    same = begun.tokenizer == asked.tokenizer
    if kept is None or asked.tokenizer.startswith("bpe-"):
        accepted = same
    else:
        accepted = kept.is_same(make_tokenizer(asked.tokenizer, []))
    if not accepted:
        why = "which has changed since" if same else f"not {asked.tokenizer!r}"
        raise ValueError(
            f"out = {str(folder)!r} is not accepted: it holds tokens by the tokenizer {begun.tokenizer!r}, {why}"
        )


def _shards(
    corpus: Corpus, source: Source, tokenizer: CorpusTokenizer, folder: Path, workers: int, tell: Tell
) -> dict[str, tuple[Shard, ...]]:
    """All shards of all splits: those that are there, and those that are made now."""
    dtype = dtype_of(tokenizer.vocab_size)
    there: dict[str, Shard] = {}
    for record in (folder / MAKING).glob("*.bin.json"):
        shard = Shard(**weights.read_json(record))
        if (folder / shard.file).is_file() and (folder / shard.file).stat().st_size == shard.tokens * dtype.itemsize:
            there[shard.file] = shard
    order: dict[str, list[str]] = {split: [] for split in corpus.splits}
    meter, pace = Meter(), _Pace(there, tell)

    def left() -> Iterator[Work]:
        for work in works(corpus.parts(corpus.splits, meter), there):
            order[work.split].append(work.file)
            pace.read(work, meter.share)
            if work.chunks is not None:
                yield work

    task = Task(folder, folder / TOKENIZER, tokenizer.eos_id, dtype.str)
    for told in encode(left(), task, workers=workers):
        if told.shard is None:
            pace.add(told)
        else:
            there[told.shard.file] = told.shard
    return {split: tuple(there[file] for file in files) for split, files in order.items()}


class _Pace:
    """How fast tokens are made, and how long the rest takes, as far as that can be known.

    What is left is judged by characters: those that are encoded, of those that were read, of the share that these are.
    """

    def __init__(self, there: dict[str, Shard], tell: Tell) -> None:
        self._tokens = sum(shard.tokens for shard in there.values())
        self._documents = sum(shard.documents for shard in there.values())
        self._tell, self._since, self._made = tell, time.monotonic(), 0
        self._all, self._kept, self._new, self._share = 0, 0, 0, None
        tell(Progress("finding where it was" if there else "reading", self._documents, self._tokens))

    def read(self, work: Work, share: float | None) -> None:
        """Text was read, of which `share` is the part of all so far; the clock begins with the first that is new."""
        if self._all == self._kept:
            self._since = time.monotonic()
        self._all, self._share = self._all + work.characters, share
        self._kept += work.characters if work.chunks is None else 0

    def add(self, told: Told) -> None:
        """More was encoded."""
        self._tokens, self._documents = self._tokens + told.tokens, self._documents + told.documents
        self._made, self._new = self._made + told.tokens, self._new + told.characters
        seconds, share, left = max(time.monotonic() - self._since, 1e-9), None, None
        if self._share is not None and self._new:
            share = self._share * (self._kept + self._new) / self._all
            left = seconds * (1 - share) / (self._share * self._new / self._all)
        self._tell(Progress("tokenising", self._documents, self._tokens, share, self._made / seconds, left))
