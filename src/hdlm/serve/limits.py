"""How much a server does for one request, and for all: so that nobody can have all of it."""

from dataclasses import dataclass, fields
from typing import Any

from hdlm.theory import numbers


@dataclass(frozen=True)
class Limits:
    """`max_batch`: texts that are written at once; `max_queue`: requests that wait for that, before one is refused.

    `max_tokens`: new tokens of a text, `max_prompt`: those before them; None: as many as a model's context has.
    `max_body`: bytes of a request. `timeout`: seconds that a request may take, all in all. `steps_a_token`: steps of a
    text at most, for each of its new tokens.
    """

    max_batch: int = 16
    max_queue: int = 64
    max_tokens: int | None = None
    max_prompt: int | None = None
    max_body: int = 2**20
    timeout: float = 300.0
    steps_a_token: int = 16

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "timeout":
                numbers.positive(field.name, value)
            elif value is not None:
                numbers.integer(field.name, value, low=0 if field.name == "max_queue" else 1)

    def tokens(self, context: int) -> int:
        """New tokens of a text at most, by a model of some context."""
        return context if self.max_tokens is None else self.max_tokens

    def prompt(self, context: int) -> int:
        """Tokens of a prompt at most."""
        return context if self.max_prompt is None else self.max_prompt

    def to_json(self, context: int) -> dict[str, Any]:
        """What a client should know."""
        return {
            "max_tokens": self.tokens(context),
            "max_prompt": self.prompt(context),
            "max_samples": self.max_batch,
            "max_body": self.max_body,
            "timeout": self.timeout,
        }
