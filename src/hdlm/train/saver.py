"""Checkpoints written while training goes on: a copy is taken at once, a thread brings it to the disk.

The copy costs memory, on each process as much as it holds of the state (weights, average, two moments), until it is
written. One checkpoint is written at a time. What goes wrong is raised where all processes are, not where it happens.
"""

from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import torch.distributed as dist
from torch import Tensor

from hdlm.processes import World
from hdlm.train import checkpoint
from hdlm.train.state import State, keep_last


class Saver:
    """Writes the checkpoints of the run in `out`, and keeps the last `keep`."""

    def __init__(self, out: Path, world: World, *, keep: int) -> None:
        self._out, self._world, self._keep = out, world, keep
        self._thread: Thread | None = None
        self._group: Any = None
        self._error: BaseException | None = None

    @property
    def failed(self) -> bool:
        """Whether a checkpoint could not be written; `wait` says why, on all processes."""
        return self._error is not None

    def save(self, state: State) -> None:
        """Begin to write a checkpoint of the state as it is now; every process calls this."""
        self.wait()
        if self._world.size > 1 and self._group is None:
            self._group = dist.new_group(backend="gloo")  # training talks in its own
        copies, numbers = checkpoint.staged(dict(state.tensors())), state.numbers()
        self._thread = Thread(target=self._write, args=(copies, numbers), name="checkpoint")
        self._thread.start()

    def _write(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        try:
            folder = self._out / "trainer" / f"step-{numbers['step']:08d}"
            clear = partial(keep_last, self._out, self._keep)
            checkpoint.save(folder, tensors, numbers, self._group, after=clear)
        except BaseException as error:
            self._error = error

    def wait(self) -> None:
        """Until what was begun is on the disk; raises what went wrong in that."""
        self.close()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """The same, and silent: for an end that has a reason of its own."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
