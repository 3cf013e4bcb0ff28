"""The source of the stories: a small autoregressive model whose every draw has a known probability.

Loaded into the library's own transformer and drawn from at temperature 1, untruncated, in float32. A row is BOS and the
255 pieces after it; a story that ends is followed by BOS and the next. Thousands of rows are drawn at once, all at the
same place, so that a step is a few large operations over the cache as far as it is filled.
"""

import json
import math
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

import hdlm
from hdlm.bundle import Bundle
from hdlm.nn.attention import Attend, MaskedAttention, PerLayer
from hdlm.nn.transformer import Denoiser

BOS, ROW = 1, 255
END = "<|eos|>"  # how the end of a story looks in text
_BYTES = range(3, 259)  # pieces that stand for single bytes
_GROUP = 128  # pieces of which one is chosen by their sum
_PAIRS_AT_ONCE = 2**27  # logits that exist at a time when rows are scored


class _Filling(PerLayer):
    """Keys and values of rows that are all at the same `position`."""

    def __init__(self, model: Denoiser, rows: int, device: torch.device) -> None:
        config = model.config
        shape = (2, config.layers, rows, config.num_kv_heads, ROW, config.head_size)
        self._kept = torch.empty(shape, device=device)
        self.position = 0

    def at(self, layer: int) -> Attend:
        """Attention of a layer: keeps keys and values of this position [rows, heads, 1, size], reads all up to it."""
        keys, values = self._kept[0, layer], self._kept[1, layer]

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys[:, :, self.position], values[:, :, self.position] = k[:, :, 0], v[:, :, 0]
            seen = slice(self.position + 1)  # one query each: two plain products are several times as fast as a kernel
            share = (q @ keys[:, :, seen].mT * q.shape[-1] ** -0.5).softmax(-1)
            return share @ values[:, :, seen]

        return attend


def pick(p: Tensor, u: Tensor) -> Tensor:
    """The piece at which the sum of p [rows, pieces] passes u [rows], float64: first among groups, then within one."""
    groups = p.view(len(p), -1, math.gcd(p.shape[-1], _GROUP))
    total = groups.sum(-1).double().cumsum(-1)
    aim = u.unsqueeze(1) * total[:, -1:]
    group = torch.searchsorted(total, aim, right=True).clamp(max=groups.shape[1] - 1)
    before = torch.where(group > 0, total.gather(1, (group - 1).clamp(min=0)), 0.0)
    inside = groups[torch.arange(len(p), device=p.device), group.squeeze(1)].double().cumsum(-1)
    # Sums differ in their last digit: what is aimed at stays within the group.
    within = torch.minimum(aim - before, inside[:, -1:] * (1 - 2.0**-50))
    piece = torch.searchsorted(inside, within, right=True)
    return (group * groups.shape[2] + piece).squeeze(1)


class Source:
    """The model and its pieces."""

    def __init__(self, folder: Path, *, device: str = "cpu") -> None:
        self.bundle: Bundle = hdlm.load(folder, device=device, dtype=torch.float32, tokenizer=False)
        self.pieces: list[str] = json.loads((folder / "pieces.json").read_text())
        self.device = torch.device(device)
        self._ids = {piece: number for number, piece in enumerate(self.pieces) if number not in _BYTES}

    @torch.no_grad()
    def draw(self, rows: int, *, seed: int, batch: int) -> Tensor:
        """Rows drawn independently, [rows, 255] pieces on the CPU, BOS before them not written down."""
        chance = torch.Generator(self.device).manual_seed(seed)
        sizes = [min(batch, rows - first) for first in range(0, rows, batch)]
        return torch.cat([self._draw(size, chance) for size in sizes])

    def _draw(self, rows: int, chance: torch.Generator) -> Tensor:
        model = self.bundle.model
        cache = _Filling(model, rows, self.device)
        found = torch.full((rows, ROW + 1), BOS, device=self.device)
        nothing = torch.zeros(rows, 1, device=self.device)
        for position in range(ROW):
            cache.position = position
            rope = model.rope(torch.tensor([position], device=self.device))
            x = model.run(found[:, position : position + 1], nothing, nothing, rope, ((1, 1),), cache)
            u = torch.rand(rows, dtype=torch.float64, generator=chance, device=self.device)
            found[:, position + 1] = pick(model.head(x[:, 0]).softmax(-1), u)
        return found[:, 1:].cpu()

    @torch.no_grad()
    def log_p(self, rows: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
        """log p of every piece given those before it, [rows, pieces].

        And of each piece there is after `ends` [rows] pieces of a row, [rows, vocabulary]. Float64, on the CPU.
        """
        model = self.bundle.model
        size = max(1, _PAIRS_AT_ONCE // (rows.shape[1] * len(self.pieces)))
        rope = model.rope(torch.arange(rows.shape[1], device=self.device))
        found, after = [], []
        for part, end in zip(rows.split(size), ends.split(size), strict=True):
            part = part.to(self.device)
            token = torch.cat([torch.full_like(part[:, :1], BOS), part[:, :-1]], 1)
            nothing = torch.zeros(token.shape[0], 1, device=self.device)
            x = model.run(token, nothing, nothing, rope, ((1, token.shape[1]),), MaskedAttention(causal=True))
            log_p = model.head(x).double().log_softmax(-1)
            found.append(log_p.gather(-1, part.unsqueeze(-1)).squeeze(-1).cpu())
            after.append(log_p[torch.arange(len(part)), end.to(self.device)].cpu())
        return torch.cat(found), torch.cat(after)

    def text(self, row: list[int]) -> str:
        """What a row says, stories ended by END; a story's first space, which all begin with, is left out."""
        stories, parts = [], []
        for piece in [*row, BOS]:
            if piece == BOS:
                stories.append("".join(parts).removeprefix(" "))
                parts = []
            else:
                parts.append(self.pieces[piece])
        return END.join(stories)

    def encode(self, text: str) -> list[int]:
        """A story in pieces: neighbours are joined, those first whose joined piece has the lowest number."""
        row: list[int] = []
        for sign in " " + text:
            own = self._ids.get(sign)
            row += [own] if own is not None else [_BYTES.start + byte for byte in sign.encode()]
        none = len(self.pieces)
        while True:
            joined = [self._joined(a, b) for a, b in pairwise(row)]
            if min(joined, default=none) == none:
                return row
            at = joined.index(min(joined))
            row[at : at + 2] = [joined[at]]

    def _joined(self, first: int, second: int) -> int:
        """The piece that two make, or the number of pieces where they make none."""
        if first in _BYTES or second in _BYTES:
            return len(self.pieces)
        return self._ids.get(self.pieces[first] + self.pieces[second], len(self.pieces))
