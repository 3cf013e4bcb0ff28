"""Documents to rows of tokens: joined with EOS, wrapped to the context, read by memory map from a folder of tokens.

That folder is one that was prepared, or the cache's, whose key is the content of the text, its encoding and the
tokenizer. The cache is written aside and renamed, so that a crash leaves nothing, and of two processes that make it at
once one wins and both read the same. A matrix of token rows (.npy, .safetensors) is taken as it is. Knows no training.
"""

import errno
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hdlm import weights
from hdlm.data.corpus import Corpus, locate, open_corpus, split_of
from hdlm.data.digest import file_digest
from hdlm.data.meter import Meter
from hdlm.data.places import INDEX
from hdlm.data.prepared import Prepared, Source, dtype_of, read_prepared, write_index, write_tokenizer
from hdlm.data.sequence import Wrapped
from hdlm.data.shard import works, write_shard
from hdlm.data.tokenizer import CorpusTokenizer
from hdlm.files import folder_written_aside
from hdlm.folders import cache_root

Tell = Callable[[str], None]


class NotTokenisedError(ValueError):
    """Text was to be read as tokens by who must not wait until it is tokenised."""


@dataclass(frozen=True)
class Rows:
    """A matrix of tokens [rows, length], memory-mapped, and what it was made of.

    A row may end early: from there on it holds -1, or the largest number of its type where that has no sign.
    `replaced`: characters of the text that are U+FFFD. `content`: a digest of what all of this was read from.
    """

    tokens: np.ndarray | Wrapped
    documents: int = 0
    text_bytes: int = 0
    replaced: int = 0
    content: str = ""

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, indices: Tensor) -> Tensor:
        """Rows by number, [len(indices), length], int64; -1 after a row's end."""
        found = torch.from_numpy(np.asarray(self.tokens[indices.numpy()]).astype(np.int64))
        return found.where(found != _end_mark(self.tokens), -1)


def _end_mark(tokens: np.ndarray | Wrapped) -> int:
    return -1 if tokens.dtype.kind == "i" else int(np.iinfo(tokens.dtype).max)


def is_matrix(data: str) -> bool:
    """Whether this is the name of a file of token rows."""
    return Path(data).suffix in (".npy", ".safetensors")


def load_rows(
    data: str | Corpus | Prepared,
    split: str,
    tokenizer: CorpusTokenizer | None,
    length: int,
    *,
    tell: Tell = lambda words: None,
    make: bool = True,
) -> Rows:
    """Rows of `length` tokens of one split of a corpus (or of the one of this name), of prepared data or a matrix file.

    `tell` is told how far that is, in words. Without `make`, text that is not tokenised yet is refused; so are tokens
    that are not what they were when they were written.
    """
    if isinstance(data, str) and is_matrix(data):
        return _load_matrix(data, split, length, None if tokenizer is None else tokenizer.vocab_size)
    if isinstance(data, Prepared):
        return _of_prepared(data, split, length, str(data.folder), tell)
    corpus = open_corpus(data) if isinstance(data, str) else data
    if tokenizer is None:
        raise ValueError(f"data = {corpus.name!r} is text: it needs a tokenizer")
    return _of_corpus(corpus, split, tokenizer, length, tell, make=make)


def _of_prepared(prepared: Prepared, split: str, length: int, name: str, tell: Tell) -> Rows:
    """The rows of one split of a folder of tokens."""
    sequence = prepared.sequence(split)
    sequence.check(lambda done: tell(f"checking {split}: {done:,} of {len(sequence):,} tokens"))
    tokens = sequence.wrapped(length)
    if len(tokens) == 0:
        raise ValueError(
            f"data = {name!r}, split {split!r} has {len(sequence):,} tokens: "
            f"at least one context of {length:,} is needed"
        )
    documents, size, replaced = (prepared.total(split, name) for name in ("documents", "text_bytes", "replaced"))
    return Rows(tokens, documents, size, replaced, prepared.source.content[split])


def _load_matrix(data: str, split: str, length: int, vocab_size: int | None) -> Rows:
    """The rows of a matrix that belong to a split, by hash of their number."""
    whole = read_matrix(data, vocab_size, least=length)
    own = [number for number in range(len(whole)) if split_of(f"row {number}") == split]
    if not own:
        raise ValueError(f"{data} has {len(whole)} rows, none of them for the split {split!r}: more rows are needed")
    return replace(whole, tokens=whole.tokens[own, :length])


