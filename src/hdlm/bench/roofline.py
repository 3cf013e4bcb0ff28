"""The floor under a piece of work: how fast the device could do it if nothing got in the way.

The floor is the larger of operations / matrix rate and bytes / bandwidth. Operations are those of the matrix products
and of attention, 2 for a multiplication and an addition, and of attention only pairs that the layout allows. Bytes are
the fewest that must move: each weight once a pass, each cached key and value once a pass, and in training what
the optimiser and the averages read and write. Neither counts activations, so that no program reaches its floor. Padding
slots, of which a training slide may have a few, count as slots.
"""

import time
from dataclasses import dataclass

import torch

from hdlm.nn.config import DenoiserConfig, padded


@dataclass(frozen=True)
class Ceiling:
    """What a device was measured to do: operations per second in matrix products, bytes per second in copies."""

    operations: float
    bandwidth: float


@dataclass(frozen=True)
class Work:
    """Operations and bytes that cannot be avoided."""

    operations: float
    bytes: float

    def __add__(self, other: "Work") -> "Work":
        return Work(self.operations + other.operations, self.bytes + other.bytes)

    def floor(self, ceiling: Ceiling) -> float:
        """Seconds below which nobody gets."""
        return max(self.operations / ceiling.operations, self.bytes / ceiling.bandwidth)


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


def synchronize(device: torch.device) -> None:
    """Until the device has done all that it was asked to."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _median_seconds(work, device: torch.device, times: int = 10) -> float:
    for _ in range(3):
        work()
    found = []
    for _ in range(times):
        synchronize(device)
        began = time.perf_counter()
        work()
        synchronize(device)
        found.append(time.perf_counter() - began)
    return sorted(found)[len(found) // 2]


def trunk_parameters(config: DenoiserConfig) -> int:
    """Weights of the matrix products that every slot goes through."""
    size, width = config.head_size, config.width
    attention = width * (config.heads + 2 * config.num_kv_heads) * size + config.heads * size * width
    mlp = width * config.hidden_size * (1 + config.gated) + config.hidden_size * width
    return config.layers * (attention + mlp)


def head_parameters(config: DenoiserConfig) -> int:
    """Weights of the last matrix product."""
    return config.width * padded(config.outputs)


def forward_work(
    config: DenoiserConfig,
    *,
    calls: int,
    slots: int,
    pairs: int,
    keys: int,
    head_slots: int,
    head_calls: int,
    width: int,
) -> Work:
    """Forward passes: `pairs` of slots that attend, `keys` read from a cache, weights of `width` bytes."""
    per_pair = 4 * config.layers * config.heads * config.head_size
    operations = 2 * trunk_parameters(config) * slots + per_pair * pairs + 2 * head_parameters(config) * head_slots
    cached = 2 * config.layers * config.num_kv_heads * config.head_size * keys
    moved = calls * trunk_parameters(config) + head_calls * head_parameters(config) + cached
    return Work(operations, width * moved)


def step_work(config: DenoiserConfig, *, slots: int, pairs: int, head_slots: int, parameters: int) -> Work:
    """One training step: forward and twice as much backward; the optimiser in float32, with an average of weights."""
    forward = forward_work(
        config, calls=1, slots=slots, pairs=pairs, keys=0, head_slots=head_slots, head_calls=1, width=2
    )
    # AdamW reads weight, gradient and two moments and writes three of them; the average is read and written.
    return Work(3 * forward.operations, 3 * forward.bytes + 4 * 9 * parameters)
