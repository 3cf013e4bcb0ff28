"""The line that `hdlm train --nodes --gpus` prints, and what it refuses."""

import json
import shlex

import pytest

from hdlm.cli.main import main

TORCHRUN = ["torchrun", "--nnodes=1", "--nproc-per-node=8", "--standalone", "--max-restarts=3", "-m", "hdlm"]


def line(capsys, *words):
    assert main(["train", *words]) == 0
    said = capsys.readouterr()
    return said.out.strip(), said.err


def test_one_machine_is_a_torchrun_of_its_own(capsys):
    command, note = line(capsys, "owt-ar", "--gpus", "8", "--out", "my runs/a", "--optimizer.lr", "1e-3")
    words = ["train", "owt-ar", "--out", "my runs/a", "--optimizer.lr", "1e-3", "--resume", "auto"]
    assert shlex.split(command) == [*TORCHRUN, *words]
    assert note == ""


@pytest.mark.parametrize(
    "given", [["--nodes", "2", "--gpus=8"], ["--nodes=2", "--gp", "8"], ["--no", "2", "--gpus", "8"]]
)
def test_several_machines_meet_at_one_of_them(given, capsys):
    command, note = line(capsys, "owt-ar", *given, "--resume", "auto")
    assert command.startswith("torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-id=hdlm ")
    assert "--rdzv-endpoint=$HEAD:29400" in command
    assert command.endswith(" -m hdlm train owt-ar --resume auto")
    assert "on each node, HEAD being the name of one of them" in note


def test_nodes_may_come_and_go_where_the_batch_can_be_divided(capsys):
    command, note = line(capsys, "owt-ar", "--nodes", "1:4", "--gpus", "8", "--json")
    assert "--nnodes=1:4" in json.loads(command)["command"]
    assert "global_batch = 512 does not divide by the processes of 3 nodes: that run would not start" in note


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--nodes", "3", "--gpus", "8"], "global_batch = 512 is not accepted: it must divide by 24 processes"),
        (["--nodes", "0"], "nodes = '0' is not accepted: it must be in 1..10,000, the lesser number first"),
        (["--nodes", "4:2"], "nodes = '4:2' is not accepted: it must be in 1..10,000"),
        (["--nodes", "x"], "nodes = 'x' is not accepted: it must be a number, or MIN:MAX"),
        (["--nodes", "1:"], "nodes = '1:' is not accepted: it must be a number, or MIN:MAX"),
        (["--gpus", "0"], "gpus = 0 is not accepted: it must be in 1..10,000"),
        (["--gpus", "2", "--steps", "0"], "steps = 0 is not accepted"),
        (["--gpus", "2", "--resume", "nowhere"], "nowhere is not accepted: it holds no run"),
    ],
)
def test_what_would_not_start_is_refused(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "owt-ar", *words]) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert said.out == ""
    assert not list(tmp_path.iterdir())
