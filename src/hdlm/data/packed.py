"""Documents to rows of tokens: joined with EOS, wrapped to the context, kept in a memory-mapped cache.

The cache's key is the content of the text and of the tokenizer. It is written aside and renamed, so that a crash
leaves nothing, and of two processes that make it at once one wins and both read the same. A matrix of token rows
(.npy, .safetensors) is taken as it is. Knows no training.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hdlm import weights
from hdlm.data.corpus import Corpus, cache_root, open_corpus, split_of
from hdlm.data.tokenizer import Text

_BATCH, _PIECE = 64, 100_000  # pieces encoded at a time, and characters in one
_PLAIN = {"add_special_tokens": False}


@dataclass(frozen=True)
class Rows:
    """A matrix of tokens [rows, length], memory-mapped, and what it was made of.

    A row may end early: from there on it holds -1, or the largest number of its type where that has no sign.
    """

    tokens: np.ndarray
    documents: int = 0
    text_bytes: int = 0

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, indices: Tensor) -> Tensor:
        """Rows by number, [len(indices), length], int64; -1 after a row's end."""
        found = torch.from_numpy(np.asarray(self.tokens[indices.numpy()]).astype(np.int64))
        return found if self.tokens.dtype.kind == "i" else found.where(found != _end_mark(self.tokens), -1)


def _end_mark(tokens: np.ndarray) -> int:
    return -1 if tokens.dtype.kind == "i" else int(np.iinfo(tokens.dtype).max)


def load_rows(
    data: str, split: str, text: Text | None, length: int, *, progress: Callable[[str, int], None] | None = None
) -> Rows:
    """Rows of `length` tokens of one split of a corpus, or of a matrix file.

    `progress` is told the split and the number of documents done so far.
    """
    path = Path(data).expanduser()
    if path.suffix in (".npy", ".safetensors"):
        return _load_matrix(path, split, length, text)
    if text is None:
        raise ValueError(f"data = {data!r} is text: it needs a tokenizer")
    flat = _tokens(open_corpus(data), split, text, progress)
    count = len(flat.tokens) // length
    if count == 0:
        raise ValueError(
            f"data = {data!r}, split {split!r} has {len(flat.tokens):,} tokens: "
            f"at least one context of {length:,} is needed"
        )
    return Rows(flat.tokens[: count * length].reshape(count, length), flat.documents, flat.text_bytes)


def _load_matrix(path: Path, split: str, length: int, text: Text | None) -> Rows:
    """The rows of a matrix that belong to a split, by hash of their number."""
    if not path.exists():
        raise ValueError(f"{path} does not exist")
    if path.suffix == ".npy":
        try:
            tokens = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise ValueError(f"{path} is no matrix of numbers: {error}") from None
    else:
        tensors = weights.read_safetensors(path)
        if "tokens" not in tensors:
            raise ValueError(f"{path} is not accepted: it must hold a tensor named tokens")
        tokens = tensors["tokens"].numpy()
    if tokens.ndim != 2 or tokens.dtype.kind not in "iu" or tokens.shape[1] < length or len(tokens) == 0:
        raise ValueError(
            f"{path} has shape {tokens.shape}, {tokens.dtype}: it must be integers [rows, {length} or more]"
        )
    if tokens.dtype.kind == "u" and text is not None and np.iinfo(tokens.dtype).max < text.vocab_size:
        raise ValueError(
            f"{path} has {tokens.dtype}: the vocabulary of {text.vocab_size} and a mark for a row's end need more"
        )
    ended = tokens == _end_mark(tokens)
    real = tokens[~ended]
    if bool(ended[:, 0].any()):
        raise ValueError(f"{path} holds an empty row: every row needs a token")
    if bool((ended[:, :-1] & ~ended[:, 1:]).any()):
        raise ValueError(f"{path} holds a row that goes on after its end: after the first mark there must be no token")
    if text is not None and not 0 <= int(real.min()) <= int(real.max()) < text.vocab_size:
        odd = int(real.max()) if real.max() >= text.vocab_size else int(real.min())
        raise ValueError(f"{path} holds the token {odd}: the vocabulary has {text.vocab_size}")
    own = [number for number in range(len(tokens)) if split_of(f"row {number}") == split]
    if not own:
        raise ValueError(f"{path} has {len(tokens)} rows, none of them for the split {split!r}: more rows are needed")
    return Rows(tokens[own, :length])


def _tokens(corpus: Corpus, split: str, text: Text, progress: Callable[[str, int], None] | None) -> Rows:
    """The flat tokens of a split, from the cache or made now."""
    recipe = f"v2\0{corpus.fingerprint(split)}\0{split}\0{text.tokenizer.to_str()}\0{text.eos_id}"
    folder = cache_root() / "tokens" / hashlib.sha256(recipe.encode()).hexdigest()[:32]
    if not (folder / "meta.json").exists():
        _make(folder, corpus.documents(split), text, lambda done: progress(split, done) if progress else None)
    meta = json.loads((folder / "meta.json").read_text())
    tokens = (
        np.memmap(folder / "tokens.bin", dtype=meta["dtype"], mode="r") if meta["tokens"] else np.zeros(0, np.uint16)
    )
    return Rows(tokens, meta["documents"], meta["text_bytes"])


def _pieces(documents: Iterator[str], text: Text) -> Iterator[tuple[str, bool]]:
    """Documents in pieces small enough to encode in little memory, cut after a space; True with the last of each."""
    for document in documents:
        unknown = set(document) - text.alphabet if text.alphabet is not None else set()
        if unknown:
            raise ValueError(
                f"the text holds {min(unknown)!r}: this tokenizer knows only {''.join(sorted(text.alphabet or ''))!r}"
            )
        start = 0
        while len(document) - start > _PIECE:
            cut = document.rfind(" ", start, start + _PIECE) + 1
            end = cut if cut > start else start + _PIECE
            yield document[start:end], False
            start = end
        yield document[start:], True


def _make(folder: Path, documents: Iterator[str], text: Text, progress: Callable[[int], None]) -> None:
    dtype = np.dtype(np.uint16 if text.vocab_size < 2**16 else np.uint32)
    aside = folder.with_name(f".{folder.name}.{os.getpid()}")
    aside.mkdir(parents=True, exist_ok=True)
    done = size = count = 0
    try:
        with (aside / "tokens.bin").open("wb") as file:
            pieces = _pieces(documents, text)
            while batch := list(islice(pieces, _BATCH)):
                words = [piece for piece, _ in batch]
                for (piece, last), encoded in zip(batch, text.tokenizer.encode_batch(words, **_PLAIN), strict=True):
                    ids = [*encoded.ids, text.eos_id] if last else encoded.ids
                    file.write(np.asarray(ids, dtype=dtype).tobytes())
                    count += len(ids)
                    size += len(piece.encode())
                    done += last
                progress(done)
        meta = {"dtype": dtype.str, "tokens": count, "documents": done, "text_bytes": size}
        (aside / "meta.json").write_text(json.dumps(meta))
        try:
            os.rename(aside, folder)
        except OSError:  # another process was faster: its result is the same
            if not (folder / "meta.json").exists():
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
