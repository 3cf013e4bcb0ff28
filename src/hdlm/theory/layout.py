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

import torch
from torch import Tensor

from hdlm.theory import checks
from hdlm.theory.hyperschedule import Block, Flat, Hyperschedule, Quench, Slide
from hdlm.theory.process import Process

SETTLED = -1  # window of a settled slot
NOTHING = -1  # what a slot predicts when its output is discarded
BOS, PADDING = -1, -2  # what a slot holds when it is no token of the sequence


def may_attend(*, q_window: Tensor, q_limit: Tensor, k_window: Tensor, k_position: Tensor) -> Tensor:
    """The rule: boolean [..., Q, K] from per-slot tensors [..., Q] and [..., K]."""
    q_window, q_limit = q_window.unsqueeze(-1), q_limit.unsqueeze(-1)
    k_window, k_position = k_window.unsqueeze(-2), k_position.unsqueeze(-2)
    settled = (k_window == SETTLED) & (k_position <= q_limit)
    return settled | ((k_window == q_window) & (q_window >= 0))


@dataclass(frozen=True)
class Slots:
    """A layout filled with a batch: all that a network needs, as plain numbers.

    `sigma` is the noise of the position that a slot predicts, `weight` the share of its own embedding of the
    token that it holds. Shapes: token, sigma, weight [batch, slots]; the others [slots] or [batch, slots].
    """

    token: Tensor
    position: Tensor
    sigma: Tensor
    weight: Tensor
    window: Tensor
    limit: Tensor


@dataclass(frozen=True)
class Layout:
    """Slots without their contents: integer tensors [slots] (or [batch, slots], rows of their own).

    `holds`: the token of the sequence in a slot, or BOS, or PADDING. `predicts`: the token that its output is
    for, or NOTHING. `noisy`: whether it holds the noisy token rather than the clean one.
    """

    holds: Tensor
    predicts: Tensor
    position: Tensor
    noisy: Tensor
    window: Tensor
    limit: Tensor

    def __len__(self) -> int:
        return self.holds.shape[-1]

    def to(self, device: torch.device | str) -> "Layout":
        """The same layout on another device."""
        return replace(self, **{field.name: getattr(self, field.name).to(device) for field in fields(self)})

    def mask(self) -> Tensor:
        """The rule spelled out: boolean [..., slots, slots], row q True where it may look."""
        return may_attend(q_window=self.window, q_limit=self.limit, k_window=self.window, k_position=self.position)

    def fill(self, x0: Tensor, xt: Tensor, t: Tensor, process: Process, *, bos_id: int | None = None) -> Slots:
        """Contents for a batch: clean tokens x0, noisy tokens xt and times t, each [batch, length]."""
        needs_bos = not checks.skips_values() and bool((self.holds == BOS).any())
        if needs_bos and bos_id is None:
            raise ValueError("bos_id = None is not accepted: a shifted layout holds BOS and needs its id")
        batch = x0.shape[0]
        holds = self.holds.expand(batch, -1)
        index = holds.clamp(min=0)
        token = torch.where(self.noisy, xt.gather(1, index), x0.gather(1, index))
        token = torch.where(holds == BOS, bos_id if bos_id is not None else 0, token)
        token = torch.where(holds == PADDING, 0, token)
        held_time = torch.where(self.noisy, t.gather(1, index), 0.0)
        # A discarded output predicts nothing, but its keys are read: it takes the time of what it holds.
        predicts = self.predicts.expand(batch, -1)
        active = (self.window != SETTLED) & (predicts != NOTHING)
        time = torch.where(active, t.gather(1, predicts.clamp(min=0)), held_time)
        return Slots(
            token=token,
            position=self.position,
            sigma=process.noise.sigma(time),
            weight=process.embedding_weight(held_time),
            window=self.window,
            limit=self.limit,
        )


