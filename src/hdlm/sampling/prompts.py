"""Text to token rows and back: prompts, gaps to be filled, and single tokens as people see them."""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from tokenizers import Tokenizer

from hdlm.theory import checks

_MARK = "[[gap"  # what begins so and is no gap was meant as one
GAP = re.compile(r"\[\[gap:(\d+)\]\]")
Row = list[int | None]  # tokens of one row; None is to be filled
Prompt = str | Sequence[str] | Sequence[Sequence[int]] | None


def encode(tokenizer: Tokenizer | None, text: str) -> list[int]:
    """The tokens of a text; characters that the tokenizer has no token for are refused by name."""
    if tokenizer is None:
        raise ValueError("this model has no tokenizer: give prompts as lists of token ids")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"text = {text!r} is not accepted: it is no valid Unicode") from None
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
    return found.ids


def prompt_rows(prompt: Prompt, tokenizer: Tokenizer | None, vocab_size: int) -> list[list[int]]:
    """One row of tokens per prompt; none at all is one empty prompt."""
    items = [prompt or ""] if prompt is None or isinstance(prompt, str) else prompt
    if not isinstance(items, Iterable):
        raise _refusal(prompt)
    rows = []
    for item in items:
        if isinstance(item, bytes) or not isinstance(item, Iterable):
            raise _refusal(prompt)
        if isinstance(item, str) and _MARK in item:
            raise ValueError(
                f"{item!r} is not accepted as a prompt: gaps are for infill, written as [[gap:N]], N a number"
            )
        tokens = [] if item == "" else encode(tokenizer, item) if isinstance(item, str) else list(item)
        rows.append([checks.integer("prompt token", token, low=0, high=vocab_size - 1) for token in tokens])
    if not rows:
        raise ValueError("prompt = [] is not accepted: give at least one prompt, or None")
    return rows


def _refusal(prompt: object) -> ValueError:
    return ValueError(
        f"prompt = {prompt!r} is not accepted: it must be a text, a list of texts or of token lists, or None"
    )


def gap_row(text: str, tokenizer: Tokenizer | None, *, longest: int = 2**20) -> Row:
    """A text with gaps as a row: `Once [[gap:12]] upon`. A gap's number counts tokens.

    Where words begin with their space, as in most tokenizers, the space before a gap is the gap's to fill.
    """
    parts = GAP.split(checks.instance("text", text, str))
    if len(parts) == 1:
        raise ValueError(f"text = {text!r} has no gap: write [[gap:N]] where N tokens are missing")
    row: Row = []
    for number, part in enumerate(parts):
        if number % 2:
            count = int(part)
            if not 1 <= count <= longest:
                raise ValueError(f"[[gap:{part}]] is not accepted: a gap has 1 to {longest:,} tokens here")
            row += [None] * count
            continue
        if _MARK in part:
            raise ValueError(f"text = {text!r} is not accepted: a gap of N tokens is written as [[gap:N]]")
        before_gap = number + 1 < len(parts)
        if before_gap and tokenizer is not None and _words_begin_with_space(tokenizer):
            part = part.removesuffix(" ")
        row += encode(tokenizer, part) if part else []
    return row


def _words_begin_with_space(tokenizer: Tokenizer) -> bool:
    """Whether the space before a word is part of its token: then a gap begins with it."""
    return len(tokenizer.encode(" the", add_special_tokens=False).ids) < 4 and len(
        tokenizer.encode("a the", add_special_tokens=False).ids
    ) <= 1 + len(tokenizer.encode("the", add_special_tokens=False).ids)


def decode(tokenizer: Tokenizer | None, tokens: Sequence[int]) -> str:
    """The text of tokens, special ones left out."""
    if tokenizer is None:
        raise ValueError("this model has no tokenizer: read .tokens")
    return tokenizer.decode(list(tokens), skip_special_tokens=True)


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
