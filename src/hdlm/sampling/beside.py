"""A second queue of a GPU, for work whose results the host needs while the first queue is full."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


class Beside:
    """A context in which work goes to the second queue; on a CPU it is nothing."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._inside: Any = nullcontext()
        self._device = device
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(device))

    def __enter__(self) -> None:
        if self._stream is not None:
            self._inside = torch.cuda.stream(self._stream)
            self._inside.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._inside.__exit__(*error)

    def hand_over(self, *holders: Any) -> None:
        """Let the first queue use the tensors that these objects hold, which were made in the second."""
        if self._stream is None:
            return
        here = torch.cuda.current_stream(self._device)
        here.wait_stream(self._stream)
        for holder in holders:
            values = holder.values() if isinstance(holder, dict) else vars(holder).values()
            for value in values:
                if isinstance(value, Tensor):
                    value.record_stream(here)


def on_device(device: torch.device) -> AbstractContextManager:
    """A context in which a GPU is the current one, as kernels and recordings need; on a CPU it is nothing."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