def build_layout(
    length: int,
    windows: Sequence[tuple[int, int]],
    *,
    shifted: bool,
    settled: int | None = None,
    skip: int = 0,
    block: int | None = None,
    slots: int | None = None,
) -> Layout:
    """A layout of settled slots followed by any list of windows [start, stop), which may overlap.

    `settled`: positions that appear clean, counted from the left (default: all, BOS included where shifted);
    `skip`: how many of them are left out because a cache holds them; `block`: settled slots see to the end
    of their own block of this width instead of only to themselves; `slots`: pad to this many.
    """
    checks.integer("length", length, low=1)
    shift = int(shifted)
    settled = checks.integer("settled", length + shift if settled is None else settled, low=0, high=length + shift)
    checks.integer("skip", skip, low=0, high=settled)
    if block is not None and shifted:
        raise ValueError(f"block = {block!r} is not accepted: block-causal settled slots need an aligned layout")

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
        predicts[ends | (position >= length)] = NOTHING
    layout = Layout(holds, predicts, position, noisy, window, limit)
    return layout if slots is None else _pad(layout, slots, window_number=len(windows))


def _columns(holds: Tensor, position: Tensor, noisy: Tensor | bool, window: int, limit: Tensor | int) -> list[Tensor]:
    full = torch.full_like(holds, 0)
    noisy_column = noisy if isinstance(noisy, Tensor) else torch.full_like(holds, noisy, dtype=torch.bool)
    return [holds, position, noisy_column, full + window, full + limit]


def _pad(layout: Layout, slots: int, window_number: int) -> Layout:
    """Padding slots look at each other in a window of their own: no row of the mask is empty."""
    checks.integer("slots", slots, low=len(layout))
    fill = {"holds": PADDING, "predicts": NOTHING, "position": 0, "noisy": 0, "window": window_number, "limit": -1}
    missing = slots - len(layout)
    return Layout(
        **{
            name: torch.cat([getattr(layout, name), getattr(layout, name).new_full((missing,), value)])
            for name, value in fill.items()
        }
    )


def training_layout(
    schedule: Hyperschedule,
    *,
    shifted: bool,
    offset: int | None = None,
    settled_loss: bool = True,
    block_causal: bool = False,
) -> Layout:
    """The doubled layout in which one pass trains every window of a schedule; shapes do not depend on `offset`.

    `offset`: where the first window of a slide ends (1..width). Without `settled_loss` clean slots that no window
    looks at are left out. `block_causal`: settled slots see their own block whole (aligned block only).
    """
    length = schedule.length
    if block_causal and (shifted or not isinstance(schedule, Block)):
        raise ValueError(
            f"block_causal = True is not accepted for {schedule!r}, shifted = {shifted}: aligned block only"
        )
    if isinstance(schedule, Quench):
        if not shifted:
            raise ValueError("shifted = False is not accepted for Quench: autoregression predicts the next token")
        return build_layout(length, [], shifted=True)
    if isinstance(schedule, Flat):
        return build_layout(length, [(0, length)], shifted=shifted, settled=0)
    if isinstance(schedule, Block):
        windows = schedule.windows()
        settled = None if settled_loss else windows[-1][0]
        return build_layout(
            length, windows, shifted=shifted, settled=settled, block=schedule.width if block_causal else None
        )
    if isinstance(schedule, Slide):
        if offset is None:
            raise ValueError(f"offset = None is not accepted for Slide: it must be an integer in 1..{schedule.width}")
        settled = length + int(shifted) if settled_loss else length - 1
        slots = settled + length + int(shifted) * schedule.max_windows
        return build_layout(length, schedule.windows(offset), shifted=shifted, settled=settled, slots=slots)
    raise ValueError(f"{schedule!r} has no training layout: train with Quench, Flat, Block or Slide")


def inference_layout(start: int, stop: int, *, shifted: bool, cached: int = 0, block: int | None = None) -> Layout:
    """One generation step: the settled prefix before `start`, less the `cached` first slots, and one window.

    Shifted, the token before the window is inside it, so that the settled slots are BOS and all tokens but that one.
    """
    return build_layout(stop, [(start, stop)], shifted=shifted, settled=start, skip=cached, block=block)
