"""A text as it comes: of its settled tokens what can be said already, up to a stop text. Knows no server."""

from collections.abc import Sequence
from itertools import accumulate

from tokenizers import Tokenizer

from hdlm.sampling.company import Seat
from hdlm.sampling.prompts import LONGEST_CHARACTER, LOST, decode

_BEFORE = 8  # tokens of a prompt behind which a text's first ones are read, so that their spaces stay


class Speller:
    """Tokens one by one as the text that they add; bytes that are no character yet wait for the next ones."""

    def __init__(self, tokenizer: Tokenizer | None, before: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._tokens = list(before[-_BEFORE:])
        self._start = len(self._tokens)  # what was not said yet lies behind
        self._context = 0  # it is read behind what lies from here on

    def add(self, token: int) -> str:
        """What a token adds; "" where it is part of a character that a later one ends."""
        self._tokens.append(token)
        if self._tokenizer is None:
            return ""
        found = decode(self._tokenizer, self._tokens[self._context :])
        if found.endswith(LOST) and len(self._tokens) - self._start < LONGEST_CHARACTER:
            return ""
        return self._said(found)

    def end(self) -> str:
        """What is left of a text that ends in the middle of a character."""
        if self._tokenizer is None or self._start == len(self._tokens):
            return ""
        return self._said(decode(self._tokenizer, self._tokens[self._context :]))

    def _said(self, found: str) -> str:
        assert self._tokenizer is not None
        known = decode(self._tokenizer, self._tokens[self._context : self._start])
        self._context, self._start = self._start, len(self._tokens)
        return found[len(known) :]


class Flow:
    """What a seat writes behind its prompt: settled tokens, the part of the text that each adds, and where it stops.

    `text` ends before the first of the texts `stop`; `finish` says why there is no more of it, once there is not.
    """

    def __init__(self, seat: Seat, tokenizer: Tokenizer | None, stop: Sequence[str] = ()) -> None:
        prompt = seat.row[: seat.row.index(None)]
        self._start, self._stop = len(prompt), tuple(stop)
        self._speller = Speller(tokenizer, [token for token in prompt if token is not None])
        self.tokens: list[int] = []
        self.pieces: list[str] = []
        self.text, self.finish = "", ""

    def see(self, seat: Seat) -> bool:
        """Take what is settled by now; whether there may be more."""
        fresh = seat.tokens[self._start + len(self.tokens) : seat.settled]
        searched = len(self.text)
        for token in fresh:
            self._add(token, self._speller.add(token))
        if seat.over and self.pieces:
            rest = self._speller.end()
            self.pieces[-1] += rest
            self.text += rest
        if (found := self._first_stop(searched)) is not None:
            self._cut(found)
        elif seat.over:
            self.finish = "stop" if seat.run.ended.item() else "length"
        return not self.finish

    def _add(self, token: int, piece: str) -> None:
        self.tokens.append(token)
        self.pieces.append(piece)
        self.text += piece

    def _first_stop(self, searched: int) -> int | None:
        """Where the first stop text begins, of a text of which so much was searched before."""
        places = (self.text.find(stop, max(0, searched - len(stop))) for stop in self._stop)
        return min((place for place in places if place >= 0), default=None)

    def _cut(self, place: int) -> None:
        """End the text there; a token that only adds what lies behind is no part of it."""
        ends = [0, *accumulate(map(len, self.pieces))]
        count = next((n for n, end in enumerate(ends) if end >= place), len(self.pieces))
        self.tokens, self.pieces = self.tokens[:count], self.pieces[:count]
        self.text, self.finish = self.text[:place], "stop"
        if self.pieces:
            self.pieces[-1] = self.text[ends[count - 1] :]

    def ready(self) -> int:
        """How many tokens will be part of the text whatever follows: those that no stop text may begin in."""
        if self.finish:
            return len(self.pieces)
        held = max((_overlap(self.text, stop) for stop in self._stop), default=0)
        safe, end = 0, 0
        for count, piece in enumerate(self.pieces, start=1):
            end += len(piece)
            if end <= len(self.text) - held and piece:
                safe = count
        return safe


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of a text that `stop` begins with."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)
