"""Answers in OpenAI's words: completions and chat, whole or chunk by chunk. Knows no engine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hdlm.serve.writing import Delta, Token

Piece = Callable[[int], str]


@dataclass
class Text:
    """What deltas of one text come to."""

    text: str = ""
    tokens: list[Token] = field(default_factory=list)
    finish: str = ""

    def add(self, delta: Delta) -> None:
        """Take one more."""
        self.text += delta.text
        self.tokens += delta.tokens
        self.finish = delta.finish


@dataclass(frozen=True)
class Completion:
    """The form of `/v1/completions`. `logprobs`: whether tokens are told; `piece`: the text of a token by itself."""

    id: str
    created: int
    model: str
    logprobs: bool
    piece: Piece
    prefixes: Sequence[str] = ()  # of each text, where it is echoed
    kinds = ("text_completion", "text_completion")

    def frame(self, choices: list[dict[str, Any]], *, chunk: bool) -> dict[str, Any]:
        """An answer with these choices."""
        head = {"id": self.id, "object": self.kinds[chunk], "created": self.created, "model": self.model}
        return head | {"choices": choices}

    def _prefix(self, index: int) -> str:
        return self.prefixes[index] if self.prefixes else ""

    def choice(self, index: int, text: Text) -> dict[str, Any]:
        """A whole text."""
        said = self._prefix(index) + text.text
        told = self._told(text.tokens, len(self._prefix(index))) if self.logprobs else None
        ids = [token.id for token in text.tokens]
        return {"index": index, "text": said, "logprobs": told, "finish_reason": text.finish, "tokens": ids}

    def opening(self, index: int) -> dict[str, Any] | None:
        """What is sent of a text before its first delta."""
        return self._part(index, self._prefix(index), None, None) if self._prefix(index) else None

    def part(self, delta: Delta, before: int) -> dict[str, Any]:
        """A piece of a text, behind so many signs of it."""
        told = self._told(delta.tokens, len(self._prefix(delta.index)) + before) if self.logprobs else None
        return self._part(delta.index, delta.text, told, delta.finish or None)

    def _part(self, index: int, text: str, told: Any, finish: str | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": told, "finish_reason": finish}

    def _told(self, tokens: list[Token], offset: int) -> dict[str, Any]:
        found: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token in tokens:
            found["tokens"].append(token.text)
            found["token_logprobs"].append(token.logprob)
            found["top_logprobs"].append({self.piece(one): log for one, log in reversed(token.others)})
            found["text_offset"].append(offset)
            offset += len(token.text)
        return found


@dataclass(frozen=True)
class Chat(Completion):
    """The form of `/v1/chat/completions`."""

    kinds = ("chat.completion", "chat.completion.chunk")

    def choice(self, index: int, text: Text) -> dict[str, Any]:
        message = {"role": "assistant", "content": text.text, "refusal": None}
        told = self._told(text.tokens, 0) if self.logprobs else None
        ids = [token.id for token in text.tokens]
        return {"index": index, "message": message, "logprobs": told, "finish_reason": text.finish, "tokens": ids}

    def opening(self, index: int) -> dict[str, Any] | None:
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _part(self, index: int, text: str, told: Any, finish: str | None) -> dict[str, Any]:
        return {"index": index, "delta": {"content": text} if text else {}, "logprobs": told, "finish_reason": finish}

    def _told(self, tokens: list[Token], offset: int) -> dict[str, Any]:
        content = []
        for token in tokens:
            others = [self._one(self.piece(one), log) for one, log in token.others]
            content.append(self._one(token.text, token.logprob) | {"top_logprobs": others})
        return {"content": content, "refusal": None}

    @staticmethod
    def _one(text: str, logprob: float | None) -> dict[str, Any]:
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}
