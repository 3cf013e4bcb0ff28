"""Text to token rows and back: prompts as text or token ids, and tokens as people see them. `gaps.py` reads gaps."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, groupby
from typing import Any, Protocol

from tokenizers import Encoding, Tokenizer

from hdlm.theory import checks, numbers

MARK = "[[gap"  # what begins so and is no gap was meant as one
LOST = "\ufffd"  # what a decoder writes where bytes are no character, or not yet
LONGEST_CHARACTER = 4  # bytes
MASK_SIGN = "░"  # how MASK looks among words
Row = list[int | None]  # tokens of one row; None is to be filled


class Array(Protocol):
    """A tensor or a NumPy array."""

    def tolist(self) -> Any:
        """Its numbers as nested lists."""


Prompt = str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]] | Array | None


def encode(tokenizer: Tokenizer | None, text: str) -> list[int]:
    """The tokens of a text; characters that the tokenizer has no token for are refused by name."""
    return _encoding(tokenizer, text).ids


def encode_pieces(tokenizer: Tokenizer | None, text: str) -> tuple[list[int], list[str]]:
    """The tokens of a text and the part of it that each stands for, as of `pieces_of`; spaces go with what follows."""
    found = _encoding(tokenizer, text)
    following = [start for start, _ in found.offsets[1:]]
    ends = [min(stop, start) for (_, stop), start in zip(found.offsets, [*following, len(text)], strict=False)]
    return found.ids, _cut(text, ends)


def _encoding(tokenizer: Tokenizer | None, text: str) -> Encoding:
    if tokenizer is None:
        raise ValueError("this model has no tokenizer: give token ids instead of text")
    numbers.text("text", text)
    try:
        found = tokenizer.encode(text, add_special_tokens=False)
    except Exception as error:
        raise ValueError(f"text = {text[:40]!r} is not accepted: this model's tokenizer says: {error}") from None
    covered = bytearray(len(text))
    for start, stop in found.offsets:
        covered[start:stop] = b"\1" * (stop - start)
    lost = next((sign for sign, seen in zip(text, covered, strict=True) if not seen and not sign.isspace()), None)
    if lost is not None:
        raise ValueError(f"the character {lost!r} is not accepted: this model's tokenizer has no token for it")
    return found


def items_of(prompt: Prompt, *, name: str = "prompt", besides: str = "None") -> list[str | list[Any]]:
    """A text or token ids, or several of either, as a list of texts and of rows of ids, which `token_row` checks.

    `besides`: what else the caller takes, for the words of a refusal.
    """
    given = _plain(prompt)
    if isinstance(given, str):
        return [given]
    items = [] if isinstance(given, bytes) or not isinstance(given, Iterable) else [_plain(item) for item in given]
    if items and all(isinstance(item, int | float) for item in items):
        return [items]
    if not items or any(isinstance(item, bytes) or not isinstance(item, Iterable) for item in items):
        raise ValueError(
            f"{name} = {numbers.shown(given)} is not accepted: it must be a text, a list of texts or of token ids, a "
            f"list of such lists, an array of integers{besides and f', or {besides}'}"
        )
    return [item if isinstance(item, str) else list(item) for item in items]


def token_row(ids: Iterable[Any], vocab_size: int, *, name: str = "prompt") -> list[int]:
    """Token ids, refused unless all are whole numbers below `vocab_size`."""
    return [checks.integer(f"{name} token", _plain(token), low=0, high=vocab_size - 1) for token in ids]


def prompt_rows(prompt: Prompt, tokenizer: Tokenizer | None, vocab_size: int) -> list[list[int]]:
    """One row of tokens per prompt; none at all is one empty prompt."""
    rows = []
    for item in items_of("" if prompt is None else prompt):
        if isinstance(item, str) and MARK in item:
            raise ValueError(
                f"{item!r} is not accepted as a prompt: gaps are for infill, written as [[gap:N]], N a number"
            )
        tokens = [] if item == "" else encode(tokenizer, item) if isinstance(item, str) else item
        rows.append(token_row(tokens, vocab_size))
    return rows


def _plain(value: Any) -> Any:
    """Tensors and arrays as lists, their scalars as numbers; all else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def decode(tokenizer: Tokenizer | None, tokens: Sequence[int]) -> str:
    """The text of tokens, special ones left out."""
    if tokenizer is None:
        raise ValueError("this model has no tokenizer: read .tokens")
    return tokenizer.decode(list(tokens), skip_special_tokens=True)


def decode_masked(tokenizer: Tokenizer | None, row: Row) -> str:
    """The text of tokens of which some are masked (None): each shown as MASK_SIGN."""
    parts: list[str] = []
    for masked, group in groupby(row, key=lambda token: token is None):
        run = list(group)
        tokens = [token for token in run if token is not None]
        # Said after its own first token a run is inside a text, where its space is not stripped.
        aside = tokens[:1] if parts else []
        said = decode(tokenizer, aside + tokens).removeprefix(decode(tokenizer, aside))
        parts.append(MASK_SIGN * len(run) if masked else said)
    return "".join(parts)


def pieces_of(tokenizer: Tokenizer | None, tokens: Sequence[int], *, special: bool = False) -> list[str]:
    """The text of tokens in parts, one a token, which together are the text; `special`: with special tokens by name.

    Where several tokens are one character, as in byte-level tokenizers, it is part of the last, and the others are "".
    """
    if tokenizer is None:
        raise ValueError("this model has no tokenizer: read .tokens")

    def read(start: int, stop: int) -> str:
        return tokenizer.decode(list(tokens[start:stop]), skip_special_tokens=not special)

    ends, length, before, start = [], 0, 0, 0  # what is read lies in start..stop, after the part in before..start
    for stop in range(1, len(tokens) + 1):
        found = read(before, stop)
        if not found.endswith(LOST) or stop - start >= LONGEST_CHARACTER:
            length += len(found) - len(read(before, start))
            before, start = start, stop
        ends.append(length)
    return _cut(read(0, len(tokens)), ends)


def _cut(text: str, ends: Sequence[int]) -> list[str]:
    """A text in as many parts as there are ends, the last of which is the text's."""
    ends = [*accumulate(ends[:-1], max), len(text)] if ends else []
    return [text[start:stop] for start, stop in zip([0, *ends], ends, strict=False)]


class Pieces:
    """Tokens one by one as they look inside a text, spaces included."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._piece = lru_cache(maxsize=None)(self._find)

    def __call__(self, token: int) -> str:
        """The text of one token."""
        return self._piece(token)

    def _find(self, token: int) -> str:
        if self._tokenizer is None:
            return f" {token}"
        # Said twice: the second time it is inside a text, where its space is not stripped.
        once, twice = (self._tokenizer.decode([token] * n, skip_special_tokens=False) for n in (1, 2))
        return twice.removeprefix(once)
