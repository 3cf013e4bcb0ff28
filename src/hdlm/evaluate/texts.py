"""Text to be scored: named sets, files or strings, as rows of tokens and counts of bytes, words and GPT-2 tokens.

Documents are joined with EOS where the model has one, and wrapped to its context; the last row is what is left. Nothing
is thrown away, so that nats per byte mean the whole text. docs/evaluation.md says how each set is cleaned. Documents
whose probability under their source is known (JSON lines with "nats") are never joined: each is a row.
"""

import hashlib
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Tokenizer

from hdlm.data.corpus import is_set, known_nats, open_corpus
from hdlm.data.encoding import REPLACEMENT
from hdlm.data.packed import is_matrix, read_matrix
from hdlm.data.places import is_prepared
from hdlm.data.prepared import Prepared
from hdlm.data.remote import open_prepared
from hdlm.folders import data_root
from hdlm.sampling.prompts import encode
from hdlm.theory import checks

if TYPE_CHECKING:
    from hdlm.bundle import Bundle

CHUNK = 50_000  # characters encoded at a time


@dataclass(frozen=True)
class Rows:
    """Rows of tokens, and how many bytes, words and (where its tokenizer is here) GPT-2 tokens of text they stand for.

    `share`: the part of the whole text that the rows are, where only some are taken. `source`: what the text's source
    itself needs for each row, in nats, where that is known.
    """

    tokens: list[list[int]]
    counts: dict[str, float]
    share: float = 1.0
    source: list[float] | None = None


def documents(data: str, encoding: str = "utf-8") -> Iterator[str]:
    """The documents of a named set's test split (validation where it has none), or of a file or folder, whole.

    Characters that `encoding` ("latin-1:replace") had to replace are counted in a warning.
    """
    corpus, replaced = open_corpus(data, encoding), 0
    for document in corpus.scored():
        replaced += document.count(REPLACEMENT) if corpus.encoding.replaces else 0
        yield document
    if replaced:
        warnings.warn(f"{data}: {replaced:,} characters are U+FFFD, for what {encoding} could not decode", stacklevel=2)


def files_of(data: str, encoding: str = "utf-8") -> str | None:
    """Which files of a folder are scored and which are not, in a line; None for what is no folder."""
    if is_matrix(data) or is_prepared(data):
        return None
    corpus = open_corpus(data, encoding)
    return None if is_set(data) or corpus.listing.is_one_file else f"{data}: {corpus.listing}"


def fingerprint(data: str, encoding: str = "utf-8") -> str:
    """A fingerprint of what a set's or file's documents say now."""
    if is_matrix(data):
        return read_matrix(data, None).content[:16]
    if is_prepared(data):
        made = open_prepared(data)
        return hashlib.sha256((made.source.content[_held_out(made)] + made.tokenizer_sha256).encode()).hexdigest()[:16]
    digest = hashlib.sha256()
    for document in documents(data, encoding):
        digest.update(document.encode() + b"\0")
    digest.update(repr(known_nats(data, encoding)).encode())
    return digest.hexdigest()[:16]


def one_or_several(texts: str | Sequence[str]) -> list[str]:
    """A text, or several, as a list; anything else is refused."""
    if isinstance(texts, bytes) or not isinstance(texts, Iterable):
        raise ValueError(f"texts = {texts!r} is not accepted: it must be a text, a list of texts, or a Path")
    return [checks.instance("text", text, str) for text in ([texts] if isinstance(texts, str) else texts)]


def rows_of_texts(
    bundle: "Bundle",
    texts: Sequence[str] | Iterator[str],
    *,
    name: str = "text",
    length: int | None = None,
    max_tokens: int | None = None,
    joined: bool = True,
) -> Rows:
    """Texts as rows of `length` tokens (default: the model's context).

    `joined`: documents of one set, with EOS after each; else every text stands alone, in rows of its own. `max_tokens`:
    take evenly spaced rows of about so many tokens in all.
    """
    tokenizer, gpt2 = _tokenizer(bundle), _gpt2()
    length = bundle.config.context if length is None else length
    if max_tokens is not None:
        checks.integer("max_tokens", max_tokens, low=1)
    eos = [bundle.config.eos_id] if joined and bundle.config.eos_id is not None else []
    marks, counts = marks_of(tokenizer), Counter()
    lines: list[list[int]] = [[]]
    for text in texts:
        encoded = [token for i in range(0, len(text), CHUNK) for token in encode(tokenizer, text[i : i + CHUNK])]
        if joined:
            lines[0] += encoded + eos
        else:
            lines.append(encoded)
        counts["bytes"] += size_of(text, marks)
        counts["word"] += len(text.split())
        counts["gpt2_token"] += 0 if gpt2 is None else len(gpt2.encode(text, add_special_tokens=False).ids)
    if counts["bytes"] == 0 or not any(lines):
        raise ValueError(f"{name} holds no text: there is nothing to score")
    rows, share = _wrapped(lines, length, max_tokens)
    return Rows(rows, {unit: count * share for unit, count in counts.items() if count}, share)


