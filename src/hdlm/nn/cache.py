"""A static key-value cache whose index is the position.

In one generation step the slots are the newly settled tokens and one window, at consecutive positions. All of
them write their keys and values at their own position; what a later step writes again is the window, which
is scratch, while a settled entry is written once and never changes. Then

    slot q may read index k   when   k <= reach[q]

with reach the slot's own limit where it is settled and the window's end where it is active: the layout's rule, seen
through the cache. When no slot is newly settled and all rows are at the same position, every slot reads everything up
to the window's end and no mask is needed at all. Rows of a batch may be at different positions.

A pass may also have several windows, overlapping ones too: drafts of what might follow. None of them is written then;
each reads the cache up to its limit and itself. What was fed as settled and is refused afterwards is forgotten
(`keep`) and written over, since the index is the position. For generation: gradients do not pass through the cache.
Knows no schedule.
"""

from functools import partial

import torch
from torch import Tensor

from hdlm.nn.attention import Attend, MaskedAttention, PerLayer
from hdlm.theory.layout import PADDING, SETTLED, Layout


class Cache:
    """Keys and values of `batch` rows, up to `capacity` positions, for every layer of one network."""

    def __init__(
        self,
        *,
        layers: int,
        batch: int,
        kv_heads: int,
        head_width: int,
        capacity: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        # One index more than the capacity: padding slots write there, and nobody reads it.
        shape = (layers, batch, kv_heads, capacity + 1, head_width)
        self.capacity = capacity
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.settled = [0] * batch

    @property
    def batch(self) -> int:
        """Number of rows."""
        return self.keys.shape[1]

    def reset(self) -> None:
        """Forget everything; the memory stays."""
        self.keys.zero_()
        self.values.zero_()
        self.settled = [0] * self.batch

    def keep(self, settled: list[int]) -> None:
        """Forget all but so many first positions of each row, such as a draft's tokens that were refused."""
        if any(not 0 <= kept <= held for kept, held in zip(settled, self.settled, strict=True)):
            raise ValueError(f"settled = {settled} is not accepted: the cache holds {self.settled}")
        self.settled = list(settled)

    def open(self, layout: Layout) -> "Pass":
        """Prepare a forward pass over `layout`: its settled slots continue what is cached, its windows follow.

        The pass commits the settled slots: call `Pass.commit` when the network has run.
        """
        window, position = layout.window.expand(self.batch, -1), layout.position.expand(self.batch, -1)
        real = layout.holds.expand(self.batch, -1) != PADDING
        new = (real & (window == SETTLED)).sum(1).tolist()
        ends = (torch.where(real, position, -1).amax(1) + 1).tolist()
        starts = torch.where(real, position, self.capacity).amin(1).tolist()
        consecutive = position == position[:, :1] + torch.arange(len(layout), device=position.device)
        in_order = torch.ones_like(real)
        in_order[:, 1:] = window[:, 1:] >= window[:, :-1]
        if not (~real | ((consecutive | (window != SETTLED)) & in_order)).all():
            raise ValueError("layout is not accepted: a cached pass takes settled slots without gaps, then windows")
        branched = bool((real & ((window > 0) | ~consecutive)).any())
        if branched:  # windows may stand anywhere, if what they see is there
            starts = torch.where(real & (window == SETTLED), position, self.capacity).amin(1).tolist()
            starts = [start if fresh else held for start, fresh, held in zip(starts, new, self.settled, strict=True)]
            held = torch.tensor(self.settled, device=window.device) + torch.tensor(new, device=window.device)
            if (real & (layout.limit >= held.unsqueeze(1))).any():
                raise ValueError("layout is not accepted: a window's limit lies beyond what the cache holds before it")
        for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
            if start != self.settled[row]:
                raise ValueError(
                    f"layout starts at position {start} in row {row}: the cache holds {self.settled[row]} positions, "
                    f"so it must start at {self.settled[row]}"
                )
            if end > self.capacity:
                raise ValueError(f"layout ends at position {end} in row {row}: the cache holds up to {self.capacity}")
        return (BranchedPass if branched else Pass)(self, layout, new=new, ends=ends)


class Pass(PerLayer):
    """One forward pass through the cache: where to write, how far to read."""

    def __init__(self, cache: Cache, layout: Layout, *, new: list[int], ends: list[int]) -> None:
        self._cache = cache
        self._new = new
        self.position = layout.position
        self._stop = max(ends)
        real = layout.holds != PADDING
        index = torch.where(real, layout.position, cache.capacity)
        self._index = index.view(-1, 1, len(layout), 1)
        # Rows at the same positions write one range, which is a plain copy.
        shared = layout.position.ndim == 1 and bool(real.all())
        self._range = slice(self._stop - len(layout), self._stop) if shared else None
        everything = not any(new) and len(set(ends)) == 1 and bool(real.all())
        self._attention = MaskedAttention(mask=None if everything else self._mask(layout, ends))

    def _mask(self, layout: Layout, ends: list[int]) -> Tensor:
        """Boolean [rows, 1, slots, stop]: how far each slot reads. Padding reads index 0, so that no row is empty."""
        device = layout.window.device
        end = torch.tensor(ends, device=device).view(-1, 1) - 1
        if layout.window.ndim == 1 and len(set(ends)) == 1:
            end = end[:1]
        reach = torch.where(layout.window == SETTLED, layout.limit, end)
        reach = torch.where(layout.holds == PADDING, 0, reach)
        mask = torch.arange(self._stop, device=device) <= reach.unsqueeze(-1)
        return mask.unsqueeze(1)

    def at(self, layer: int) -> Attend:
        """Attention of one layer through the cache."""
        return partial(self._attend, layer)

    def _attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write the slots' keys and values [batch, kv_heads, slots, width], then attend to all that may be read."""
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        if self._range is not None:
            keys[:, :, self._range] = k.detach()
            values[:, :, self._range] = v.detach()
        else:
            index = self._index.expand_as(k)
            keys.scatter_(2, index, k.detach().to(keys.dtype))
            values.scatter_(2, index, v.detach().to(values.dtype))
        return self._attention(q, keys[:, :, : self._stop], values[:, :, : self._stop])

    def commit(self) -> None:
        """Count the settled slots of this pass as cached."""
        self._cache.settled = [old + new for old, new in zip(self._cache.settled, self._new, strict=True)]


class BranchedPass(Pass):
    """A pass with several windows: only its settled slots are written, and windows read each its own slots."""

    def __init__(self, cache: Cache, layout: Layout, *, new: list[int], ends: list[int]) -> None:
        self._cache, self._new, self.position = cache, new, layout.position
        held = [old + fresh for old, fresh in zip(cache.settled, new, strict=True)]
        self._stop = max(held)
        settled = (layout.window == SETTLED) & (layout.holds != PADDING)
        self._index = torch.where(settled, layout.position, cache.capacity).view(-1, 1, len(layout), 1)
        reach = torch.where(layout.holds == PADDING, -1, layout.limit).unsqueeze(-1)
        cached = torch.arange(self._stop, device=reach.device) <= reach
        own = (layout.window.unsqueeze(-1) == layout.window.unsqueeze(-2)) & (layout.window >= 0).unsqueeze(-1)
        mask = torch.cat([cached, own.expand(*cached.shape[:-1], -1)], dim=-1)
        self._attention = MaskedAttention(mask=mask.view(-1, 1, *mask.shape[-2:]))

    def _attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        index = self._index.expand_as(k)
        keys.scatter_(2, index, k.detach().to(keys.dtype))
        values.scatter_(2, index, v.detach().to(values.dtype))
        k = torch.cat([keys[:, :, : self._stop], k], dim=2)
        return self._attention(q, k, torch.cat([values[:, :, : self._stop], v], dim=2))
