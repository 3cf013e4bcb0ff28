"""Tensors and flags over processes, in a group of one: what two of them do is in `test_train.py`."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from hdlm.train import distributed
from hdlm.train.distributed import World, copy_full_tensor, full_tensor


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy()
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


@pytest.mark.usefixtures("group")
def test_flags_and_sums_go_through_the_group():
    world = World(0, 2, torch.device("cpu"))
    assert (world.any(True), world.any(False)) == (True, False)
    assert world.sum(torch.tensor([1.0, 2.0])).tolist() == [1.0, 2.0]
    world.barrier()
    assert world.is_main
    assert not World(1, 2, torch.device("cpu")).is_main


def test_a_flag_of_another_process_is_everybodys():
    class Told(World):
        def sum(self, value):
            return value + 1

    assert Told(0, 2, torch.device("cpu")).any(False)


def test_alone_there_is_no_group():
    world = World(0, 1, torch.device("cpu"))
    assert (world.any(True), world.any(False)) == (True, False)
    assert world.sum(torch.tensor(3.0)) == 3
    world.barrier()
