"""Layouts: what one forward pass sees, and the one rule of who may attend to whom.

A forward pass is a list of slots. Slot q may attend to slot k when

    (k is settled and position[k] <= limit[q])   or   (window[k] == window[q] and window[q] >= 0)

and that is every mask of the paper: autoregressive, flat, block and slide, aligned and shifted, doubled for
training or cached for inference. Positions count from 0, BOS included where there is one (shifted): token i
is at position i when aligned, i + 1 when shifted. Knows no network; `Layout.fill` turns a batch into the plain
numbers per slot that a network needs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hdlm.theory import checks
from hdlm.theory.hyperschedule import Hyperschedule
from hdlm.theory.levels import Runs, levels_of, spread

if TYPE_CHECKING:
    from hdlm.theory.process import Process

SETTLED = -1  # window of a settled slot
NOTHING = -1  # what a slot predicts when its output is discarded, and the token of the noiseless level
BOS, PADDING = -1, -2  # what a slot holds when it is no token of the sequence


class Pattern(Enum):
    """Masks that attention kernels know by name, so that they need not be spelled out."""

    FULL = "every slot sees every slot"
    CAUSAL = "every slot sees itself and those before it"
    GENERAL = "the rule, slot by slot"


def may_attend(*, q_window: Tensor, q_limit: Tensor, k_window: Tensor, k_position: Tensor) -> Tensor:
    """The rule: boolean [..., Q, K] from per-slot tensors [..., Q] and [..., K]."""
    q_window, q_limit = q_window.unsqueeze(-1), q_limit.unsqueeze(-1)
    k_window, k_position = k_window.unsqueeze(-2), k_position.unsqueeze(-2)
    settled = (k_window == SETTLED) & (k_position <= q_limit)
    return settled | ((k_window == q_window) & (q_window >= 0))


@dataclass(frozen=True, eq=False)
class Layout:
    """Slots without their contents: integer tensors [slots] (or [batch, slots], rows of their own).

    `holds`: the token of the sequence in a slot, or BOS, or PADDING. `predicts`: the token that its output is
    for, or NOTHING. `noisy`: whether it holds the noisy token rather than the clean one. Neighbours that share a noise
    level share what a network computes from it: `level_token` [levels] is the token whose time each level has (NOTHING:
    noiseless), in the order of the slots, and `runs` says how many slots each serves: groups of (levels, slots each).
    """

    holds: Tensor
    predicts: Tensor
    position: Tensor
    noisy: Tensor
    window: Tensor
    limit: Tensor
    level_token: Tensor
    runs: Runs
    pattern: Pattern = Pattern.GENERAL

    def __len__(self) -> int:
        return self.holds.shape[-1]

    def to(self, device: torch.device | str) -> "Layout":
        """The same layout on another device."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: x.to(device) for name, x in values.items() if isinstance(x, Tensor)})

    def moved(self, by: Tensor) -> "Layout":
        """The same slots further right, row r by `by[r]` positions [batch]: tensors [batch, slots]. Padding stays."""
        by, padding = by.unsqueeze(1), self.holds == PADDING
        named = {name: getattr(self, name) for name in ("holds", "position", "limit")}
        moved = {name: torch.where(padding, x, x + by) for name, x in named.items()}
        named = {name: getattr(self, name) for name in ("predicts", "level_token")}
        moved |= {name: torch.where(x == NOTHING, NOTHING, x + by) for name, x in named.items()}
        return replace(self, **moved)

    def mask(self) -> Tensor:
        """The rule spelled out: boolean [..., slots, slots], row q True where it may look."""
        return may_attend(q_window=self.window, q_limit=self.limit, k_window=self.window, k_position=self.position)

    def fill(
        self,
        x0: Tensor,
        xt: Tensor,
        t: Tensor,
        process: "Process",
        *,
        bos_id: int | None = None,
        known: Tensor | None = None,
    ) -> "Slots":
        """Contents for a batch: clean and noisy tokens [batch, length], and times t that broadcast to them.

        `known` [batch, length]: tokens that are certain although their window is noisy, as around a gap to be filled:
        their embedding counts in full.
        """
        needs_bos = not checks.skips_values() and bool((self.holds == BOS).any())
        if needs_bos and bos_id is None:
            raise ValueError("bos_id = None is not accepted: a shifted layout holds BOS and needs its id")
        batch, t = x0.shape[0], t.expand(x0.shape)
        holds = self.holds.expand(batch, -1)
        index = holds.clamp(min=0)
        token = torch.where(self.noisy, xt.gather(1, index), x0.gather(1, index))
        token = torch.where(holds == BOS, bos_id if bos_id is not None else 0, token)
        token = torch.where(holds == PADDING, 0, token)
        uncertain = self.noisy if known is None else self.noisy & ~known.gather(1, index)
        held_time = torch.where(uncertain, t.gather(1, index), 0.0)
        level_token = self.level_token.expand(batch, -1)
        time = torch.where(level_token == NOTHING, 0.0, t.gather(1, level_token.clamp(min=0)))
        return Slots(
            layout=self,
            token=token,
            sigma=process.noise.sigma(time),
            weight=process.embedding_weight(held_time),
        )


