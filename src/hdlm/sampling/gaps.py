"""Texts with gaps as tokens: `Once [[gap:12]] upon [[gap:3-6]] a [[gap]]`, or token ids and None. Knows no network."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from hdlm.sampling.prompts import MARK, Row, encode, token_row
from hdlm.theory import checks, numbers

GapText = str | Sequence[int | None]
_GAP = re.compile(r"\[\[gap(?::(\d+)(?:-(\d+))?)?\]\]")
_DIGITS = 18  # of a gap's number
_SHOWN = 40  # characters of a mark in a refusal
_SPELLINGS = "write [[gap:N]] for N missing tokens, [[gap:4-20]] for 4 to 20, [[gap]] for any number"


@dataclass(frozen=True)
class Gaps:
    """A text with gaps: the tokens before, between and behind them, and how many tokens each gap may have.

    `lengths`: None where nothing is said.
    """

    parts: tuple[tuple[int, ...], ...]
    lengths: tuple[range | None, ...]

    @property
    def open(self) -> tuple[bool, ...]:
        """Of each gap whether its length is to be found."""
        return tuple(lengths is None or len(lengths) > 1 for lengths in self.lengths)

    def row(self, lengths: Sequence[int]) -> Row:
        """The tokens around gaps of these lengths."""
        row: Row = list(self.parts[0])
        for length, part in zip(lengths, self.parts[1:], strict=True):
            row += [*[None] * length, *part]
        return row


def read_gaps(text: GapText, tokenizer: Tokenizer | None, vocab_size: int, *, longest: int = 2**20) -> Gaps:
    """A text whose gaps are marked, a gap's number counting tokens; or token ids, None where one is missing.

    Where words begin with their space, as in most tokenizers, the space before a gap is the gap's to fill.
    """
    if isinstance(text, list | tuple):
        return _read_ids(text, vocab_size)
    text = checks.instance("text", text, str)
    marks = list(_GAP.finditer(text))
    begins, ends = [mark.start() for mark in marks], [mark.end() for mark in marks]
    words = [text[start:stop] for start, stop in zip([0, *ends], [*begins, len(text)], strict=True)]
    if (odd := next((part for part in words if MARK in part), None)) is not None:
        wrote = odd[odd.index(MARK) :].split("]]")[0] + "]]"
        raise ValueError(f"{_shown(wrote)} is not accepted as a gap: {_SPELLINGS}")
    if not marks:
        raise ValueError(f"text = {text!r} has no gap: {_SPELLINGS}")
    lengths = tuple(_lengths(mark, longest) for mark in marks)
    if tokenizer is not None and _words_begin_with_space(tokenizer):
        words = [*(part.removesuffix(" ") for part in words[:-1]), words[-1]]
    return Gaps(tuple(tuple(encode(tokenizer, part)) if part else () for part in words), lengths)


def gap_row(text: GapText, tokenizer: Tokenizer | None, vocab_size: int, *, longest: int = 2**20) -> Row:
    """A text with gaps, of which each says its one length, as a row."""
    gaps = read_gaps(text, tokenizer, vocab_size, longest=longest)
    known = [lengths[0] for lengths in gaps.lengths if lengths is not None]
    if any(gaps.open):
        raise ValueError(f"text = {text!r} is not accepted here: give the number of every gap, as in [[gap:8]]")
    return gaps.row(known)


def _read_ids(ids: Sequence[int | None], vocab_size: int) -> Gaps:
    parts: list[list[int]] = [[]]
    for token in ids:
        if token is None:
            parts.append([])
        else:
            parts[-1] += token_row([token], vocab_size, name="text")
    if len(parts) == 1:
        raise ValueError(f"text = {numbers.shown(ids)} has no gap: among token ids, None is one that is missing")
    return Gaps(tuple(map(tuple, parts)), (range(1, 2),) * (len(parts) - 1))


def _lengths(mark: re.Match[str], longest: int) -> range | None:
    """What a gap says of its length."""
    said = [number for number in mark.groups() if number is not None]
    if not said:
        return None
    low, high = (int(number) if len(number) <= _DIGITS else longest + 1 for number in (said[0], said[-1]))
    if not 1 <= low <= high <= longest:
        order = ", and a range begins with the smaller number" if 1 <= high < low <= longest else ""
        raise ValueError(f"{_shown(mark[0])} is not accepted: a gap has 1 to {longest:,} tokens here{order}")
    return range(low, high + 1)


def _shown(mark: str) -> str:
    return mark if len(mark) <= _SHOWN else f"{mark[: _SHOWN // 2]}...{mark[-_SHOWN // 2 :]}"


def _words_begin_with_space(tokenizer: Tokenizer) -> bool:
    """Whether the space before a word is part of its token: then a gap begins with it."""
    return len(tokenizer.encode(" the", add_special_tokens=False).ids) < 4 and len(
        tokenizer.encode("a the", add_special_tokens=False).ids
    ) <= 1 + len(tokenizer.encode("the", add_special_tokens=False).ids)
