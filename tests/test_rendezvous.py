"""Processes that meet in a store where others have met before them."""

import json
import threading
import time

import pytest
import torch.distributed as dist

from hdlm import rendezvous
from hdlm.rendezvous import agents_store, meet


def met(store, size, late=None):
    """What each of `size` processes (threads here) writes and finds in the store that it is given."""
    found = {}

    def be(rank):
        if rank == late:
            time.sleep(0.3)
        own = meet(store, rank, size)
        own.set(f"from-{rank}", str(rank))
        found[rank] = [own.get(f"from-{other}").decode() for other in range(size)]

    threads = [threading.Thread(target=be, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return found


@pytest.mark.parametrize("late", [None, 0, 2])
def test_those_that_are_here_meet_each_other_and_not_the_dead(late):
    """Fewer of them and more, with all that three groups have left behind them."""
    store = dist.HashStore()
    for size in (3, 3, 4):
        assert met(store, size, late) == {rank: [str(other) for other in range(size)] for rank in range(size)}


def test_who_was_never_here_is_waited_for():
    """A list of those before, who had our places, is not taken for ours."""
    store = dist.HashStore()
    store.set("hdlm/named", "old")
    store.set("hdlm/old/here", json.dumps(["x"]))
    store.set("hdlm/old/1", "x")
    found = []
    thread = threading.Thread(target=lambda: found.append(meet(store, 1, 2)))
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    own = meet(store, 0, 2)
    thread.join(20)
    own.set("a", "b")
    assert found[0].get("a") == b"b"


def test_nobody_is_waited_for_without_end(monkeypatch):
    monkeypatch.setattr(rendezvous, "PATIENCE", rendezvous.timedelta(seconds=0.2))
    store = dist.HashStore()
    store.set("hdlm/named", "old")
    with pytest.raises(TimeoutError, match="process 1 of 2 has not met the others in 0:00:00"):
        meet(store, 1, 2)


def test_torchruns_store_is_used_where_it_says_so(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    assert agents_store() is None
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(server.port))
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "False")
    assert agents_store() is None
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    server.set("a", "b")
    assert agents_store().get("a") == b"b"