@dataclass(frozen=True, eq=False)
class Slots:
    """A layout filled with a batch: all that a network needs, as plain numbers.

    `token` [batch, slots]; `sigma` [batch, levels] the noise of each level, spread over the slots by `layout.runs`: a
    slot's is that of the position it predicts; `weight` [batch, slots] the share of its own embedding of the token that
    a slot holds.
    """

    layout: Layout
    token: Tensor
    sigma: Tensor
    weight: Tensor

    def slot_sigma(self) -> Tensor:
        """The noise of each slot, [batch, slots]."""
        return spread(self.sigma.unsqueeze(-1), self.layout.runs).squeeze(-1).expand(self.token.shape)


def build_layout(
    length: int,
    windows: Sequence[tuple[int, int]],
    *,
    shifted: bool,
    settled: int | None = None,
    skip: int = 0,
    block: int | None = None,
    slots: int | None = None,
    one_level_a_window: bool = False,
) -> Layout:
    """A layout of settled slots followed by any list of windows [start, stop), which may overlap.

    `settled`: positions that appear clean, counted from the left (default: all, BOS included where shifted);
    `skip`: how many of them are left out because a cache holds them; `block`: settled slots see to the end
    of their own block of this width instead of only to themselves; `slots`: pad to this many;
    `one_level_a_window`: all tokens of a window have the same time, so that its slots share one level.
    """
    checks.integer("length", length, low=1)
    shift = int(shifted)
    settled = checks.integer("settled", length + shift if settled is None else settled, low=0, high=length + shift)
    checks.integer("skip", skip, low=0, high=settled)
    if block is not None and shifted:
        raise ValueError(f"block = {block!r} is not accepted: block-causal settled slots need an aligned layout")
    if block is not None:
        checks.integer("block", block, low=1)
    positions = torch.arange(skip, settled)
    limit = positions if block is None else ((positions // block + 1) * block).clamp(max=settled) - 1
    columns = [_columns(positions - shift, positions, False, SETTLED, limit)]
    for number, (start, stop) in enumerate(windows):
        if not 0 <= start < stop <= length:
            raise ValueError(f"window [{start}, {stop}) is not accepted: it must lie within [0, {length}]")
        held = torch.arange(start - shift, stop)
        columns.append(_columns(held, held + shift, held >= start, number, start - 1))
    holds, position, noisy, window, limit = (torch.cat(column) for column in zip(*columns, strict=True))

    # The last slot of a shifted window, and of the settled part, would predict past its end.
    predicts = position.clone()
    if shifted:
        ends = torch.cat([window[1:] != window[:-1], torch.tensor([True])]) & (window != SETTLED)
        predicts[ends] = NOTHING
    predicts[position >= length] = NOTHING

    # A discarded output predicts nothing, but its keys are read: it has the level of what it holds.
    token = torch.where(predicts == NOTHING, holds, predicts)
    if one_level_a_window:
        token = torch.tensor([start for start, _ in windows] or [0])[window.clamp(min=0)]
    token = torch.where(window == SETTLED, NOTHING, token)
    level_token, runs = levels_of(token, int((window == SETTLED).sum()))
    layout = Layout(
        holds, predicts, position, noisy, window, limit, level_token, runs, _pattern(window, limit, position)
    )
    return layout if slots is None else _pad(layout, slots, window_number=len(windows))


def _pattern(window: Tensor, limit: Tensor, position: Tensor) -> Pattern:
    """The name of the mask, where it has one and positions are 0, 1, 2, ..."""
    if not torch.equal(position, torch.arange(len(position))):
        return Pattern.GENERAL
    if (window == 0).all():
        return Pattern.FULL
    if (window == SETTLED).all() and torch.equal(limit, torch.arange(len(limit))):
        return Pattern.CAUSAL
    return Pattern.GENERAL


def _columns(holds: Tensor, position: Tensor, noisy: Tensor | bool, window: int, limit: Tensor | int) -> list[Tensor]:
    full = torch.full_like(holds, 0)
    noisy_column = noisy if isinstance(noisy, Tensor) else torch.full_like(holds, noisy, dtype=torch.bool)
    return [holds, position, noisy_column, full + window, full + limit]


_PADDING_SLOT = {"holds": PADDING, "predicts": NOTHING, "position": 0, "noisy": 0, "limit": -1}


def _pad(layout: Layout, slots: int, window_number: int) -> Layout:
    """Padding slots look at each other in a window of their own: no row of the mask is empty."""
    missing = checks.integer("slots", slots, low=len(layout)) - len(layout)
    padding = _PADDING_SLOT | {"window": window_number}
    columns = {
        name: torch.cat([getattr(layout, name), getattr(layout, name).new_full((missing,), value)])
        for name, value in padding.items()
    }
    if missing == 0:
        return layout
    # Where levels serve one slot each, padding takes levels of its own: their number then depends on `slots` alone.
    levels, each = layout.runs[-1]
    single = each == 1
    runs = (*layout.runs[:-1], (levels + missing, 1)) if single else (*layout.runs, (1, missing))
    level_token = torch.cat([layout.level_token, layout.level_token.new_full((missing if single else 1,), NOTHING)])
    return replace(layout, **columns, level_token=level_token, runs=runs, pattern=Pattern.GENERAL)


def stack_layouts(layouts: Sequence[Layout]) -> Layout:
    """One layout for a batch whose rows differ, such as prompts of several lengths: tensors [batch, slots]."""
    slots = max(len(layout) for layout in layouts)
    rows = [_pad(layout, slots, window_number=int(layout.window.max()) + 1) for layout in layouts]
    tokens = [spread(row.level_token.view(1, -1, 1), row.runs).flatten().expand(slots) for row in rows]
    names = [*_PADDING_SLOT, "window"]
    columns = {name: torch.stack([getattr(row, name) for row in rows]) for name in names}
    same = {row.pattern for row in rows}
    pattern = same.pop() if len(same) == 1 else Pattern.GENERAL
    return Layout(**columns, level_token=torch.stack(tokens), runs=((slots, 1),), pattern=pattern)


def training_layout(
    schedule: Hyperschedule,
    *,
    shifted: bool,
    offset: int | None = None,
    settled_loss: bool = True,
    block_causal: bool = False,
    prefix: int = 0,
    block: int | None = None,
) -> Layout:
    """The doubled layout in which one pass trains every window of a schedule; shapes do not depend on `offset`.

    `offset`: where the first window of a slide ends (1..width). Without `settled_loss` clean slots that no window looks
    at are left out. `block_causal`: settled slots see their own block whole (aligned block only). `prefix`: so many
    clean tokens come before the schedule's own. `block`: the width of block-causal blocks where it is not the
    schedule's.
    """
    windows = [(prefix + start, prefix + stop) for start, stop in schedule.training_windows(offset)]
    length, shift = checks.integer("prefix", prefix, low=0) + schedule.length, int(shifted)
    if block_causal and (shifted or schedule.kind != "block"):
        raise ValueError(
            f"block_causal = True is not accepted for {schedule!r}, shifted = {shifted}: aligned block only"
        )
    if not windows:
        if not shifted:
            raise ValueError(
                f"shifted = False is not accepted for {schedule!r}: autoregression predicts the next token"
            )
        return next_token_layout(length - 1)  # the last token is predicted, and need not be read
    if prefix and not schedule.has_prefix:
        raise ValueError(f"prefix = {prefix} is not accepted for {schedule!r}: its one window holds everything")
    settled = (length + shift if settled_loss else prefix + schedule.last_start) if schedule.has_prefix else 0
    return build_layout(
        length,
        windows,
        shifted=shifted,
        settled=settled,
        block=(schedule.width if block is None else block) if block_causal else None,
        slots=settled + schedule.length + shift * schedule.max_windows,
        one_level_a_window=schedule.one_level_a_window,
    )


def inference_layout(
    start: int,
    stop: int,
    *,
    shifted: bool,
    cached: int = 0,
    block: int | None = None,
    slots: int | None = None,
    one_level_a_window: bool = False,
) -> Layout:
    """One generation step: the settled prefix before `start`, less the `cached` first slots, and one window.

    Shifted, the token before the window is inside it, so that the settled slots are BOS and all tokens but that one.
    """
    if block is not None and start % block:
        raise ValueError(f"start = {start} is not accepted: block-causal settled slots end with a block of {block}")
    how = {"shifted": shifted, "settled": start, "skip": cached, "block": block, "slots": slots}
    return build_layout(stop, [(start, stop)], **how, one_level_a_window=one_level_a_window)


def next_token_layout(start: int, *, cached: int = 0) -> Layout:
    """One step of autoregression: BOS and all tokens before `start`, settled, of which the last predicts `start`.

    Less the `cached` first slots. Shifted networks only; no noisy slot at all.
    """
    return build_layout(start + 1, [], shifted=True, settled=start + 1, skip=cached)


@lru_cache(maxsize=64)
def step_layout(
    rows: tuple[tuple[int, int, int], ...],
    shifted: bool,
    *,
    next_token: bool = False,
    block: int | None = None,
    one_level_a_window: bool = False,
) -> tuple[Layout, list[int]]:
    """One generation step of a batch, of rows (start, stop, cached) as of `inference_layout`, and each row's slots.

    One layout for all where they agree, else a stack; kept, since steps repeat. `next_token`: autoregression (see
    `next_token_layout`).
    """

    def of(start: int, stop: int, cached: int) -> Layout:
        if next_token:
            return next_token_layout(start, cached=cached)
        how = {"block": block, "one_level_a_window": one_level_a_window}
        return inference_layout(start, stop, shifted=shifted, cached=cached, **how)

    layouts = {row: of(*row) for row in set(rows)}
    found = [layouts[row] for row in rows]
    return found[0] if len(layouts) == 1 else stack_layouts(found), [len(layout) for layout in found]
