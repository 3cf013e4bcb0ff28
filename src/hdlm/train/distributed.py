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
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from hdlm.device import choose_device
from hdlm.train.loss import LossModule
from hdlm.train.rendezvous import agents_store, meet


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
    backend, store = "nccl" if chosen.type == "cuda" else "gloo", agents_store()
    if store is None:
        dist.init_process_group(backend)
    else:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group(backend, store=meet(store, rank, size), rank=rank, world_size=size)
    return World(dist.get_rank(), dist.get_world_size(), chosen)


def destroy() -> None:
    """Leave the group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def parallelize(module: LossModule, world: World, *, sharded: bool, hybrid: bool = False) -> nn.Module:
    """The module over all processes: whole copies (DDP), or its parameters sharded (FSDP2).

    `hybrid`: sharded inside of each node, and a copy a node (HSDP), so that between nodes gradients alone travel.
    """
    if world.size == 1:
        return module
    if not sharded:
        return DistributedDataParallel(module, device_ids=[world.device] if world.device.type == "cuda" else None)
    mesh = _nodes_by_processes(world) if hybrid else None
    for block in module.denoiser.blocks:
        fully_shard(block, mesh=mesh, mp_policy=block_precision(world.device))
    # What is left, embedding and head, stays in float32: their gradients are sums over many tokens and chunks.
    fully_shard(module, mesh=mesh)
    return module


def block_precision(device: torch.device) -> MixedPrecisionPolicy:
    """What a block's shards are gathered in: half the bytes on a GPU, which multiplies in bf16 anyway.

    Gradients are added up in float32. What goes into a block is left as it is, rotary tables above all.
    """
    if device.type != "cuda":
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)


def _nodes_by_processes(world: World) -> DeviceMesh | None:
    """The mesh (nodes, processes of a node), as torchrun has made them; None where there is one node."""
    inside = int(os.environ.get("LOCAL_WORLD_SIZE", world.size))
    if world.size % inside:
        raise ValueError(
            f"hybrid = True is not accepted: {world.size} processes are not equally many on each node, {inside} on this"
        )
    if inside == world.size:
        return None
    return init_device_mesh(world.device.type, (world.size // inside, inside), mesh_dim_names=("replicate", "shard"))


def no_sync(module: nn.Module, *, last: bool) -> AbstractContextManager:
    """For the micro-batches before the last, whose gradients stay where they are: nothing is exchanged for them.

    Sharded, this costs the memory of a whole gradient on each process from one micro-batch to the next.
    """
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(last)
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
