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
from hdlm.data.corpus import Corpus, cache_root, open_corpus
from hdlm.data.tokenizer import Text

_BATCH = 256


@dataclass(frozen=True)
class Rows:
    """A matrix of tokens [rows, length], memory-mapped, and what it was made of."""

    tokens: np.ndarray
    documents: int = 0
    text_bytes: int = 0

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, indices: Tensor) -> Tensor:
        """Rows by number, [len(indices), length], int64."""
        return torch.from_numpy(np.asarray(self.tokens[indices.numpy()]).astype(np.int64))


def load_rows(
    data: str, split: str, text: Text | None, length: int, *, progress: Callable[[str, int], None] | None = None
) -> Rows:
    """Rows of `length` tokens of one split of a corpus, or of a matrix file.

    `progress` is told the split and the number of documents done so far.
    """
    path = Path(data).expanduser()
    if path.suffix in (".npy", ".safetensors"):
        return _load_matrix(path, length, text)
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


def _load_matrix(path: Path, length: int, text: Text | None) -> Rows:
    if not path.exists():
        raise ValueError(f"{path} does not exist")
    if path.suffix == ".npy":
        try:
            tokens = np.load(path, mmap_mode="r", allow_pickle=False)
        except ValueError as error:
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
    if text is not None and int(tokens.max()) >= text.vocab_size:
        raise ValueError(f"{path} holds the token {int(tokens.max())}: the vocabulary has {text.vocab_size}")
    return Rows(tokens[:, :length])


def _tokens(corpus: Corpus, split: str, text: Text, progress: Callable[[str, int], None] | None) -> Rows:
    """The flat tokens of a split, from the cache or made now."""
    recipe = f"v1\0{corpus.fingerprint(split)}\0{split}\0{text.tokenizer.to_str()}\0{text.eos_id}"
    folder = cache_root() / "tokens" / hashlib.sha256(recipe.encode()).hexdigest()[:32]
    if not (folder / "meta.json").exists():
        _make(folder, corpus.documents(split), text, lambda done: progress(split, done) if progress else None)
    meta = json.loads((folder / "meta.json").read_text())
    tokens = (
        np.memmap(folder / "tokens.bin", dtype=meta["dtype"], mode="r") if meta["tokens"] else np.zeros(0, np.uint16)
    )
    return Rows(tokens, meta["documents"], meta["text_bytes"])


def _make(folder: Path, documents: Iterator[str], text: Text, progress: Callable[[int], None]) -> None:
    dtype = np.dtype(np.uint16 if text.vocab_size <= 2**16 else np.uint32)
    aside = folder.with_name(f".{folder.name}.{os.getpid()}")
    aside.mkdir(parents=True, exist_ok=True)
    done = size = count = 0
    try:
        with (aside / "tokens.bin").open("wb") as file:
            while batch := list(islice(documents, _BATCH)):
                for document, encoded in zip(
                    batch, text.tokenizer.encode_batch(batch, add_special_tokens=False), strict=True
                ):
                    if not encoded.ids and document.strip():
                        raise ValueError(f"the tokenizer knows no part of the text {document[:40]!r}")
                    file.write(np.asarray([*encoded.ids, text.eos_id], dtype=dtype).tobytes())
                    count += len(encoded.ids) + 1
                    size += len(document.encode())
                done += len(batch)
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
