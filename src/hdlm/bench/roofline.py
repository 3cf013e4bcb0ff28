"""What a machine can do, measured, and so the floor under a piece of work: its time if nothing got in the way.

The floor is the larger of operations / matrix rate and bytes / bandwidth. What the work is, `cost.py` says.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from hdlm.bench.cost import Work


@dataclass(frozen=True)
class Ceiling:
    """What a device was measured to do: operations per second in matrix products, bytes per second in copies."""

    operations: float
    bandwidth: float

    def floor(self, work: Work) -> float:
        """Seconds below which nobody gets."""
        return max(work.operations / self.operations, work.bytes / self.bandwidth)


@torch.no_grad()
def measure_ceiling(device: torch.device) -> Ceiling:
    """Rates on random data: a large matrix product (bf16 on a GPU, float32 on a CPU) and a large copy."""
    cuda = device.type == "cuda"
    size, dtype = (8192, torch.bfloat16) if cuda else (1024, torch.float32)
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    product = _median_seconds(lambda: a @ b, device)
    source = torch.randn(2**28 if cuda else 2**24, device=device)
    target = torch.empty_like(source)
    copy = _median_seconds(lambda: target.copy_(source), device)
    return Ceiling(2 * size**3 / product, 2 * source.numel() * source.element_size() / copy)


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """How long the device takes for it, from nothing under way to nothing under way."""
    synchronize(device)
    began = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - began


def synchronize(device: torch.device) -> None:
    """Until the device has done all that it was asked to."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _median_seconds(work: Callable[[], object], device: torch.device, times: int = 10) -> float:
    for _ in range(3):
        work()
    return sorted(seconds(work, device) for _ in range(times))[times // 2]
