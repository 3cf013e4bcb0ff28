"""Who is there, and what is agreed on; in a group of one. What several do is in `evaluate/test_together.py`."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from hdlm import processes
from hdlm.processes import World


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    processes.destroy()
    assert not dist.is_initialized()


@pytest.mark.usefixtures("group")
def test_flags_and_sums_go_through_the_group():
    world = World(0, 2, torch.device("cpu"))
    assert (world.any(True), world.any(False)) == (True, False)
    assert world.sum(torch.tensor([1.0, 2.0])).tolist() == [1.0, 2.0]
    world.barrier()
    assert world.is_main
    assert not World(1, 2, torch.device("cpu")).is_main


def test_two_processes_are_enough_for_a_sum_and_a_barrier(monkeypatch):
    told = []
    known = {"all_reduce": lambda value: value.mul_(2), "barrier": lambda: told.append("barrier")}
    monkeypatch.setattr(processes, "dist", SimpleNamespace(**known))
    world = World(1, 2, torch.device("cpu"))
    assert world.sum(torch.tensor(3.0)) == 6
    world.barrier()
    assert told == ["barrier"]


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


@pytest.mark.parametrize("size", [None, "1"])
def test_one_process_has_no_group(size, monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if size is not None:
        monkeypatch.setenv("WORLD_SIZE", size)
    assert processes.init("cpu") == World(0, 1, torch.device("cpu"))
    assert not dist.is_initialized()


@pytest.mark.parametrize(("device", "chosen", "kind"), [("cpu", "cpu", "gloo"), ("cuda", "cuda:3", "nccl")])
def test_several_processes_join_a_group_by_their_device(device, chosen, kind, monkeypatch):
    """On GPUs each takes the one of its number on its machine."""
    told = []
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setattr(processes, "choose_device", torch.device)
    monkeypatch.setattr(torch.cuda, "set_device", told.append)
    known = {"init_process_group": told.append, "get_rank": lambda: 1, "get_world_size": lambda: 2}
    monkeypatch.setattr(processes, "dist", SimpleNamespace(**known))
    assert processes.init(device) == World(1, 2, torch.device(chosen))
    assert told == ([torch.device(chosen), kind] if kind == "nccl" else [kind])
