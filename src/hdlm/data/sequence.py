"""One sequence of tokens that lies in several files, and rows of it. Files are memory-mapped when they are first read.

Their sizes are looked at when it is made, their content when that is asked for. Knows no index and no text.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from hdlm.data.shard import Shard


class Sequence:
    """The tokens of shards, one after the other, as if they were in one array [tokens]."""

    def __init__(self, folder: Path, shards: Iterable[Shard], dtype: np.dtype) -> None:
        self.folder, self.shards, self.dtype = folder, tuple(shards), dtype
        for shard in self.shards:
            shard.check_size(folder, dtype.itemsize)
        self._ends = np.cumsum([shard.tokens for shard in self.shards], dtype=np.int64)
        self._maps: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        return int(self._ends[-1]) if self.shards else 0

    def read(self, start: int, into: np.ndarray) -> None:
        """Fill `into` [n] with the tokens from `start` on."""
        number = int(np.searchsorted(self._ends, start, side="right"))
        done = 0
        while done < len(into):
            inside = start + done - (int(self._ends[number - 1]) if number else 0)
            piece = self._map(number)[inside : inside + len(into) - done]
            into[done : done + len(piece)] = piece
            done, number = done + len(piece), number + 1

    def check(self, tell: Callable[[int], None] = lambda tokens: None) -> None:
        """Refuse a file whose content is not the one that was written. `tell`: how many tokens have been read."""
        done = 0
        for shard in self.shards:
            tell(done)
            shard.check(self.folder)
            done += shard.tokens

    def all(self) -> np.ndarray:
        """Every token, in memory [tokens]."""
        tokens = np.empty(len(self), self.dtype)
        self.read(0, tokens)
        return tokens

    def _map(self, number: int) -> np.ndarray:
        if number not in self._maps:
            shard = self.shards[number]
            empty = np.zeros(0, self.dtype)
            self._maps[number] = np.memmap(self.folder / shard.file, self.dtype, "r") if shard.tokens else empty
        return self._maps[number]

    def wrapped(self, length: int) -> "Wrapped":
        """The sequence in rows of so many tokens; what is left at its end is not among them."""
        return Wrapped(self, length)


class Wrapped:
    """Rows of a sequence [rows, length], read when they are asked for: what is used of an array's manners."""

    ndim = 2

    def __init__(self, sequence: Sequence, length: int) -> None:
        self._sequence, self.dtype = sequence, sequence.dtype
        self.shape = (len(sequence) // length, length)

    @property
    def size(self) -> int:
        """Tokens of all rows."""
        return self.shape[0] * self.shape[1]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> np.ndarray:
        numbers = np.arange(len(self))[key] if isinstance(key, slice) else np.asarray(key)
        rows = np.empty((numbers.size, self.shape[1]), self.dtype)
        for number, row in zip(numbers.ravel().tolist(), rows, strict=True):
            if not 0 <= number < len(self):
                raise IndexError(f"row {number} of {len(self)}")
            self._sequence.read(number * self.shape[1], row)
        return rows.reshape(*numbers.shape, self.shape[1])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self[:].astype(dtype or self.dtype, copy=False)
