"""How likely a text is, token by token: exactly where the network can say so, else as shares of a likelihood bound.

Texts or token ids of any length: what is longer than the context is scored in rows, each on its own, as
`Bundle.perplexity` does, whose bound this is.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hdlm.config.schedule import ScheduleConfig
from hdlm.evaluate.bound import Bound
from hdlm.evaluate.likelihood import estimate
from hdlm.evaluate.ordered import ordered_likelihood
from hdlm.evaluate.texts import CHUNK, Rows, marks_of, rows_of_set, rows_of_texts, size_of
from hdlm.sampling.prompts import Pieces, Prompt, encode, encode_pieces, items_of, pieces_of, token_row
from hdlm.theory import checks
from hdlm.theory.entries import Quench
from hdlm.theory.hyperschedule import Hyperschedule

if TYPE_CHECKING:
    from hdlm.bundle import Bundle


@dataclass(frozen=True, repr=False)
class TextScore:
    """A text's tokens, the part of the text that each stands for, and the natural log of each one's probability.

    `pieces`, joined, are the text; a character of several tokens is part of the last, and the others are "". `exact`:
    `logprobs` are log p(token | all before it in its row). Else each is minus the token's share of the bound `name`,
    averaged over noise: only their sum is a bound, from below, on the text's log-probability. `bound`: the text's.
    """

    tokens: list[int]
    pieces: list[str]
    logprobs: list[float]
    exact: bool
    bound: Bound

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        error = "" if self.error is None else f" ± {self.error:.2f}"
        return f"TextScore({self.name}, {len(self)} tokens, total {self.total:.2f}{error})"

    @property
    def name(self) -> str:
        """Which likelihood or bound it is."""
        return self.bound.name

    @property
    def total(self) -> float:
        """The sum of `logprobs`."""
        return math.fsum(self.logprobs)

    @property
    def error(self) -> float | None:
        """The standard error of `total` from the draws of noise; None where it is exact, or there is one draw."""
        return None if self.bound.draw_error is None else self.bound.draw_error * self.bound.tokens

    @property
    def perplexity(self) -> float:
        """exp of nats per token."""
        return self.bound.perplexity

    def to_json(self) -> dict[str, Any]:
        """All of it by name; `tokens`: one object each."""
        rows = zip(self.tokens, self.pieces, self.logprobs, strict=True)
        found: dict[str, Any] = {"name": self.name, "schedule": self.bound.schedule, "exact": self.exact}
        found |= {"total": self.total, "error": self.error, "perplexity": self.perplexity, "draws": self.bound.draws}
        if "bytes" in self.bound.counts:
            found |= {"bytes": self.bound.counts["bytes"], "bits_per_byte": self.bound.per("bytes") / math.log(2)}
        return found | {"tokens": [{"token": a, "text": b, "logprob": c} for a, b, c in rows]}


def score(
    bundle: "Bundle",
    text: Prompt,
    *,
    hyperschedule: Hyperschedule | None = None,
    samples: int = 16,
    seed: int = 0,
    batch_size: int = 8,
    progress: Callable[[int, int], None] | None = None,
) -> TextScore:
    """The log-probability of every token of one text, or of one row of token ids.

    `hyperschedule` None: autoregression where the network learned it, else the network's own. `samples`: noise draws.
    `progress` is told rows done and rows to do.
    """
    checks.integer("samples", samples, low=1)
    tokens, pieces, size = _read(bundle, text)
    schedule = _chosen(bundle, len(tokens)) if hyperschedule is None else hyperschedule
    rows = _wrapped([tokens], bundle.config.context)
    nats = [torch.zeros(len(row), dtype=torch.float64) for row in rows]

    def keep(numbers: Tensor, found: Tensor) -> None:
        for number, values in zip(numbers.tolist(), found, strict=True):
            nats[number] += values

    how = {"hyperschedule": schedule, "draws": samples, "seed": seed, "batch_size": batch_size}
    bound = estimate(bundle, rows, **how, progress=progress, keep=keep).counted({"bytes": size} if size else {})
    logprobs = (-torch.cat(nats) / bound.draws).tolist()
    return TextScore(tokens, pieces, logprobs, schedule.autoregressive, bound)


def text_bound(
    bundle: "Bundle",
    texts: Prompt | Path,
    *,
    samples: int,
    seed: int,
    hyperschedule: Hyperschedule | None,
    order: str | None = None,
    batch_size: int,
) -> Bound:
    """The bound on texts or rows of token ids, each on its own, or on a set (a `Path`), as `Bundle.perplexity` says."""
    checks.integer("samples", samples, low=1)
    if isinstance(texts, Path):
        rows = rows_of_set(bundle, str(texts))
    else:
        rows = _rows(bundle, items_of(texts, name="texts", besides="a Path"))
    how = {"hyperschedule": hyperschedule, "batch_size": batch_size}
    if order is not None:
        return ordered_likelihood(bundle, rows.tokens, order, **how).counted(rows.counts)
    return estimate(bundle, rows.tokens, **how, draws=samples, seed=seed).counted(rows.counts)


def _read(bundle: "Bundle", text: Prompt) -> tuple[list[int], list[str], int]:
    """The tokens of one text, the part of it that each stands for, and the text's bytes; 0 where it is not known."""
    tokenizer, items = bundle.tokenizer, items_of(text, name="text", besides="")
    if len(items) != 1:
        raise ValueError(f"{len(items)} texts are not accepted: one at a time is scored token by token")
    [item] = items
    if isinstance(item, str):
        parts = [encode_pieces(tokenizer, item[i : i + CHUNK]) for i in range(0, len(item), CHUNK)]
        tokens = [token for part in parts for token in part[0]]
        pieces = [piece for part in parts for piece in part[1]]
    else:
        tokens = token_row(item, bundle.config.model.vocab_size, name="text")
        shown = Pieces(None)
        pieces = [shown(token) for token in tokens] if tokenizer is None else pieces_of(tokenizer, tokens, special=True)
    if not tokens:
        raise ValueError("text holds no text: there is nothing to score")
    size = 0 if tokenizer is None else size_of("".join(pieces), marks_of(tokenizer))
    return tokens, pieces, size


def _chosen(bundle: "Bundle", length: int) -> Hyperschedule:
    """Autoregression where the network learned it, else the network's own."""
    exact = Quench(length)
    learned = bundle.config.shifted and bundle.config.was_trained_on(ScheduleConfig.of(exact), length)
    return exact if learned else bundle.hyperschedule


def _rows(bundle: "Bundle", items: list[Any]) -> Rows:
    """Texts and rows of ids as rows that the context holds. Bytes and words are counted where all can be read."""
    if all(isinstance(item, str) for item in items):
        return rows_of_texts(bundle, items, joined=False)
    tokenizer, size = bundle.tokenizer, bundle.config.model.vocab_size
    tokens = [
        encode(tokenizer, item) if isinstance(item, str) else token_row(item, size, name="texts") for item in items
    ]
    counts = {}
    if tokenizer is not None:
        texts = [tokenizer.decode(row, skip_special_tokens=False) for row in tokens]
        counts["bytes"] = sum(size_of(text, marks_of(tokenizer)) for text in texts)
        counts["word"] = sum(len(text.split()) for text in texts)
    rows = _wrapped(tokens, bundle.config.context)
    if not rows:
        raise ValueError("texts hold no tokens: there is nothing to score")
    return Rows(rows, {unit: count for unit, count in counts.items() if count})


def _wrapped(rows: list[list[int]], length: int) -> list[list[int]]:
    """Rows of at most `length` tokens."""
    return [row[i : i + length] for row in rows for i in range(0, len(row), length)]
