"""A second CUDA stream, for work whose results the host needs while the first is full."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


class SideStream:
    """A context in which work goes to a second stream; on a CPU it is nothing."""

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

    def hand_over(self, values: Iterable[Any]) -> None:
        """Let the first stream use those of the values that are tensors, which were made in the second."""
        if self._stream is None:
            return
        here = torch.cuda.current_stream(self._device)
        here.wait_stream(self._stream)
        for value in values:
            if isinstance(value, Tensor):
                value.record_stream(here)


def on_device(device: torch.device) -> AbstractContextManager:
    """A context in which a GPU is the current one, as kernels and graphs need; on a CPU it is nothing."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
