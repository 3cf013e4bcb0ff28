"""Text to token rows and back: prompts, gaps to be filled, and single tokens as people see them."""

import re
from collections.abc import Sequence
from functools import lru_cache

from tokenizers import Tokenizer

from hdlm.theory import checks

GAP = re.compile(r"\[\[gap:(\d+)\]\]")
Row = list[int | None]  # tokens of one row; None is to be filled
Prompt = str | Sequence[str] | Sequence[Sequence[int]] | None


def encode(tokenizer: Tokenizer | None, text: str) -> list[int]:
    """The tokens of a text; characters that the tokenizer has no token for are refused by name."""
    if tokenizer is None:
        raise ValueError("this model has no tokenizer: give prompts as lists of token ids")
    for sign in sorted(set(text)):
        if not tokenizer.encode(sign, add_special_tokens=False).ids:
            raise ValueError(f"the character {sign!r} is not accepted: this model's tokenizer has no token for it")
    return tokenizer.encode(text, add_special_tokens=False).ids


def prompt_rows(prompt: Prompt, tokenizer: Tokenizer | None, vocab_size: int) -> list[list[int]]:
    """One row of tokens per prompt; none at all is one empty prompt."""
    if prompt is None or isinstance(prompt, str):
        prompt = [prompt or ""]
    rows = []
    for item in prompt:
        tokens = [] if item == "" else encode(tokenizer, item) if isinstance(item, str) else list(item)
        rows.append([checks.integer("prompt token", int(token), low=0, high=vocab_size - 1) for token in tokens])
    if not rows:
        raise ValueError("prompt = [] is not accepted: give at least one prompt, or None")
    return rows


def gap_row(text: str, tokenizer: Tokenizer | None) -> Row:
    """A text with gaps as a row: `Once [[gap:12]] upon`. A gap's number counts tokens."""
    parts = GAP.split(text)
    if len(parts) == 1:
        raise ValueError(f"text = {text!r} has no gap: write [[gap:N]] where N tokens are missing")
    row: Row = []
    for number, part in enumerate(parts):
        if number % 2:
            count = int(part)
            if count < 1:
                raise ValueError("[[gap:0]] is not accepted: a gap has at least 1 token")
            row += [None] * count
            continue
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
        self._anchor = encode(tokenizer, "a") if tokenizer is not None else []
        self._piece = lru_cache(maxsize=None)(self._find)

    def __call__(self, token: int) -> str:
        """The text of one token."""
        return self._piece(token)

    def _find(self, token: int) -> str:
        if self._tokenizer is None:
            return f" {token}"
        both = self._tokenizer.decode([*self._anchor, token], skip_special_tokens=False)
        return both.removeprefix(self._tokenizer.decode(self._anchor, skip_special_tokens=False))
