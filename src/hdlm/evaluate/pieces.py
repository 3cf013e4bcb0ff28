"""One text for several models: pieces that every one of them can read whole, the same for all.

A document is cut at the same bytes for everyone, before a space where there is one, so that each piece fits the context
of each model by its own tokenizer: nobody is given more text to look back on than another. Knows no network.
"""

import hashlib
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from hdlm.data.corpus import known_nats
from hdlm.evaluate.texts import documents, evenly_spaced, marks_of, one_or_several, size_of
from hdlm.sampling.prompts import encode
from hdlm.theory import checks

_AHEAD = 4  # characters per token that are looked at first


@dataclass(frozen=True)
class Reader:
    """Who is to read a text: a model's name, tokenizer and context."""

    name: str
    tokenizer: Tokenizer
    context: int

    def reach(self, text: str) -> int:
        """How many characters at a text's beginning the context holds."""
        if self.fits(text):
            return len(text)
        return self.tokenizer.encode(text, add_special_tokens=False).offsets[self.context][0]

    def fits(self, text: str) -> bool:
        """Whether the context holds a text that stands alone."""
        return len(self.tokens(text)) <= self.context

    def tokens(self, text: str) -> list[int]:
        """The tokens of a text, which is refused in this reader's name."""
        try:
            return encode(self.tokenizer, text)
        except ValueError as error:
            raise ValueError(f"{self.name} cannot read this text: {error}") from None

    def row(self, piece: str) -> list[int]:
        """A piece's tokens; one without any is refused."""
        found = self.tokens(piece)
        if not found:
            raise ValueError(f"text = {piece[:40]!r} is not accepted: it has no token for {self.name}")
        return found


@dataclass(frozen=True)
class Pieces:
    """Pieces of a text, their bytes, and their tokens by each reader.

    `share`: the part of the whole text that they are. `source`: what the text's source needs for each, in nats, where
    that is known. A special token that all readers read as one counts as one byte.
    """

    texts: list[str]
    sizes: list[int]
    rows: list[list[list[int]]]
    share: float = 1.0
    source: list[float] | None = None

    @property
    def fingerprint(self) -> str:
        """Changes when any piece, or what its source needs for it, does."""
        digest = hashlib.sha256(repr(self.source).encode())
        for text in self.texts:
            digest.update(text.encode() + b"\0")
        return digest.hexdigest()[:16]


def cut(text: str, readers: Sequence[Reader]) -> Iterator[str]:
    """The pieces of a text in order: joined they are the text again."""
    start, ahead = 0, _AHEAD * min(reader.context for reader in readers)
    while start < len(text):
        size, ahead = _first_piece(text, start, ahead, readers)
        yield text[start : start + size]
        start += size


def _first_piece(text: str, start: int, ahead: int, readers: Sequence[Reader]) -> tuple[int, int]:
    """The length of the piece that begins at `start`, in characters, and how far was looked ahead for it."""
    while True:
        seen = text[start : start + ahead]
        reach = min(reader.reach(seen) for reader in readers)
        if reach < len(seen) or start + ahead >= len(text):
            break
        ahead *= 2
    size = reach if reach == len(seen) else _word_end(seen, reach)
    while size and not all(reader.fits(seen[:size]) for reader in readers):
        size = _word_end(seen, size - 1)
    if not size:
        short = min(readers, key=lambda reader: reader.context)
        raise ValueError(f"the character {seen[0]!r} is not accepted: it has more tokens than {short.name} can read")
    return size, ahead


def _word_end(text: str, limit: int) -> int:
    """The last place up to `limit` that is before white space; where the latter half has none, `limit` itself."""
    found = max(text.rfind(sign, limit // 2 + 1, limit + 1) for sign in " \n\t")
    return found if found > 0 else limit


def cut_texts(
    texts: str | Path | Sequence[str],
    readers: Sequence[Reader],
    *,
    max_tokens: int | None = None,
    encoding: str = "utf-8",
) -> Pieces:
    """A text, several, or a named set, file or folder (a `Path`, whose text has this `encoding`) in pieces.

    `max_tokens`: evenly spaced pieces of about so many tokens of the first reader.
    """
    if max_tokens is not None:
        checks.integer("max_tokens", max_tokens, low=1)
    if isinstance(texts, Path):
        name = str(texts)
        found, source = documents(name, encoding), known_nats(name, encoding)
    else:
        name, found, source = "texts", one_or_several(texts), None
    pieces, source = _pieces(found, _different(readers), source, name)
    if not pieces:
        raise ValueError(f"{name} holds no text: there is nothing to score")
    first = [readers[0].row(piece) for piece in pieces]
    total = sum(map(len, first))
    picked = list(range(len(pieces)))
    if max_tokens is not None and total > max_tokens:
        picked = evenly_spaced(len(pieces), len(pieces) * max_tokens // total)
    marks = set.intersection(*(set(marks_of(reader.tokenizer)) for reader in readers))
    chosen = [pieces[number] for number in picked]
    return Pieces(
        chosen,
        [size_of(piece, sorted(marks)) for piece in chosen],
        [[reader.row(piece) for piece in chosen] for reader in readers],
        sum(len(first[number]) for number in picked) / total,
        None if source is None else [source[number] for number in picked],
    )


def _different(readers: Sequence[Reader]) -> list[Reader]:
    """One reader of each tokenizer, that of the smallest context."""
    found: dict[str, Reader] = {}
    for reader in sorted(readers, key=lambda one: one.context):
        found.setdefault(reader.tokenizer.to_str(), reader)
    return list(found.values())


def _pieces(
    found: Iterable[str], readers: Sequence[Reader], source: list[float] | None, name: str
) -> tuple[list[str], list[float] | None]:
    """All pieces, and what the source needs for each, which is not known where a document had to be cut."""
    pieces, needed = [], []
    for number, text in enumerate(found):
        parts = list(cut(text, readers))
        pieces += parts
        if source is not None and len(parts) == 1:
            needed.append(source[number])
        elif source is not None and parts:
            warnings.warn(
                f"{name} is not compared with its source: document {number + 1} is longer than a context of "
                f"{min(reader.context for reader in readers)} tokens",
                stacklevel=2,
            )
            source = None
    return pieces, needed if source is not None else None
