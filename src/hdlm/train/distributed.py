"""How the network is spread over processes, and how its tensors are gathered. Knows no loss."""

import os
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from hdlm.processes import World
from hdlm.train.loss import LossModule


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
