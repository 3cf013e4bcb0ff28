"""Texts and numbers of several processes are those of one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.bundles import bundle
from support.together import asked

from hdlm.cli.main import main
from hdlm.evaluate.sweep import Results
from hdlm.processes import ALONE, World
from hdlm.sampling.results import Stats

COUNT = 3


def torchrun(*words, count=COUNT):
    """Processes of a module, to their end."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count), "-m"]
    path = os.pathsep.join(filter(None, (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run([*command, *words], capture_output=True, text=True, check=False, env=environment)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A saved model."""
    return bundle(process="absorbing").save(tmp_path_factory.mktemp("together") / "model")


def close(found, wanted):
    """Whether nested lists of numbers are equal up to rounding."""
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(close, found, wanted))
    return found == pytest.approx(wanted, abs=1e-9)


def test_many_processes_are_one(folder, tmp_path):
    alone = asked(folder, tmp_path / "alone")
    done = torchrun("support.together", str(folder), str(tmp_path), str(tmp_path / "results"))
    assert done.returncode == 0, done.stderr[-2000:]
    for rank in range(COUNT):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found.keys() == alone.keys()
        assert {name for name, value in alone.items() if not close(found[name], value)} == set()
    cells = json.loads((tmp_path / "results" / "results.json").read_text())["cells"]
    assert [cell["result"]["ranks"] for cell in cells.values()] == [[*range(COUNT)]]


def test_the_command_line_shares_its_work(folder):
    done = torchrun("hdlm", "sample", str(folder), "--num-samples", "3", "--length", "6", "--json", count=2)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)  # one process talks
    assert len(found["samples"]) == 3
    assert len({row["seed"] for row in found["samples"]}) == 1


def test_what_is_not_shared_is_refused(folder, monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert main(["compare", str(folder), str(folder), "--samples", "2"]) == 2
    assert "hdlm compare is not accepted with 4 processes" in capsys.readouterr().err
    monkeypatch.setattr("hdlm.processes.init", lambda device: World(0, 4, torch.device("cpu")))
    for flags, name in ((["--watch"], "--watch"), (["--replay", "page.html"], "--replay")):
        assert main(["sample", str(folder), *flags]) == 2
        assert f"{name} is not accepted with 4 processes" in capsys.readouterr().err


def test_shares_are_all_of_it():
    numbers = list(range(7))
    world = [World(rank, 3, torch.device("cpu")) for rank in range(3)]
    parts = [[2 * number for number in numbers[one.rank :: 3]] for one in world]
    for one in world:
        object.__setattr__(one, "gather", lambda value: parts)
        assert one.divide(numbers, lambda own: [2 * number for number in own]) == [0, 2, 4, 6, 8, 10, 12]
    assert ALONE.divide(numbers, lambda own: [-number for number in own]) == [-number for number in numbers]
    assert ALONE.divide([], lambda own: own[0]) == []


def test_side_by_side_takes_the_longer_time():
    both = Stats(network_calls=2, tokens=10, seconds=3.0).beside(Stats(network_calls=5, tokens=1, seconds=2.0))
    assert (both.network_calls, both.tokens, both.seconds) == (7, 11, 3.0)


def test_only_one_process_writes_results(tmp_path):
    for writes in (False, True):
        Results(tmp_path, {}, writes=writes).cell({"cell": 1}, dict)
        assert (tmp_path / "results.json").exists() == writes
