"""Where every random number of the library comes from: uniforms in [0, 1), and draws made of them.

A source is a `torch.Generator` (or None, torch's own), or a `Keyed` source whose numbers are a pure
function of a seed and one integer key per row. Keyed numbers do not depend on the batch that a row is
in, on the device, or on what was drawn before a restart. Knows no process and no schedule.
"""

from collections.abc import Sequence
from typing import Union

import torch
from torch import Tensor

Source = Union[torch.Generator, "Keyed", None]


def _as_signed(value: int) -> int:
    """The signed 64-bit integer with the same bits as `value` modulo 2^64."""
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value


_GOLDEN = _as_signed(0x9E3779B97F4A7C15)
_MIX_1 = _as_signed(0xBF58476D1CE4E5B9)
_MIX_2 = _as_signed(0x94D049BB133111EB)


def _shift_right(bits: Tensor, count: int) -> Tensor:
    """Logical shift of 64-bit integers: torch's own copies the sign bit."""
    return (bits >> count) & (2 ** (64 - count) - 1)


def _scramble(bits: Tensor) -> Tensor:
    """SplitMix64's output function: a bijection of 64-bit integers whose outputs look independent."""
    bits = (bits ^ _shift_right(bits, 30)) * _MIX_1
    bits = (bits ^ _shift_right(bits, 27)) * _MIX_2
    return bits ^ _shift_right(bits, 31)


def keyed_uniform(*keys: int | Tensor) -> Tensor:
    """float64 uniforms in [0, 1), a pure function of the integer keys, which broadcast together.

    Equal keys give equal numbers on every machine; different keys give numbers that are independent
    for all practical purposes. The order of the keys matters.
    """
    device = next((key.device for key in keys if isinstance(key, Tensor)), torch.device("cpu"))
    bits = torch.zeros((), dtype=torch.int64, device=device)
    for key in keys:
        word = key.to(torch.int64) if isinstance(key, Tensor) else _as_signed(key)
        bits = _scramble((bits ^ word) * _GOLDEN + _GOLDEN)
        bits = _scramble(bits + _GOLDEN)
    return _shift_right(bits, 11).to(torch.float64) * 2.0**-53


class Keyed:
    """A source whose row r depends on (seed, keys[r]) alone.

    Successive draws from one source differ, as with a generator: draw number k of a row is the same
    whenever the row is drawn. `keys` is [batch]; the shapes asked for must start with that batch.
    """

    def __init__(self, seed: int, keys: Tensor) -> None:
        self._seed = seed
        self._keys = keys
        self._draws = 0

    def uniform(self, shape: Sequence[int], device: torch.device | str | None = None) -> Tensor:
        """float64 uniforms of `shape`, whose first axis is the rows."""
        if len(shape) == 0 or shape[0] != len(self._keys):
            raise ValueError(f"shape {tuple(shape)} is not accepted: its first axis must be the {len(self._keys)} rows")
        draw, self._draws = self._draws, self._draws + 1
        rows = self._keys.to(device).view(-1, *[1] * (len(shape) - 1))
        width = int(torch.Size(shape[1:]).numel())
        columns = torch.arange(width, device=rows.device).view(*shape[1:])
        return keyed_uniform(self._seed, rows, draw, columns).expand(shape)


def uniform(shape: Sequence[int], *, generator: Source = None, device: torch.device | str | None = None) -> Tensor:
    """float64 uniforms in [0, 1) of the given shape from any source."""
    if isinstance(generator, Keyed):
        return generator.uniform(shape, device)
    if generator is None or generator.device == torch.device(device or "cpu"):
        return torch.rand(shape, generator=generator, dtype=torch.float64, device=device)
    return torch.rand(shape, generator=generator, dtype=torch.float64, device=generator.device).to(device)


def uniform_token(u: Tensor, count: int | Tensor) -> Tensor:
    """An integer in 0..count-1, equally likely each, from a uniform in [0, 1)."""
    return (u * count).long().minimum(torch.as_tensor(count - 1, device=u.device))


def categorical(
    weights: Tensor,
    u: Tensor,
    *,
    exclude: Tensor | None = None,
    where: Tensor | None = None,
    rows_at_once: int = 256,
) -> Tensor:
    """One draw per row by inverse CDF: the first index whose cumulative weight exceeds u times the total.

    `weights` [..., N] need not sum to 1; `u` [...] is one uniform per row; `exclude` [...] is an index that a
    row may not return (-1: none); rows where `where` [...] is False are not drawn and give 0. The running
    sums are float64 and exist for `rows_at_once` rows at a time: memory does not grow with the number of rows.
    """
    if u.ndim == 0:
        lifted = [None if x is None else x.unsqueeze(0) for x in (exclude, where)]
        return categorical(weights.unsqueeze(0), u.unsqueeze(0), exclude=lifted[0], where=lifted[1])[0]
    drawn = torch.zeros(u.shape, dtype=torch.int64, device=u.device)
    chosen = torch.ones_like(u, dtype=torch.bool) if where is None else where
    for places in chosen.nonzero().split(rows_at_once):
        place = places.unbind(1)
        chunk = weights[place].double()
        if exclude is not None:
            barred = exclude[place].unsqueeze(-1)
            index = barred.clamp(min=0)
            chunk.scatter_(-1, index, chunk.gather(-1, index) * (barred < 0))
        sums = chunk.cumsum(-1)
        total = sums[:, -1:].contiguous()
        found = torch.searchsorted(sums, u[place].unsqueeze(-1) * total, right=True)
        last = torch.searchsorted(sums, total)
        drawn[place] = torch.minimum(found, last).squeeze(-1)
    return drawn
