"""What comes of sampling: texts, a frame a step for those who watch, and what it took."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hdlm.sampling.prompts import decode

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass
class Stats:
    """What generation took.

    `slots`: inputs to the trunk, all rows together; `reused_slots`: those that the cache saved.
    `skipped_calls`: steps that needed no call of their own, since nothing could change or rows went ahead.
    `head_slots`: positions at which the vocabulary was scored; `keys`: keys that slots could look at, a call and row at
    a time, and `pairs` of slots and keys. `seconds`: of the loop alone, not of those who watch it.
    """

    network_calls: int = 0
    skipped_calls: int = 0
    slots: int = 0
    reused_slots: int = 0
    head_slots: int = 0
    keys: int = 0
    pairs: int = 0
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

    @property
    def tokens_per_second(self) -> float:
        """New tokens per second of wall clock."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    def to_json(self) -> dict[str, float]:
        """All numbers by name."""
        return vars(self) | {"tokens_per_second": self.tokens_per_second}

    def __add__(self, other: "Stats") -> "Stats":
        return Stats(**{name: value + getattr(other, name) for name, value in vars(self).items()})


@dataclass(frozen=True)
class Frame:
    """The state after one step, for those who watch.

    `tokens` [batch, length]; `window` [batch, W] the active positions; `before` [batch, W] what they held before the
    step; `window_levels` [W] their levels after it; `confidence` [batch, W] the probability that the network gave the
    token that a position took in this step, NaN where it took none; `given` [batch, length] what was there from the
    beginning. `rows`: the numbers of the samples that these rows are.
    """

    step: int
    tokens: Tensor
    window: Tensor
    before: Tensor
    window_levels: Tensor
    confidence: Tensor
    given: Tensor
    max_level: int
    rows: tuple[int, ...] = ()

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


@dataclass(frozen=True)
class Samples:
    """Texts and what they took. `tokens` and `text` are whole, prompt included, up to EOS; `new_text` begins
    where the first thing was written. `seed` and `settings`, what each was drawn with after the model's own defaults,
    give them again.
    """

    tokens: list[list[int]]
    prompt_lengths: list[int]
    ended: list[bool]
    settings: list[dict[str, Any]]
    stats: Stats
    seed: int
    tokenizer: "Tokenizer | None" = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def text(self) -> list[str]:
        """Whole texts."""
        return [decode(self.tokenizer, row) for row in self.tokens]

    @property
    def new_text(self) -> list[str]:
        """Texts without their prompts."""
        rows = zip(self.tokens, self.prompt_lengths, strict=True)
        return [decode(self.tokenizer, row[length:]) for row, length in rows]

    def to_json(self) -> list[dict]:
        """One object per sample."""
        rows, texts = [], self.text if self.tokenizer is not None else None
        for i, tokens in enumerate(self.tokens):
            row = {"sample": i, "seed": self.seed, "ended": self.ended[i], "prompt_tokens": self.prompt_lengths[i]}
            row["settings"] = self.settings[i]
            rows.append(row | ({} if texts is None else {"text": texts[i]}) | {"tokens": tokens})
        return rows
