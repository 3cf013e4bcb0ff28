"""Which row sample n is: a pure function of (seed, n), so that there is no state to lose and any process can ask.

Each pass over the rows is a fresh permutation. Knows rows by number alone.
"""

import torch
from torch import Tensor

from hdlm.theory.random import keyed_uniform

_SHUFFLE = 101  # keeps these draws apart from the noise of a run with the same seed


class Stream:
    """An endless order of `rows` rows."""

    def __init__(self, rows: int, seed: int) -> None:
        if rows < 1:
            raise ValueError(f"rows = {rows} is not accepted: at least one row is needed")
        self._rows = rows
        self._seed = seed
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.int64)

    def rows_of(self, indices: Tensor) -> Tensor:
        """The rows of samples `indices` [batch]."""
        epochs = indices // self._rows
        result = torch.empty_like(indices)
        for epoch in epochs.unique().tolist():
            chosen = epochs == epoch
            result[chosen] = self._permutation(epoch)[indices[chosen] % self._rows]
        return result

    def _permutation(self, epoch: int) -> Tensor:
        if epoch != self._epoch:
            self._order = keyed_uniform(self._seed, _SHUFFLE, epoch, torch.arange(self._rows)).argsort()
            self._epoch = epoch
        return self._order
