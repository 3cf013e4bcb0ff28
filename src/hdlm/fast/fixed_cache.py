"""A cache whose passes never ask the device anything: for steps that are recorded once and played back.

The same rule as `nn.cache`'s, slot q may read index k when k <= reach[q], with everything that changes from step to
step in tensors: where slots write, how far they read. Who uses it must feed what follows the cached positions, as the
loop does; nothing is checked, and what is settled is not counted here.
"""

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from hdlm.nn.attention import Attend, MaskedAttention, PerLayer
from hdlm.nn.cache import Cache
from hdlm.nn.transformer import Denoiser
from hdlm.theory.layout import PADDING, SETTLED, Layout


class FixedCache(Cache):
    """A cache for recorded steps."""

    @classmethod
    def of(cls, model: Denoiser, batch: int, capacity: int) -> "FixedCache":
        """An empty cache of a network; its memory is that of `Denoiser.new_cache`."""
        plain = model.new_cache(batch, capacity)
        fixed = cls.__new__(cls)
        fixed.__dict__.update(plain.__dict__)
        return fixed

    def open(self, layout: Layout) -> "FixedPass":  # pyright: ignore[reportIncompatibleMethodOverride]
        """Prepare a forward pass over `layout`."""
        shape = (self.batch, len(layout))
        position, limit = layout.position.expand(shape), layout.limit.expand(shape)
        real = (layout.holds != PADDING).expand(shape)
        end = torch.where(real, position, 0).amax(1, keepdim=True)
        reach = torch.where(layout.window.expand(shape) == SETTLED, limit, end)
        reach = torch.where(real, reach, 0)
        index = torch.where(real, position, self.capacity)
        return FixedPass(self, position.contiguous(), index.contiguous(), reach.int().contiguous())


@dataclass(frozen=True)
class FixedPass(PerLayer):
    """One forward pass: slots [batch, slots] at `position`, written at `index`, reading up to `reach`."""

    cache: Cache
    position: Tensor
    index: Tensor
    reach: Tensor

    @property
    def rows(self) -> int:
        """Positions that there may be."""
        return self.cache.capacity + 1

    def moved(self, by: Tensor) -> "FixedPass":
        """The same pass with row r further right by `by[r]` positions [batch]; for layouts without padding."""
        position = self.position + by.unsqueeze(1)
        return replace(self, position=position, index=position, reach=self.reach + by.int().unsqueeze(1))

    def buffers(self, layer: int) -> tuple[Tensor, Tensor]:
        """A layer's keys and values [batch, kv_heads, capacity + 1, size]."""
        return self.cache.keys[layer], self.cache.values[layer]

    def at(self, layer: int) -> Attend:
        """Attention of one layer by plain operations, the reach as a mask over the whole cache."""
        return partial(self._attend, layer)

    def _attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self.buffers(layer)
        index = self.index.view(len(k), 1, -1, 1).expand_as(k)
        keys.scatter_(2, index, k)
        values.scatter_(2, index, v)
        seen = torch.arange(self.rows, device=self.reach.device) <= self.reach.unsqueeze(-1)
        return MaskedAttention(mask=seen.unsqueeze(1))(q, keys, values)
