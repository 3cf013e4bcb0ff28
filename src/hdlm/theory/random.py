"""Where every random number of the library comes from: uniforms in [0, 1), and draws made of them.

A source is a `torch.Generator` (or None, torch's own), or a `Keyed` source whose numbers are a pure
function of a seed and one integer key per row. Keyed numbers do not depend on the batch that a row is
in, on the device, or on what was drawn before a restart. Knows no process and no schedule.
"""

from collections.abc import Sequence
from typing import Union

import torch
from torch import Tensor
from torch.nn import functional as F

from hdlm.theory import checks

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
    checks.shape("shape", shape)
    checks.device("device", device)
    if generator is not None and not isinstance(generator, torch.Generator | Keyed):
        raise ValueError(f"generator = {generator!r} is not accepted: it must be a torch.Generator or None")
    if isinstance(generator, Keyed):
        return generator.uniform(shape, device)
    if generator is None or generator.device == torch.device(device or "cpu"):
        return torch.rand(shape, generator=generator, dtype=torch.float64, device=device)
    return torch.rand(shape, generator=generator, dtype=torch.float64, device=generator.device).to(device)


def uniform_token(u: Tensor, count: int | Tensor) -> Tensor:
    """An integer in 0..count-1, equally likely each, from a uniform in [0, 1)."""
    return (u * count).long().minimum(torch.as_tensor(count - 1, device=u.device))


def race(weights: Tensor, u: Tensor) -> Tensor:
    """One draw per row as the winner of a race: the index whose weight is largest for its exponential waiting time.

    `weights` [..., N] need not sum to 1; `u` [...] in [0, 1) seeds a row's waiting times, one for each index. As exact
    as `categorical`, at one random number a weight. What it is for: two laws that are nearly the same, drawn with the
    same u, give the same index nearly always: with probability (1 - d) / (1 + d) or more, d their total variation.
    """
    return (weights / waiting_times(u, weights.shape[-1])).argmax(-1)


def waiting_times(u: Tensor, count: int) -> Tensor:
    """The exponential waiting times [..., count] of a race that u [...] seeds; none is 0 or infinite."""
    start = _scramble((u * 2.0**53).long() * _GOLDEN + _GOLDEN).unsqueeze(-1)
    bits = _scramble(start + torch.arange(1, count + 1, device=u.device) * _GOLDEN)
    return -torch.log((_shift_right(bits, 11).to(torch.float64) + 0.5) * 2.0**-53)


_BLOCK = 256  # weights that are added up together at first


def categorical(weights: Tensor, u: Tensor, *, exclude: Tensor | None = None, rows_at_once: int = 512) -> Tensor:
    """One draw per row by inverse CDF: the first index whose cumulative weight exceeds u times the total.

    `weights` [..., N] need not sum to 1; `u` [...] is one uniform per row; `exclude` [...] is an index that a row may
    not return (-1: none). Sums are float64, of blocks first and then within the one block that the draw falls into, so
    that there are no running sums over the vocabulary. Never makes a device wait.
    `rows_at_once` bounds the memory: a copy of so many rows, and one in float64, which a CPU's sums make.
    """
    if u.ndim != 1:
        flat = None if exclude is None else exclude.reshape(-1)
        found = categorical(weights.reshape(-1, weights.shape[-1]), u.reshape(-1), exclude=flat)
        return found.view(u.shape)
    rows = zip(
        weights.split(rows_at_once),
        u.split(rows_at_once),
        [None] * max(1, len(u)) if exclude is None else exclude.split(rows_at_once),
        strict=False,
    )
    return torch.cat([_draw(*one) for one in rows])


def _draw(weights: Tensor, u: Tensor, exclude: Tensor | None) -> Tensor:
    """`categorical` for some rows: weights [n, N], u and exclude [n]."""
    size = weights.shape[-1]
    width = min(_BLOCK, size)
    blocks = F.pad(weights, (0, -size % width))
    if exclude is not None:
        index = exclude.clamp(min=0).unsqueeze(-1)
        blocks.scatter_(-1, index, torch.where(exclude.unsqueeze(-1) < 0, blocks.gather(-1, index), 0.0))
    blocks = blocks.unflatten(-1, (-1, width))
    sums = blocks.sum(-1, dtype=torch.float64).cumsum(-1)
    total = sums[:, -1:]
    point = u.unsqueeze(-1) * total
    # Where rounding puts the point at the very end, the last block, and in it the last token, with any weight.
    block = torch.minimum((sums <= point).sum(-1, keepdim=True), (sums < total).sum(-1, keepdim=True))
    inside = blocks.gather(1, block.unsqueeze(-1).expand(-1, 1, width)).squeeze(1)
    below = torch.where(block > 0, sums.gather(-1, (block - 1).clamp(min=0)), 0.0)
    running = inside.cumsum(-1, dtype=torch.float64)
    last = (running < running[:, -1:]).sum(-1)
    found = torch.minimum((below + running <= point).sum(-1), last)
    return block.squeeze(-1) * width + found
