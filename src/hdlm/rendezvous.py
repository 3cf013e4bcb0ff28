"""Where the processes of a group find each other when torchrun has started some of them anew.

torchrun's agents keep one store from one start to the next, and what the dead have left in it sends the living to
addresses where nobody is. So those that are alive agree on a name first, and meet below it. The count of restarts that
torchrun gives is no such name: each agent has its own.
"""

import json
import os
import secrets
import time
from datetime import timedelta

from torch.distributed import (
    PrefixStore,  # pyright: ignore[reportPrivateImportUsage]
    Store,  # pyright: ignore[reportPrivateImportUsage]
    TCPStore,  # pyright: ignore[reportPrivateImportUsage]
)

from hdlm.files import json_text

PATIENCE = timedelta(minutes=30)  # until all processes have read their data and come here


def agents_store() -> Store | None:
    """The store of torchrun's agents, where processes are to use it."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    return TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=PATIENCE)


def meet(store: Store, rank: int, size: int) -> Store:
    """A store that only those use who are here now: the first names it, and all others are in its list of who is."""
    me = secrets.token_hex(8)
    if rank == 0:
        store.set("hdlm/named", me)
        here = [store.get(f"hdlm/{me}/{other}").decode() for other in range(1, size)]
        store.set(f"hdlm/{me}/here", json_text(here))
        return PrefixStore(f"hdlm/{me}", store)
    until = time.monotonic() + PATIENCE.total_seconds()
    while time.monotonic() < until:
        name = store.get("hdlm/named").decode()  # perhaps still that of those before, who do not know us
        store.set(f"hdlm/{name}/{rank}", me)
        if store.check([f"hdlm/{name}/here"]) and me in json.loads(store.get(f"hdlm/{name}/here")):
            return PrefixStore(f"hdlm/{name}", store)
        time.sleep(0.05)
    raise TimeoutError(f"process {rank} of {size} has not met the others in {PATIENCE}")
