"""Several processes of a group for one test: copies of this one, which has imported all that they need."""

import os
import pickle
import signal
import sys
import traceback

import torch
import torch._dynamo  # sharded tensors need it, and each copy would take seconds to import it
import torch.distributed as dist

SECONDS = 60  # after which a process that waits for another is ended


def on_processes(count, function, folder, *, nodes=1):
    """What `function(world)` gives on each of `count` processes of one gloo group, or the error that it met there."""
    children, place = [], folder / f"group-{count}-{len(os.listdir(folder))}"
    place.mkdir()
    for rank in range(count):
        child = os.fork()
        if child == 0:
            _be(rank, count, function, place, nodes)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    return [pickle.loads((place / f"{rank}.pickle").read_bytes()) for rank in range(count)]


def _be(rank, count, function, place, nodes):
    """A process of the group, to its end."""
    from hdlm.processes import World

    try:
        signal.alarm(SECONDS)
        torch.set_num_threads(1)
        os.environ["LOCAL_WORLD_SIZE"] = str(count // nodes)
        dist.init_process_group("gloo", store=dist.FileStore(str(place / "store"), count), rank=rank, world_size=count)
        try:
            found = function(World(rank, count, torch.device("cpu")))
        except Exception as error:
            traceback.print_exc(file=sys.__stderr__)
            found = error
        (place / f"{rank}.pickle").write_bytes(pickle.dumps(found))
        dist.barrier()
    finally:
        os._exit(0)
