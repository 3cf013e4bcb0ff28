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

A pass may be about some of the rows alone (`rows`): texts that come and go share one cache. Knows no schedule.
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

    def rows(self, chosen: list[int]) -> "CacheRows":
        """Some rows of it, in any order, as a cache of their own: what they write is written here."""
        return CacheRows(self, chosen)

    def grown(self, batch: int, capacity: int) -> "Cache":
        """A larger cache that holds what this one does."""
        layers, rows, kv_heads, size, head_width = self.keys.shape
        how = {"layers": layers, "kv_heads": kv_heads, "head_width": head_width}
        larger = Cache(batch=batch, capacity=capacity, dtype=self.keys.dtype, device=self.keys.device, **how)
        larger.keys[:, :rows, :, : size - 1] = self.keys[:, :, :, :-1]
        larger.values[:, :rows, :, : size - 1] = self.values[:, :, :, :-1]
        larger.settled[:rows] = self.settled
        return larger

    def move(self, source: int, target: int) -> None:
        """Make one row what another one is, which is forgotten."""
        held = self.settled[source]
        self.keys[:, target, :, :held] = self.keys[:, source, :, :held]
        self.values[:, target, :, :held] = self.values[:, source, :, :held]
        self.settled[target], self.settled[source] = held, 0

    def write(self, layer: int, where: Tensor | slice, k: Tensor, v: Tensor, stop: int) -> tuple[Tensor, Tensor]:
        """Write keys and values [batch, kv_heads, slots, width]; give back all of the layer's before `stop`.

        `where`: a range of indices, or one for each slot of each row [batch or 1, 1, slots, 1].
        """
        keys, values = self.keys[layer], self.values[layer]
        for held, new in ((keys, k), (values, v)):
            if isinstance(where, slice):
                held[:, :, where] = new.detach()
            else:
                held.scatter_(2, where.expand_as(new), new.detach().to(held.dtype))
        return keys[:, :, :stop], values[:, :, :stop]

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
        where = self._index if self._range is None else self._range
        return self._attention(q, *self._cache.write(layer, where, k, v, self._stop))

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
        keys, values = self._cache.write(layer, self._index, k, v, self._stop)
        return self._attention(q, torch.cat([keys, k], dim=2), torch.cat([values, v], dim=2))


class CacheRows(Cache):
    """Some rows of a cache. Where they follow each other they are read where they are, else as a copy."""

    def __init__(self, cache: Cache, chosen: list[int]) -> None:
        self.capacity, self._whole, self._chosen = cache.capacity, cache, chosen
        follow = chosen == list(range(chosen[0], chosen[0] + len(chosen)))
        rows = slice(chosen[0], chosen[0] + len(chosen))
        self._index = None if follow else torch.tensor(chosen, device=cache.keys.device)
        # Of rows that do not follow each other these are the whole cache's: they are written and read by `_index`.
        self.keys = cache.keys[:, rows] if follow else cache.keys
        self.values = cache.values[:, rows] if follow else cache.values

    @property
    def batch(self) -> int:
        """Number of rows."""
        return len(self._chosen)

    @property
    def settled(self) -> list[int]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Positions that each row holds for good."""
        return [self._whole.settled[row] for row in self._chosen]

    @settled.setter
    def settled(self, counts: list[int]) -> None:
        for row, count in zip(self._chosen, counts, strict=True):
            self._whole.settled[row] = count

    def write(self, layer: int, where: Tensor | slice, k: Tensor, v: Tensor, stop: int) -> tuple[Tensor, Tensor]:
        if self._index is None:
            return super().write(layer, where, k, v, stop)
        if isinstance(where, slice):
            position = torch.arange(where.start, where.stop, device=k.device).unsqueeze(0)
        else:
            position = where[:, 0, :, 0]
        for held, new in ((self.keys[layer], k), (self.values[layer], v)):
            held[self._index.unsqueeze(1), :, position] = new.detach().to(held.dtype).transpose(1, 2)
        return self.keys[layer][self._index, :, :stop], self.values[layer][self._index, :, :stop]
