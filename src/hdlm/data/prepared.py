"""A folder of tokens: an index, the tokenizer that they are of, and each split as one sequence cut into shards.

`index.json` comes last, so that a folder which has one is whole. Shards hold flat tokens and no header; what is said of
each (tokens, documents, SHA-256) stands in the index. Knows no corpus and no text.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from hdlm.data.digest import file_digest
from hdlm.data.places import FORMAT, INDEX, MAKING, PLAN, path_of
from hdlm.data.sequence import Sequence
from hdlm.data.shard import Shard
from hdlm.data.tokenizer import CorpusTokenizer, make_tokenizer
from hdlm.files import json_text, written_aside

VERSION = 1
TOKENIZER = "tokenizer.json"
_DTYPES = ("<u2", "<u4")


@dataclass(frozen=True)
class Source:
    """What tokens were made of: a corpus, the encoding of its text, and of each split what it held (a fingerprint)."""

    name: str
    encoding: str
    content: dict[str, str]
    tokenizer: str


@dataclass(frozen=True)
class Prepared:
    """A folder of tokens as its index describes it."""

    folder: Path
    source: Source
    tokenizer_sha256: str
    vocab_size: int
    eos_id: int
    dtype: str
    splits: dict[str, tuple[Shard, ...]]

    def __str__(self) -> str:
        """`12 shards of owt by gpt2`."""
        count = sum(map(len, self.splits.values()))
        return f"{count:,} shard{'s' * (count != 1)} of {self.source.name} by {self.source.tokenizer}"

    @cached_property
    def tokenizer(self) -> CorpusTokenizer:
        """The tokenizer that the tokens are of, refused where it is another one than the index knows."""
        path = self.folder / TOKENIZER
        if not path.is_file():
            raise ValueError(f"{path} is missing: prepared data needs it")
        if file_digest(path) != self.tokenizer_sha256:
            raise ValueError(f"{path} is damaged or another one: its SHA-256 is not that of {INDEX}")
        return make_tokenizer(str(path), [])

    def sequence(self, split: str) -> Sequence:
        """All tokens of a split, refused where a shard is not there or has another size."""
        if split not in self.splits:
            raise ValueError(f"{self.folder} has no split {split!r}: it has {', '.join(self.splits)}")
        return Sequence(self.folder, self.splits[split], np.dtype(self.dtype))

    def total(self, split: str, name: str) -> int:
        """The sum over a split's shards: tokens, documents, text_bytes, replaced."""
        return sum(getattr(shard, name) for shard in self.splits[split])

    def to_json(self) -> dict[str, Any]:
        """The index."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "source": asdict(self.source),
            "tokenizer": {"sha256": self.tokenizer_sha256, "vocab_size": self.vocab_size, "eos_id": self.eos_id},
            "dtype": self.dtype,
            "splits": {name: [asdict(shard) for shard in shards] for name, shards in self.splits.items()},
        }


def dtype_of(vocab_size: int) -> np.dtype:
    """The type that tokens are kept in: two bytes where that is enough."""
    return np.dtype("<u2" if vocab_size < 2**16 else "<u4")


def read_prepared(folder: str | Path) -> Prepared:
    """A folder of tokens by its index; nothing else is opened yet."""
    from hdlm import weights  # which loads torch: processes that only encode do without

    folder = path_of(str(folder))
    if not (folder / INDEX).is_file():
        if (folder / MAKING / PLAN).is_file():
            raise ValueError(f"{folder} is not accepted: it is being prepared; go on with the same hdlm data prepare")
        raise ValueError(f"{folder} is not accepted: it holds no prepared data ({INDEX} is missing)")
    path = folder / INDEX
    data = weights.read_json(path)
    if data.get("format") != FORMAT or data.get("version") != VERSION:
        raise ValueError(f"{path} is not accepted: it must have the format {FORMAT!r}, version {VERSION}")
    try:
        source, tokenizer = Source(**data["source"]), data["tokenizer"]
        splits = {name: tuple(Shard(**shard) for shard in shards) for name, shards in data["splits"].items()}
        found = Prepared(
            folder, source, tokenizer["sha256"], tokenizer["vocab_size"], tokenizer["eos_id"], data["dtype"], splits
        )
        _check(found)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} is damaged or no index: {error}") from None
    return found


def _check(found: Prepared) -> None:
    """Refuse an index whose values are none of its kind, so that nothing below is misled by them."""
    source = found.source
    words = [source.name, source.encoding, source.tokenizer, found.tokenizer_sha256, *found.splits]
    words += [*source.content, *source.content.values()]
    shards = [shard for split in found.splits.values() for shard in split]
    for shard in shards:
        words += [shard.file, shard.sha256]
        counts = [getattr(shard, field.name) for field in fields(shard) if field.type is int]
        if not all(type(count) is int and 0 <= count < 2**63 for count in counts):
            raise ValueError(f"a count of {shard.file!r} is none")
    if not found.splits.keys() <= source.content.keys():
        raise ValueError(f"the content of a split is not among {', '.join(source.content)}")
    if not all(isinstance(word, str) for word in words):
        raise ValueError("a name or a digest is no string")
    for shard in shards:
        if PurePath(shard.file).name != shard.file or not shard.file.endswith(".bin"):
            raise ValueError(f"{shard.file!r} is no name of a shard")
    if found.dtype not in _DTYPES or not (type(found.vocab_size) is int and type(found.eos_id) is int):
        raise ValueError(f"dtype = {found.dtype!r}, vocab_size = {found.vocab_size!r}, eos_id = {found.eos_id!r}")


def write_index(
    folder: Path, source: Source, tokenizer: CorpusTokenizer, splits: Mapping[str, tuple[Shard, ...]]
) -> Prepared:
    """Say that a folder is whole: its tokenizer and shards are there."""
    size = tokenizer.vocab_size
    digest = file_digest(folder / TOKENIZER)
    made = Prepared(folder, source, digest, size, tokenizer.eos_id, dtype_of(size).str, dict(splits))
    with written_aside(folder / INDEX) as aside:
        aside.write_text(json_text(made.to_json(), indent=1) + "\n", encoding="utf-8")
    return made


def write_tokenizer(folder: Path, tokenizer: CorpusTokenizer) -> None:
    """Keep the tokenizer in a folder of its tokens."""
    with written_aside(folder / TOKENIZER) as aside:
        aside.write_text(tokenizer.tokenizer.to_str(pretty=True), encoding="utf-8")


def verify(found: Prepared, tell: Callable[[str, int, int], None] = lambda what, done, total: None) -> int:
    """Read all of a folder and compare it with its index; the bytes that were read.

    The first file that is missing, damaged or foreign is refused by name. Nothing is changed.
    """
    known = [shard for shards in found.splits.values() for shard in shards]
    names = {INDEX, TOKENIZER, *(shard.file for shard in known)}
    foreign = sorted(path.name for path in found.folder.iterdir() if path.suffix == ".bin" and path.name not in names)
    if foreign:
        raise ValueError(f"{found.folder / foreign[0]} is foreign: {INDEX} knows no such shard")
    size = np.dtype(found.dtype).itemsize
    total, done = sum(shard.tokens for shard in known) * size, 0
    found.tokenizer  # noqa: B018, refused here if it is another one
    sequences = {split: found.sequence(split) for split in found.splits}  # sizes first: they cost nothing
    for split, sequence in sequences.items():
        sequence.check(lambda more, split=split, before=done: tell(f"verifying {split}", before + more * size, total))
        done += len(sequence) * size
    tell("verifying", total, total)
    return done
