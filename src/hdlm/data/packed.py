"""Documents to rows of tokens: joined with EOS, wrapped to the context, kept in a memory-mapped cache.

The cache's key is the content of the text, its encoding and the tokenizer. It is written aside and renamed, so that a
crash leaves nothing, and of two processes that make it at once one wins and both read the same. A matrix of token rows
(.npy, .safetensors) is taken as it is. Knows no training.
"""

import errno
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hdlm import weights
from hdlm.data.corpus import Corpus, file_digest, locate, open_corpus, split_of
from hdlm.data.encoding import REPLACEMENT
from hdlm.data.tokenizer import CorpusTokenizer
from hdlm.files import folder_written_aside
from hdlm.folders import cache_root

_BATCH, _CHUNK = 64, 100_000  # chunks encoded at a time, and characters in one


@dataclass(frozen=True)
class Rows:
    """A matrix of tokens [rows, length], memory-mapped, and what it was made of.

    A row may end early: from there on it holds -1, or the largest number of its type where that has no sign.
    `replaced`: characters of the text that are U+FFFD. `content`: a digest of what all of this was read from.
    """

    tokens: np.ndarray
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


def _end_mark(tokens: np.ndarray) -> int:
    return -1 if tokens.dtype.kind == "i" else int(np.iinfo(tokens.dtype).max)


def is_matrix(data: str) -> bool:
    """Whether this is the name of a file of token rows."""
    return Path(data).suffix in (".npy", ".safetensors")


def load_rows(
    data: str | Corpus,
    split: str,
    tokenizer: CorpusTokenizer | None,
    length: int,
    *,
    progress: Callable[[str, int], None] | None = None,
) -> Rows:
    """Rows of `length` tokens of one split of a corpus (or of the one of this name), or of a matrix file.

    `progress` is told the split and the number of documents done so far.
    """
    if isinstance(data, str) and is_matrix(data):
        return _load_matrix(data, split, length, None if tokenizer is None else tokenizer.vocab_size)
    corpus = open_corpus(data) if isinstance(data, str) else data
    if tokenizer is None:
        raise ValueError(f"data = {corpus.name!r} is text: it needs a tokenizer")
    flat = _tokens(corpus, split, tokenizer, progress)
    count = len(flat.tokens) // length
    if count == 0:
        raise ValueError(
            f"data = {corpus.name!r}, split {split!r} has {len(flat.tokens):,} tokens: "
            f"at least one context of {length:,} is needed"
        )
    return replace(flat, tokens=flat.tokens[: count * length].reshape(count, length))


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
    return Rows(tokens, content=file_digest(path).hex())


def _tokens(
    corpus: Corpus, split: str, tokenizer: CorpusTokenizer, progress: Callable[[str, int], None] | None
) -> Rows:
    """The flat tokens of a split, from the cache or made now."""
    content = corpus.fingerprint(split)
    recipe = f"v3\0{content}\0{split}\0{tokenizer.tokenizer.to_str()}\0{tokenizer.eos_id}"
    folder = cache_root() / "tokens" / hashlib.sha256(recipe.encode()).hexdigest()[:32]
    if not (folder / "meta.json").exists():
        with _told_if_full(folder):
            _make(folder, corpus.documents(split), tokenizer, lambda done: progress(split, done) if progress else None)
    meta = json.loads((folder / "meta.json").read_text())
    path, dtype = folder / "tokens.bin", meta["dtype"]
    tokens = np.memmap(path, dtype=dtype, mode="r") if meta["tokens"] else np.zeros(0, dtype)
    return Rows(tokens, meta["documents"], meta["text_bytes"], meta["replaced"], content)


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


def _chunks(documents: Iterator[str], tokenizer: CorpusTokenizer) -> Iterator[tuple[str, bool]]:
    """Documents in chunks small enough to encode in little memory, cut after a space; True with the last of each."""
    for document in documents:
        if tokenizer.alphabet is not None and not tokenizer.alphabet.issuperset(document):
            unknown, known = min(set(document) - tokenizer.alphabet), "".join(sorted(tokenizer.alphabet))
            raise ValueError(f"the text holds {unknown!r}: this tokenizer knows only {known!r}")
        start = 0
        while len(document) - start > _CHUNK:
            cut = document.rfind(" ", start, start + _CHUNK) + 1
            end = cut if cut > start else start + _CHUNK
            yield document[start:end], False
            start = end
        yield document[start:], True


def _make(folder: Path, documents: Iterator[str], tokenizer: CorpusTokenizer, progress: Callable[[int], None]) -> None:
    dtype = np.dtype(np.uint16 if tokenizer.vocab_size < 2**16 else np.uint32)
    done = size = count = replaced = 0
    with folder_written_aside(folder, replace=False) as aside:
        with (aside / "tokens.bin").open("wb") as file:
            chunks = _chunks(documents, tokenizer)
            while batch := list(islice(chunks, _BATCH)):
                texts = [chunk for chunk, _ in batch]
                found = tokenizer.tokenizer.encode_batch(texts, add_special_tokens=False)
                for (chunk, last), encoded in zip(batch, found, strict=True):
                    ids = [*encoded.ids, tokenizer.eos_id] if last else encoded.ids
                    file.write(np.asarray(ids, dtype=dtype).tobytes())
                    count += len(ids)
                    size += len(chunk.encode())
                    replaced += chunk.count(REPLACEMENT)
                    done += last
                progress(done)
        meta = {"dtype": dtype.str, "tokens": count, "documents": done, "text_bytes": size, "replaced": replaced}
        (aside / "meta.json").write_text(json.dumps(meta))
