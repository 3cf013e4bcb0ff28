"""The source of the stories: a small autoregressive model whose every draw has a known probability.

Loaded into the library's own transformer and drawn from by its own sampler, at temperature 1 and untruncated, in
float32. A row is BOS and the 255 pieces after it; a story that ends is followed by BOS and the next.
"""

import json
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

import hdlm
from hdlm.bundle import Bundle
from hdlm.nn.attention import Plan

BOS, ROW = 1, 255
END = "<|eos|>"  # how the end of a story looks in text
_BYTES = range(3, 259)  # pieces that stand for single bytes
_PAIRS_AT_ONCE = 2**27  # logits that exist at a time when rows are scored


class Source:
    """The model and its pieces."""

    def __init__(self, folder: Path, *, device: str = "cpu") -> None:
        self.bundle: Bundle = hdlm.load(folder, device=device, dtype=torch.float32, tokenizer=False)
        self.pieces: list[str] = json.loads((folder / "pieces.json").read_text())
        self.device = torch.device(device)
        self._ids = {piece: number for number, piece in enumerate(self.pieces) if number not in _BYTES}

    def draw(self, rows: int, *, seed: int, batch: int) -> Tensor:
        """Rows drawn independently, [rows, 255] pieces, BOS before them not written down."""
        found = self.bundle.generate(num_samples=rows, length=ROW, stop_at_eos=False, seed=seed, batch_size=batch)
        return torch.tensor(found.tokens)

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
            x = model.run(token, nothing, nothing, rope, ((1, token.shape[1]),), Plan(causal=True))
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
