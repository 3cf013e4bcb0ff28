"""Runs on several processes of this machine, started by torchrun; also the script that each of them executes.

A process may be told to die: RANK:step:N in the middle of step N, RANK:save:N when its shard of the N-th checkpoint
is on the disk and nobody has heard of it.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_on(processes, recipe, out, *, nodes=1, restarts=0, dies="", timeout=240):
    """A run on so many processes, spread evenly over agents that take themselves for machines; what the agents said."""
    script = out.parent / f"{out.name}.json"
    script.write_text(json.dumps(recipe.to_json()))
    where = ["--standalone"]
    if nodes > 1:
        where = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{_free_port()}", "--local-addr=127.0.0.1"]
    command = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={nodes}", *where]
    command += [f"--nproc-per-node={processes // nodes}", f"--max-restarts={restarts}", "--monitor-interval=0.1"]
    words = [__file__, str(script), str(out), dies]
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    agents = [
        subprocess.Popen([*command, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
        for _ in range(nodes)
    ]
    try:
        said = [agent.communicate(timeout=timeout)[0] for agent in agents]
    finally:
        for agent in agents:
            agent.terminate()  # it ends its processes
    assert [agent.returncode for agent in agents] == [0] * nodes, "\n".join(said)[-6000:]
    return said


def _free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def _die_once(marker):
    """Kill this process, unless one has been killed here before."""
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def _be_killed(dies, out):
    """Put the death where it is due."""
    from hdlm.train import checkpoint
    from hdlm.train.step import Stepper

    rank, moment, number = dies.split(":")
    marker = out.parent / f"{out.name}.killed"
    if os.environ["RANK"] != rank:
        return
    owner, name = (Stepper, "_update") if moment == "step" else (checkpoint._Writer, "write_data")
    original = getattr(owner, name)

    def dying(self, *arguments):
        done = original(self, *arguments) if moment == "save" else None
        now = self.state.step + 1 if moment == "step" else len(list((out / "trainer").glob("step-*"))) + 1
        if now == int(number):
            _die_once(marker)
        return done if moment == "save" else original(self, *arguments)

    setattr(owner, name, dying)


def main():
    """One process of the run."""
    import torch

    from hdlm.config.recipe import Recipe
    from hdlm.train.loop import train

    torch.set_num_threads(1)
    recipe, out, dies = sys.argv[1:]
    if dies:
        _be_killed(dies, Path(out))
    train(Recipe.from_json(json.loads(Path(recipe).read_text())), out, go_on=True, quiet=True, device="cpu")


if __name__ == "__main__":
    main()
