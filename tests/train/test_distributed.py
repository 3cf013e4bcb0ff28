"""Tensors and modules over processes, in a group of one: what two of them do is in `test_train.py`."""

import pytest
import torch
import torch.distributed as dist
from support.networks import network
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from hdlm import processes
from hdlm.processes import World
from hdlm.train.distributed import copy_full_tensor, full_tensor, no_sync, parallelize


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    processes.destroy()
    assert not dist.is_initialized()


@pytest.mark.parametrize("placement", [Shard(0), Shard(1), Replicate()], ids=repr)
@pytest.mark.usefixtures("group")
def test_a_checkpoint_is_copied_into_what_is_sharded(placement):
    """So that any number of processes resumes what any other saved; it takes the type that is there."""
    mesh, value = init_device_mesh("cpu", (1,)), torch.arange(6, dtype=torch.float64).view(2, 3)
    target = distribute_tensor(torch.zeros(2, 3), mesh, [placement])
    copy_full_tensor(target, value)
    found = full_tensor(target)
    assert type(found) is torch.Tensor
    assert torch.equal(found, value.float())
    assert target.placements == (placement,)


def test_what_is_not_sharded_is_copied_as_it_is():
    target, value = torch.zeros(2, 3), torch.arange(6, dtype=torch.float64).view(2, 3)
    copy_full_tensor(target, value)
    assert torch.equal(target, value.float())
    assert full_tensor(target) is target


class Module(torch.nn.Module):
    """A network in a module, as the loss is."""

    def __init__(self):
        super().__init__()
        self.denoiser = network()


@pytest.mark.usefixtures("group")
def test_a_module_is_spread_as_it_is_asked_for():
    """Sharded block by block, or copied."""
    cpu, module = torch.device("cpu"), Module()
    assert parallelize(module, World(0, 1, cpu), sharded=True) is module
    copied = parallelize(module, World(0, 2, cpu), sharded=False)
    assert isinstance(copied, DistributedDataParallel)
    assert copied.module is module
    assert not isinstance(module.denoiser.blocks[0], FSDPModule)
    assert parallelize(module, World(0, 2, cpu), sharded=True) is module
    assert all(isinstance(part, FSDPModule) for part in (module, *module.denoiser.blocks))


@pytest.mark.usefixtures("group")
def test_copies_exchange_gradients_at_the_last_micro_batch_alone():
    module = DistributedDataParallel(torch.nn.Linear(2, 2))
    for last in (False, True):
        with no_sync(module, last=last):
            assert module.require_backward_grad_sync == last
    with no_sync(torch.nn.Linear(2, 2), last=False):
        pass
