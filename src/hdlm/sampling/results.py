"""What comes of sampling: texts, a frame a step for those who watch, log-probabilities, and what it took."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hdlm.sampling.prompts import decode, decode_masked, pieces_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass
class Stats:
    """What generation took.

    `slots`: inputs to the trunk, all rows together; `reused_slots`: those that the cache saved.
    `skipped_calls`: steps that needed no call of their own, since nothing could change or rows went ahead.
    `head_slots`: positions at which the vocabulary was scored; `keys`: keys that slots could look at, a call and row at
    a time, and `pairs` of slots and keys. `drafted`, `accepted`: tokens of drafts that were verified, and those kept.
    `seconds`: of the loop alone, not of those who watch it.
    """

    network_calls: int = 0
    skipped_calls: int = 0
    slots: int = 0
    reused_slots: int = 0
    head_slots: int = 0
    keys: int = 0
    pairs: int = 0
    drafted: int = 0
    accepted: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def add_call(self, rows: list[tuple[int, int, int]], *, scored: int, cached: bool) -> None:
        """Count a call: of each row how many positions the cache held, how many settled slots were fed, and all slots.

        Settled slots see what is before them and themselves, the window's slots everything.
        """
        self.network_calls += 1
        self.head_slots += scored
        for held, settled, fed in rows:
            self.slots += fed
            self.reused_slots += held
            self.keys += held + fed if cached else 0
            self.pairs += settled * held + settled * (settled + 1) // 2 + (fed - settled) * (held + fed)

    def add_branched_call(self, rows: list[tuple[int, int, list[int]]], *, width: int, cached: bool) -> None:
        """Count a call with windows of `width` slots: of each row positions held, settled slots, where windows start.

        Settled slots see what is before them and themselves, a window's slots what is before it and all of it.
        """
        self.network_calls += 1
        for held, settled, starts in rows:
            fed = settled + len(starts) * width
            self.slots += fed
            self.reused_slots += held
            self.keys += held + fed if cached else 0
            self.pairs += settled * held + settled * (settled + 1) // 2 + sum(width * (at + width) for at in starts)

    def add_verdicts(self, drafted: list[int], kept: list[int], gained: list[int]) -> None:
        """Count the drafts of rows that go on, and what was kept of them."""
        for count, found, new in zip(drafted, kept, gained, strict=True):
            self.drafted += count if new else 0
            self.accepted += min(found, new)

    def beside(self, other: "Stats") -> "Stats":
        """Of two processes that work at the same time: what both took, and the seconds of the longer one."""
        return replace(self + other, seconds=max(self.seconds, other.seconds))

    @property
    def tokens_per_second(self) -> float:
        """New tokens per second of wall clock."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    def __str__(self) -> str:
        fed = self.slots + self.reused_slots
        kept = f", {self.accepted / self.drafted:.0%} of {self.drafted:,} drafted tokens kept" if self.drafted else ""
        return (
            f"{self.tokens:,} tokens in {self.seconds:.1f} s, {self.tokens_per_second:,.0f} tokens/s; "
            f"{self.network_calls:,} network calls ({self.skipped_calls:,} spared){kept}; {self.slots:,} slots, cache "
            f"hits {self.reused_slots / max(fed, 1):.0%}"
        )

    def to_json(self) -> dict[str, float]:
        """All numbers by name."""
        return vars(self) | {"tokens_per_second": self.tokens_per_second}

    def __add__(self, other: "Stats") -> "Stats":
        return Stats(**{name: value + getattr(other, name) for name, value in vars(self).items()})


@dataclass(frozen=True)
class Wording:
    """How the rows of a batch are read as text: each up to its own length, and where one has ended up to there."""

    tokenizer: "Tokenizer | None"
    lengths: tuple[int, ...]
    mask_id: int | None
    eos_id: int | None

    def text(self, row: int, tokens: list[int], given: list[bool]) -> str:
        """The text of a row's tokens; those that were given do not end it."""
        length = self.lengths[row]
        end = next((n for n in range(length) if tokens[n] == self.eos_id and not given[n]), length)
        return decode_masked(self.tokenizer, [None if token == self.mask_id else token for token in tokens[:end]])


