"""How the network is spread over processes, and how its tensors are gathered. Knows no loss."""

from contextlib import AbstractContextManager, nullcontext

from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from hdlm.processes import World
from hdlm.train.loss import LossModule


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
