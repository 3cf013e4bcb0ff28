"""The line that starts a command on many processes: torchrun's, to be given on every machine. Starts nothing."""

import shlex
from collections.abc import Iterable, Iterator

from hdlm.cli.flags import note

_MOST = 10_000  # machines, or processes on one
_PORT = 29400


def launch_line(words: Iterable[str], *, nodes: str, gpus: int, batch: int) -> str:
    """The words of `hdlm` under torchrun, `gpus` processes on each of `nodes` machines, "N" or "MIN:MAX".

    Refused where none of these numbers of processes divides the global `batch`; where some do not, that is noted.
    """
    low, high = _range(nodes)
    if not 1 <= gpus <= _MOST:
        raise ValueError(f"gpus = {gpus} is not accepted: it must be in 1..{_MOST:,}")
    odd = [count for count in range(low, high + 1) if batch % (count * gpus)]
    if len(odd) == high + 1 - low:
        raise ValueError(f"global_batch = {batch} is not accepted: it must divide by {odd[0] * gpus} processes")
    if odd:
        counts = ", ".join(map(str, odd[:8])) + (", ..." if len(odd) > 8 else "")
        note(f"global_batch = {batch} does not divide by the processes of {counts} nodes: that run would not start")
    words = list(_without_ours(words))
    if not any(word.split("=")[0] == "--resume" for word in words):
        words += ["--resume", "auto"]
    where = ["--standalone"]
    if high > 1:
        where = ["--rdzv-backend=c10d", "--rdzv-id=hdlm", f"--rdzv-endpoint=$HEAD:{_PORT}"]
        note("give this on each node, HEAD being the name of one of them; --out must be seen by all (docs/scale.md)")
    torchrun = ["torchrun", f"--nnodes={nodes}", f"--nproc-per-node={gpus}", *where, "--max-restarts=3"]
    return " ".join([*torchrun, "-m", "hdlm", *map(shlex.quote, words)])


def _range(nodes: str) -> tuple[int, int]:
    low, colon, high = nodes.partition(":")
    high = high if colon else low
    if not all(part.isascii() and part.isdigit() and len(part) < 6 for part in (low, high)):
        raise ValueError(f"nodes = {nodes!r} is not accepted: it must be a number, or MIN:MAX")
    found = int(low), int(high)
    if not 1 <= found[0] <= found[1] <= _MOST:
        raise ValueError(f"nodes = {nodes!r} is not accepted: it must be in 1..{_MOST:,}, the lesser number first")
    return found


def _without_ours(words: Iterable[str]) -> Iterator[str]:
    """The words but for --nodes and --gpus, however short they were cut, and their values."""
    words = iter(words)
    for word in words:
        name, equals, _ = word.partition("=")
        if len(name) > 2 and any(ours.startswith(name) for ours in ("--nodes", "--gpus")):
            if not equals:
                next(words, None)
            continue
        yield word