@dataclass(frozen=True)
class Frame:
    """The state after one step, for those who watch.

    `tokens` [batch, length]; `window` [batch, W] the active positions; `before` [batch, W] what they held before the
    step; `window_levels` [W] their levels after it; `confidence` [batch, W] the probability that the network gave the
    token that a position took in this step, NaN where it took none; `doubt` [batch, W] the one that it gave there to
    the token that was taken back, NaN where there was none; `given` [batch, length] what was there from the beginning.
    `rows`: the numbers of the samples that these rows are. `logprobs` [batch, W], where asked for: the log
    of the probability that the network itself, nothing warped, gave what an active position holds now; NaN for MASK.
    `likeliest`, where asked for: the tokens to which it gave the most, and the logs of those, [batch, W, count]; NaN
    where it was not asked.
    """

    step: int
    tokens: Tensor
    window: Tensor
    before: Tensor
    window_levels: Tensor
    confidence: Tensor
    doubt: Tensor
    given: Tensor
    max_level: int
    rows: tuple[int, ...] = ()
    logprobs: Tensor | None = None
    likeliest: tuple[Tensor, Tensor] | None = None
    wording: Wording | None = field(default=None, repr=False)

    @property
    def text(self) -> list[str]:
        """The texts as they are now, prompt included, up to a new EOS; every MASK is shown as ░."""
        if self.wording is None:
            raise ValueError("this frame is of no bundle: read .tokens")
        rows = zip(self.tokens.tolist(), self.given.tolist(), strict=True)
        return [self.wording.text(row, tokens, given) for row, (tokens, given) in enumerate(rows)]

    def _spread(self, values: Tensor, left: Any, right: Any) -> Tensor:
        """`values` [batch, W] or [W] at their positions, others left and right of the window: [batch, length]."""
        index = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        base = torch.where(index < self.window[:, :1], left, right).to(values.dtype)
        return base.scatter(1, self.window, values.expand_as(self.window))

    @property
    def levels(self) -> Tensor:
        """Noise levels after the step, [batch, length]; 0 where a token is given."""
        return self._spread(self.window_levels, 0, self.max_level).masked_fill(self.given, 0)

    @property
    def settled(self) -> Tensor:
        """Tokens that are final, [batch, length]."""
        return self.levels == 0

    @property
    def window_changed(self) -> Tensor:
        """Active positions that this step gave another state, [batch, W]."""
        return self.tokens.gather(1, self.window) != self.before

    @property
    def changed(self) -> Tensor:
        """Positions that this step gave another state, [batch, length]."""
        return self._spread(self.window_changed, False, False)


class LogProbs:
    """The log-probabilities of a batch's tokens, kept from frames that have them: `values` [batch, length], float64.

    A token's is of the step that last changed its position. Noise that no step changed, of a process without MASK, has
    that of the step that settled it. `likeliest`, where frames have it: the tokens that were likeliest in that step and
    their log-probabilities, [batch, length, count].
    """

    def __init__(self, tokens: Tensor) -> None:
        self.values = torch.full(tokens.shape, math.nan, dtype=torch.float64, device=tokens.device)
        self.likeliest: tuple[Tensor, Tensor] | None = None

    def see(self, frame: Frame) -> None:
        """Keep what a frame set."""
        assert frame.logprobs is not None
        fresh = frame.window_changed | ((frame.window_levels == 0) & self.values.gather(1, frame.window).isnan())
        _keep(self.values, frame.window, fresh, frame.logprobs)
        if frame.likeliest is not None:
            if self.likeliest is None:
                shape = (*self.values.shape, frame.likeliest[0].shape[-1])
                self.likeliest = frame.tokens.new_zeros(shape), self.values.new_full(shape, math.nan)
            for kept, found in zip(self.likeliest, frame.likeliest, strict=True):
                _keep(kept, frame.window, fresh, found)


def _keep(values: Tensor, window: Tensor, fresh: Tensor, found: Tensor) -> None:
    """Write what is `fresh` [batch, W] of what was `found` [batch, W, ...] where the window lies in `values`."""
    row, place = fresh.nonzero(as_tuple=True)
    values[row, window[row, place]] = found[row, place].to(values.dtype)