def read_matrix(data: str, vocab_size: int | None, *, least: int = 1) -> Rows:
    """All rows of a file of tokens below `vocab_size`, with room for at least so many each."""
    path = Path(locate(data))
    if not path.is_file():
        raise ValueError(f"{path} is not accepted: it is a folder, and a matrix is a file")
    if path.suffix == ".npy":
        try:
            tokens = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise ValueError(f"{path} is no matrix of numbers: {error}") from None
    else:
        tensors = weights.read_safetensors(path)
        if "tokens" not in tensors:
            raise ValueError(f"{path} is not accepted: it must hold a tensor named tokens")
        tokens = (tensors["tokens"].float() if tensors["tokens"].is_floating_point() else tensors["tokens"]).numpy()
    if tokens.ndim != 2 or tokens.dtype.kind not in "iu" or tokens.shape[1] < least or len(tokens) == 0:
        raise ValueError(
            f"{path} has shape {tokens.shape}, {tokens.dtype}: it must be integers [rows, {least} or more]"
        )
    if tokens.dtype.kind == "u" and vocab_size is not None and np.iinfo(tokens.dtype).max < vocab_size:
        raise ValueError(
            f"{path} has {tokens.dtype}: the vocabulary of {vocab_size} and a mark for a row's end need more"
        )
    ended = tokens == _end_mark(tokens)
    real = tokens[~ended]
    if bool(ended[:, 0].any()):
        raise ValueError(f"{path} holds an empty row: every row needs a token")
    if bool((ended[:, :-1] & ~ended[:, 1:]).any()):
        raise ValueError(f"{path} holds a row that goes on after its end: after the first mark there must be no token")
    if vocab_size is not None and not 0 <= int(real.min()) <= int(real.max()) < vocab_size:
        odd = int(real.max()) if real.max() >= vocab_size else int(real.min())
        raise ValueError(f"{path} holds the token {odd}: the vocabulary has {vocab_size}")
    return Rows(tokens, content=file_digest(path))


def _of_corpus(corpus: Corpus, split: str, tokenizer: CorpusTokenizer, length: int, tell: Tell, *, make: bool) -> Rows:
    """The rows of a split's tokens, from the cache or made now."""
    content = corpus.fingerprint(split)
    recipe = f"v4\0{content}\0{split}\0{tokenizer.tokenizer.to_str()}\0{tokenizer.eos_id}"
    folder = cache_root() / "tokens" / hashlib.sha256(recipe.encode()).hexdigest()[:32]
    if not (folder / INDEX).exists():
        if not make:
            raise NotTokenisedError(f"data = {corpus.name!r}, split {split!r}, is not tokenised yet")
        source = Source(corpus.name, str(corpus.encoding), {split: content}, "")
        with _told_if_full(folder):
            _make(folder, corpus, source, tokenizer, tell)
    return _of_prepared(read_prepared(folder), split, length, corpus.name, tell)


def _make(folder: Path, corpus: Corpus, source: Source, tokenizer: CorpusTokenizer, tell: Tell) -> None:
    """A folder of tokens of one split, in this process; what `hdlm data prepare` makes by several."""
    [split], shards, done = source.content, [], 0

    def told(tokens: int, documents: int, characters: int) -> None:
        nonlocal done
        done += documents
        tell(f"tokenising {split}: {done:,} documents")

    with folder_written_aside(folder, replace=False) as aside:
        for work in works(corpus.parts((split,), Meter())):
            assert work.chunks is not None
            dtype = dtype_of(tokenizer.vocab_size)
            shards.append(write_shard(aside / work.file, work.chunks, tokenizer, dtype, tell=told))
        write_tokenizer(aside, tokenizer)
        write_index(aside, source, tokenizer, {split: tuple(shards)})


@contextmanager
def _told_if_full(folder: Path) -> Iterator[None]:
    """Name the cache and the way out where it has no room."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        why = f"{error.strerror}; tokens are kept there: make room, or set HDLM_CACHE to a folder that has some"
        raise OSError(error.errno, why, str(folder.parent)) from None
