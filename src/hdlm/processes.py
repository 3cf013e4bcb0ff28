"""This process among others: who we are, what is agreed on, and how work is divided and brought together again.

Plain `torch.distributed`, started by torchrun; without it there is one process and no group. Knows no network.
"""

import atexit
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from hdlm.device import choose_device
from hdlm.rendezvous import agents_store, meet

T = TypeVar("T")
R = TypeVar("R")
_LEFT: list[Any] = []  # groups that this process was in
atexit.register(_LEFT.clear)


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

    def from_main(self, value: T) -> T:
        """What the first process has, on all of them."""
        values: list[Any] = [value]
        if self.size > 1:
            dist.broadcast_object_list(values, src=0)
        return values[0]

    def barrier(self) -> None:
        """Until all processes are here."""
        if self.size > 1:
            dist.barrier()

    def gather(self, value: T) -> list[T]:
        """What each process has, by rank; all get all."""
        found: list[Any] = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(found, value)
        return found

    def divide(self, items: Sequence[T], work: Callable[[Sequence[T]], Sequence[R]]) -> list[R]:
        """What `work` makes of items, one for one: each process works on its share, all get all in their order."""
        own = items[self.rank :: self.size]
        parts = self.gather(list(work(own)) if own else [])
        return [parts[n % self.size][n // self.size] for n in range(len(items))]


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
    """Leave the group, if there is one.

    What is left of it is kept to the end: were DDP the last to hold it, gloo's thread would wait for Python's lock, and
    whoever has that for gloo's thread.
    """
    if dist.is_initialized():
        _LEFT.append(dist.group.WORLD)
        dist.destroy_process_group()


@contextmanager
def joined(device: str | None = None) -> Iterator[World]:
    """Among all processes while it lasts."""
    world = init(device)
    try:
        yield world
    finally:
        destroy()


ALONE = World(0, 1, torch.device("cpu"))  # where nobody was asked to share the work