@dataclass(frozen=True, repr=False)
class Samples:
    """Texts and what they took. `len`, iteration and indexing are those of `text`; printed, it shows texts and stats.

    `tokens` and `text` are whole, prompt included, up to EOS; `new_text` begins where the first thing was written.
    `written`: the positions in `tokens` of what was not given. `seed` and `settings`, what each was drawn with after
    the model's own defaults, give them again.

    `logprobs`, None unless asked for: one number for each position in `written`, the natural log of the probability
    that the network itself (temperature 1, nothing truncated, whatever was drawn with) gave the token in the step that
    last changed it. By step rule:

    - `ar`: log p(token | all text before), so that a text's sum is its exact log-likelihood given the prompt;
    - `original`, `certain`, `confidence`: given all that was there before the token was unmasked. Tokens of one step do
      not know of each other: where each step settles one, the sum is the log-likelihood along the order taken;
    - `posterior`, `tau-leaping`, `euler`: of the clean token given the noisy text, not of the step itself; a token may
      be changed several times, and the last one counts. Noise that never changed: in the step that settled it;
    - `acs`, `remask`: the last change too. A token drawn anew that came out the same keeps what it had.
    """

    tokens: list[list[int]]
    prompt_lengths: list[int]
    ended: list[bool]
    settings: list[dict[str, Any]]
    written: list[list[int]]
    logprobs: list[list[float]] | None
    stats: Stats
    seed: int
    tokenizer: "Tokenizer | None" = None

    def __len__(self) -> int:
        return len(self.tokens)

    def __iter__(self) -> Iterator[str]:
        return iter(self.text)

    def __getitem__(self, number: int) -> str:
        return decode(self.tokenizer, self.tokens[number])

    def __repr__(self) -> str:
        return f"Samples({len(self)} texts, {self.stats.tokens:,} new tokens, seed {self.seed})"

    def __str__(self) -> str:
        return "\n".join([*self.shown, f"{self.stats}; seed {self.seed}"])

    @property
    def shown(self) -> list[str]:
        """Lines to print: the texts, where there are several each under its number; ids where there is no tokenizer."""
        rows = [" ".join(map(str, row)) for row in self.tokens] if self.tokenizer is None else self.text
        if len(rows) == 1:
            return rows
        return [line for n, row in enumerate(rows, start=1) for line in (f"--- {n} of {len(rows)} ---", row)]

    @property
    def text(self) -> list[str]:
        """Whole texts."""
        return [decode(self.tokenizer, row) for row in self.tokens]

    @property
    def new_text(self) -> list[str]:
        """Texts without their prompts."""
        rows = zip(self.tokens, self.prompt_lengths, strict=True)
        return [decode(self.tokenizer, row[length:]) for row, length in rows]

    @property
    def pieces(self) -> list[list[str]]:
        """Each text in parts, one a token; a character of several tokens is part of the last of them."""
        return [pieces_of(self.tokenizer, row) for row in self.tokens]

    def to_json(self) -> list[dict]:
        """One object per sample; `logprobs`: one object per new token, null where the probability is 0."""
        rows, texts = [], self.text if self.tokenizer is not None else None
        for i, tokens in enumerate(self.tokens):
            row = {"sample": i, "seed": self.seed, "ended": self.ended[i], "prompt_tokens": self.prompt_lengths[i]}
            row["settings"] = self.settings[i]
            row |= ({} if texts is None else {"text": texts[i]}) | {"tokens": tokens}
            rows.append(row | ({} if self.logprobs is None else {"logprobs": self._token_json(i, self.logprobs[i])}))
        return rows

    def _token_json(self, number: int, logprobs: list[float]) -> list[dict[str, Any]]:
        tokens, found = self.tokens[number], []
        pieces = pieces_of(self.tokenizer, tokens) if self.tokenizer is not None else None
        for position, logprob in zip(self.written[number], logprobs, strict=True):
            words = {} if pieces is None else {"text": pieces[position]}
            value = logprob if math.isfinite(logprob) else None
            found.append({"position": position, "token": tokens[position], **words, "logprob": value})
        return found
