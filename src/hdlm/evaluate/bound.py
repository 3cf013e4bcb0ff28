"""A likelihood bound: a number, how sure it is, what it bounds, and of how much text."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch


@dataclass(frozen=True)
class Bound:
    """An upper bound on -log p in nats per token; exact where its name says so.

    `schedule`: the hyperschedule that it goes by, as in "block 16"; each has a bound of its own.
    `error`: standard error over rows, of text and noise together (over draws where there is one row; None where there
    is one of each). `draw_error`: that of the noise draws, None for one draw; too large rather than too small, since it
    takes stratified draws for independent ones. `positions`: mean by position, from the end of the prefix on.
    `row_nats`: each row's nats.
    """

    name: str
    schedule: str
    value: float
    error: float | None
    draw_error: float | None
    tokens: int
    rows: int
    draws: int
    seconds: float
    positions: list[float] = field(default_factory=list, repr=False)
    row_nats: list[float] = field(default_factory=list, repr=False)
    beside: tuple["Bound", ...] = ()
    counts: dict[str, float] = field(default_factory=dict)

    @property
    def nats(self) -> float:
        """Nats for all tokens."""
        return self.value * self.tokens

    @property
    def perplexity(self) -> float:
        """exp of nats per token."""
        return math.exp(min(self.value, 700.0))

    def above(self, source: Sequence[float], count: float) -> tuple[float, float | None]:
        """Nats above what the rows' source needs for each, per one of `count` units, and the standard error of that."""
        excess = torch.tensor(self.row_nats, dtype=torch.float64) - torch.tensor(source, dtype=torch.float64)
        error = excess.std().item() * math.sqrt(len(excess)) / count if len(excess) > 1 else None
        return excess.sum().item() / count, error

    def counted(self, counts: dict[str, float]) -> "Bound":
        """The same bound of a text of so many bytes, words and GPT-2 tokens."""
        return replace(self, counts=counts, beside=tuple(bound.counted(counts) for bound in self.beside))

    def per(self, unit: str) -> float:
        """Nats per byte, word or GPT-2 token, where the text was counted in that."""
        if unit not in self.counts:
            raise ValueError(f"unit = {unit!r} is not accepted: this text was counted in {', '.join(self.counts)}")
        return self.nats / self.counts[unit]

    def to_json(self) -> dict:
        """All of it by name; bits per byte and perplexities per word and GPT-2 token where they can be had."""
        names = ("name", "schedule", "value", "error", "draw_error", "tokens", "rows", "draws", "seconds", "perplexity")
        found = {name: getattr(self, name) for name in names}
        if "bytes" in self.counts:
            found["bits_per_byte"] = self.per("bytes") / math.log(2)
        for unit in self.counts:
            if unit != "bytes":
                found[f"perplexity_per_{unit}"] = math.exp(min(self.per(unit), 700.0))
        return found | {"beside": [bound.to_json() for bound in self.beside], "positions": self.positions}