def _wrapped(lines: Sequence[Any], length: int, max_tokens: int | None) -> tuple[list[Any], float]:
    """Lines of tokens in rows of at most `length`, or only evenly spaced ones; and the share of all that they are."""
    rows = [line[i : i + length] for line in lines for i in range(0, len(line), length)]
    total = sum(map(len, rows))
    if max_tokens is None or total <= max_tokens:
        return rows, 1.0
    rows = [rows[i] for i in evenly_spaced(len(rows), max_tokens // length)]
    return rows, sum(map(len, rows)) / total


def _tokenizer(bundle: "Bundle") -> Tokenizer:
    if bundle.tokenizer is None:
        raise ValueError("this model has no tokenizer: it scores token rows (.npy, .safetensors), not text")
    return bundle.tokenizer


def evenly_spaced(count: int, wanted: int) -> list[int]:
    """Indices of `wanted` among `count`, at least one."""
    return [i * (count - 1) // max(1, wanted) for i in range(max(1, wanted))]


def rows_of_set(
    bundle: "Bundle",
    data: str,
    *,
    length: int | None = None,
    max_tokens: int | None = None,
    encoding: str = "utf-8",
) -> Rows:
    """A named set, a file or folder (its text in this `encoding`), prepared data or a file of token rows, as rows."""
    if max_tokens is not None:
        checks.integer("max_tokens", max_tokens, low=1)
    if is_matrix(data):
        matrix = read_matrix(data, bundle.config.model.vocab_size)
        lines = [[token for token in row if token >= 0] for row in matrix.take(torch.arange(len(matrix))).tolist()]
        rows, share = _wrapped(lines, bundle.config.context if length is None else length, max_tokens)
        return Rows(rows, {}, share)
    if is_prepared(data):
        return _rows_of_prepared(bundle, open_prepared(data), length, max_tokens)
    source = known_nats(data, encoding)
    if source is None:
        return rows_of_texts(bundle, documents(data, encoding), name=data, length=length, max_tokens=max_tokens)
    tokenizer, texts = _tokenizer(bundle), list(documents(data, encoding))
    context = bundle.config.context if length is None else length
    sizes = [len(encode(tokenizer, text)) for text in texts]
    picked = list(range(len(texts)))
    if max_tokens is not None and sum(sizes) > max_tokens:
        picked = evenly_spaced(len(texts), len(texts) * max_tokens // sum(sizes))
    found = rows_of_texts(bundle, [texts[number] for number in picked], name=data, length=length, joined=False)
    found = replace(found, share=sum(sizes[number] for number in picked) / max(1, sum(sizes)))
    odd = [number for number in picked if not 1 <= sizes[number] <= context]
    if odd:
        warnings.warn(
            f"{data} is not compared with its source: document {odd[0] + 1} has {sizes[odd[0]]} tokens, and a row has "
            f"1 to {context}",
            stacklevel=2,
        )
        return found
    return replace(found, source=[source[number] for number in picked])


def _rows_of_prepared(bundle: "Bundle", made: Prepared, length: int | None, max_tokens: int | None) -> Rows:
    """The tokens that prepared data holds out, which must be those of the model's own tokenizer."""
    if made.tokenizer.tokenizer.to_str() != _tokenizer(bundle).to_str():
        raise ValueError(f"{made.folder} is not accepted: it was prepared by another tokenizer than the model's own")
    split = _held_out(made)
    sequence = made.sequence(split)
    sequence.check()
    tokens = sequence.all()
    if not len(tokens):
        raise ValueError(f"{made.folder} holds no text: there is nothing to score")
    rows, share = _wrapped([tokens], bundle.config.context if length is None else length, max_tokens)
    return Rows([row.tolist() for row in rows], {"bytes": made.total(split, "text_bytes") * share}, share)


def _held_out(made: Prepared) -> str:
    """The split that is scored: the test split, else the validation split."""
    return next((split for split in ("test", "valid") if split in made.splits), next(iter(made.splits)))


def marks_of(tokenizer: Tokenizer) -> list[str]:
    """What a tokenizer reads as one special token wherever it stands, such as the end of a text."""
    return [token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special]


def size_of(text: str, marks: list[str]) -> int:
    """Bytes of a text, each of the tokenizer's own marks in it counted as one."""
    return len(text.encode()) - sum(text.count(mark) * (len(mark.encode()) - 1) for mark in marks)


def _gpt2() -> Tokenizer | None:
    """GPT-2's tokenizer where the data folder has it."""
    path = data_root() / "tokenizers" / "gpt2" / "tokenizer.json"
    return Tokenizer.from_file(str(path)) if path.exists() else None
