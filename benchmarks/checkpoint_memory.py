"""How much memory a checkpoint costs each process, and how long training waits for it: shards beside gathering.

Four processes of this machine share a network by FSDP2, and save it in turns: each its own shards in the background, as
`hdlm train` does, and gathered whole, as it did before. Peak memory is the kernel's own (VmHWM, reset before each).

    python -m torch.distributed.run --standalone --nproc-per-node 4 benchmarks/checkpoint_memory.py --json FILE
"""

import argparse
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import nn

from hdlm import processes
from hdlm.config.model import DenoiserConfig
from hdlm.files import folder_written_aside, json_text, written_aside
from hdlm.nn.transformer import Denoiser
from hdlm.processes import World
from hdlm.train.distributed import full_tensor, parallelize
from hdlm.train.loss import LossModule
from hdlm.train.saver import Saver
from hdlm.train.state import EMA, State

MIB = 2**20


def memory(name: str) -> float:
    """A figure of this process in MiB, as the kernel has it: VmRSS, now, or VmHWM, the highest since it was reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def reset_peak() -> None:
    """Let VmHWM begin anew."""
    Path("/proc/self/clear_refs").write_text("5")


def gathered(state: State, folder: Path, world: World) -> None:
    """Every process gathers all tensors, and the first one writes them."""
    tensors = {name: full_tensor(tensor).cpu().contiguous() for name, tensor in state.tensors()}
    if world.is_main:
        with folder_written_aside(folder) as aside:
            save_file(tensors, aside / "state.safetensors")
    world.barrier()


def measured(world: World, begin, finish) -> dict[str, float]:
    """What one way of saving adds to a process's memory, and the seconds until it lets go and until it is done."""
    world.barrier()
    before, began = memory("VmRSS"), time.perf_counter()
    reset_peak()
    begin()
    free = time.perf_counter() - began
    finish()
    world.barrier()
    return {"peak": memory("VmHWM") - before, "waits": free, "seconds": time.perf_counter() - began}


def main() -> None:
    """Measure, on every process, and show what the first found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=12, help="of 768 features (12)")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each (2)")
    parser.add_argument("--json", type=Path, help="where the figures go")
    args = parser.parse_args()
    world = processes.init("cpu")
    torch.manual_seed(0)
    config = DenoiserConfig(vocab_size=8192, layers=args.layers, width=768, heads=12, condition_width=128)
    model = Denoiser(config)
    parallelize(LossModule(model, nn.Identity()), world, sharded=True)  # pyright: ignore[reportArgumentType]
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    state = State(model, EMA(model, 0.9), optimizer, step=1, updates=1)
    whole = sum(tensor.nbytes for _, tensor in state.tensors()) / MIB
    own = sum(tensor.to_local().nbytes for _, tensor in state.tensors()) / MIB  # pyright: ignore[reportAttributeAccessIssue]
    rows: dict[str, list[dict[str, float]]] = {"shards": [], "gathered": []}
    with tempfile.TemporaryDirectory(prefix="hdlm-checkpoint-") as folder:
        out = Path(world.from_main(folder))
        for turn in range(args.rounds):
            saver = Saver(out, world, keep=1)
            state.step = turn
            rows["shards"].append(measured(world, lambda saver=saver: saver.save(state), saver.wait))
            where = out / f"gathered-{turn}"
            rows["gathered"].append(measured(world, lambda where=where: gathered(state, where, world), lambda: None))
        world.barrier()
    found = {"rank": world.rank, "own_mib": own, **rows}
    every: list = [None] * world.size
    dist.all_gather_object(every, found)
    if world.is_main:
        report = {"processes": world.size, "state_mib": whole, "torch": torch.__version__, "ranks": every}
        for one in every:
            peaks = ", ".join(f"{way} +{max(row['peak'] for row in one[way]):,.0f} MiB" for way in rows)
            print(f"rank {one['rank']}: holds {one['own_mib']:,.0f} of {whole:,.0f} MiB; saving adds at most {peaks}")
        if args.json is not None:
            with written_aside(args.json) as aside:
                aside.write_text(json_text(report, indent=1) + "\n")
    processes.destroy()


if __name__ == "__main__":
    main()
