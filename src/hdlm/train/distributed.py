"""Processes: who we are, how the network is spread over them, and how its tensors are gathered.

Plain `torch.distributed`, started by torchrun; without it there is one process and no group. Knows no loss.
"""

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from hdlm.device import choose_device
from hdlm.train.loss import LossModule


@dataclass(frozen=True)
class World:
    """This process among all, and its device."""

    rank: int
    size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and talks."""
        return self.rank == 0

    def sum(self, value: Tensor) -> Tensor:
        """The sum of a tensor over all processes."""
        if self.size > 1:
            dist.all_reduce(value)
        return value

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any process."""
        return flag if self.size == 1 else bool(self.sum(torch.tensor(float(flag), device=self.device)) > 0)

    def from_main(self, value: Any) -> Any:
        """What the first process has, on all of them."""
        values = [value]
        if self.size > 1:
            dist.broadcast_object_list(values, src=0)
        return values[0]

    def barrier(self) -> None:
        """Until all processes are here."""
        if self.size > 1:
            dist.barrier()


def init(device: str | None = None) -> World:
    """Join the group that torchrun made, if it did."""
    chosen = choose_device(device)
    if "WORLD_SIZE" not in os.environ or int(os.environ["WORLD_SIZE"]) == 1:
        return World(0, 1, chosen)
    if chosen.type == "cuda":
        chosen = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(chosen)
    dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
    return World(dist.get_rank(), dist.get_world_size(), chosen)


def destroy() -> None:
    """Leave the group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def parallelize(module: LossModule, world: World, *, sharded: bool) -> nn.Module:
    """The module over all processes: whole copies (DDP), or its parameters sharded (FSDP2)."""
    if world.size == 1:
        return module
    if not sharded:
        return DistributedDataParallel(module, device_ids=[world.device] if world.device.type == "cuda" else None)
    for block in module.denoiser.blocks:
        fully_shard(block)
    fully_shard(module)
    return module


def no_sync(module: nn.Module, *, last: bool) -> AbstractContextManager:
    """DDP's `no_sync` for the micro-batches before the last, which keep their gradients to themselves."""
    return module.no_sync() if isinstance(module, DistributedDataParallel) and not last else nullcontext()


def full_tensor(tensor: Tensor) -> Tensor:
    """All of a tensor that may be sharded; every process must call this together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def copy_full_tensor(target: Tensor, value: Tensor) -> None:
    """Copy a full tensor into one that may be sharded."""
    value = value.to(target.device, target.dtype)
    if isinstance(target, DTensor):
        value = distribute_tensor(value, target.device_mesh, target.placements)
    target.copy_(value)
