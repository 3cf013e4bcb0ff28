"""One shard: a file of flat tokens, what is said of it, and how text becomes one.

Text is encoded in chunks that are cut by its characters alone, so that the same text is the same tokens however it is
spread over shards and processes. Knows no corpus, no index and no torch: processes that only encode begin quickly.
"""

import hashlib
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hdlm.data.digest import file_digest
from hdlm.data.encoding import REPLACEMENT
from hdlm.data.tokenizer import CorpusTokenizer

CHUNK = 100_000  # characters encoded as one text
SHARD = 2**24  # characters after which a shard ends
_BATCH = 2**20  # characters encoded at a time


@dataclass(frozen=True)
class Shard:
    """A file of tokens, what they are of, and the digest of its bytes."""

    file: str
    tokens: int
    documents: int
    text_bytes: int
    replaced: int
    sha256: str

    def check(self, folder: Path) -> None:
        """Refuse a file whose content is not the one that was written."""
        if file_digest(folder / self.file) != self.sha256:
            raise ValueError(f"{folder / self.file} is damaged or another one: its SHA-256 is not that of index.json")

    def check_size(self, folder: Path, itemsize: int) -> None:
        """Refuse a file that is not there or has another size."""
        path, due = folder / self.file, self.tokens * itemsize
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            raise ValueError(f"{path} is missing: index.json names it") from None
        if size != due or not path.is_file():
            raise ValueError(f"{path} is damaged or another one: it has {size:,} bytes, and index.json says {due:,}")


@dataclass
class Work:
    """The text of one shard to be: chunks, each with whether it ends its document; none where the shard is there.

    The end of a document counts as a character.
    """

    split: str
    number: int
    chunks: list[tuple[str, bool]] | None = field(default_factory=list)
    characters: int = 0

    @property
    def file(self) -> str:
        """The name of the shard's file."""
        return f"{self.split}-{self.number:05d}.bin"

    def add(self, chunk: str, last: bool) -> None:
        """One chunk more."""
        self.characters += len(chunk) + last
        if self.chunks is not None:
            self.chunks.append((chunk, last))


def works(documents: Iterable[tuple[str, str]], there: Container[str] = ()) -> Iterator[Work]:
    """Documents of several splits, each with its split, as the text of shards; of files that are `there`, none is kept.

    A shard ends with the chunk that makes it `SHARD` characters: a function of the split's text alone.
    """
    begun: dict[str, Work] = {}

    def begin(split: str, number: int) -> Work:
        begun[split] = work = Work(split, number)
        if work.file in there:
            work.chunks = None
        return work

    for split, document in documents:
        work = begun.get(split) or begin(split, 0)
        for chunk, last in _chunks(document):
            if work.characters >= SHARD:
                yield work
                work = begin(split, work.number + 1)
            work.add(chunk, last)
    yield from begun.values()


def _chunks(document: str) -> Iterator[tuple[str, bool]]:
    """A document in chunks small enough to encode in little memory, cut after a space; True with the last."""
    start = 0
    while len(document) - start > CHUNK:
        cut = document.rfind(" ", start, start + CHUNK) + 1
        end = cut if cut > start else start + CHUNK
        yield document[start:end], False
        start = end
    yield document[start:], True


def write_shard(
    path: Path,
    chunks: list[tuple[str, bool]],
    tokenizer: CorpusTokenizer,
    dtype: np.dtype,
    *,
    tell: Callable[[int, int, int], None] = lambda tokens, documents, characters: None,
) -> Shard:
    """Encode chunks into a file, EOS after each document. `tell`: tokens, documents and characters that were added."""
    digest, tokens, size, replaced = hashlib.sha256(), 0, 0, 0
    with path.open("wb") as file:
        for batch in _batches(chunks):
            texts = [chunk for chunk, _ in batch]
            _check_alphabet(texts, tokenizer.alphabet)
            ids: list[int] = []
            found = tokenizer.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
            for (_, last), encoded in zip(batch, found, strict=True):
                ids += encoded.ids
                if last:
                    ids.append(tokenizer.eos_id)
            data = np.asarray(ids, dtype=dtype).tobytes()
            digest.update(data)
            file.write(data)
            tokens += len(ids)
            size += sum(len(text.encode()) for text in texts)
            replaced += sum(text.count(REPLACEMENT) for text in texts)
            ended = sum(last for _, last in batch)
            tell(len(ids), ended, sum(map(len, texts)) + ended)
    return Shard(path.name, tokens, sum(last for _, last in chunks), size, replaced, digest.hexdigest())


def _batches(chunks: list[tuple[str, bool]]) -> Iterator[list[tuple[str, bool]]]:
    """Chunks that are encoded together, in so little memory."""
    batch, size = [], 0
    for chunk in chunks:
        batch.append(chunk)
        size += len(chunk[0])
        if size >= _BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _check_alphabet(texts: list[str], alphabet: frozenset[str] | None) -> None:
    """Refuse characters that a tokenizer would pass over."""
    for text in texts:
        if alphabet is not None and not alphabet.issuperset(text):
            unknown, known = min(set(text) - alphabet), "".join(sorted(alphabet))
            raise ValueError(f"the text holds {unknown!r}: this tokenizer knows only {known!r}")
