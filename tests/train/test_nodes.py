"""Runs on several processes and nodes, on any other number afterwards, and with processes that are killed."""

import dataclasses
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from support.runs import text_folder, tiny_recipe
from support.torchrun import run_on

from hdlm.train.loop import resume, train
from hdlm.train.state import checkpoints

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """Shards inside of each node, a copy a node; without dropout, whose draws depend on the number of processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HDLM_CACHE", str(tmp_path_factory.mktemp("cache")))
        found = tiny_recipe(text_folder(tmp_path_factory.mktemp("text")), steps=8, global_batch=12, micro_batch=2)
        model = dataclasses.replace(found.model, dropout=0.0)
        yield dataclasses.replace(
            found,
            model=model,
            sharded=True,
            hybrid=True,
            recompute=True,
            save_every=3,
            eval_every=8,
            eval_rows=6,
            keep=9,
        )


@pytest.fixture(scope="module")
def alone(recipe, tmp_path_factory):
    out = tmp_path_factory.mktemp("alone") / "run"
    train(recipe, out, quiet=True)
    return out


@pytest.fixture(scope="module")
def four(recipe, tmp_path_factory):
    """Four processes that are never disturbed, as two nodes."""
    out = tmp_path_factory.mktemp("four") / "run"
    run_on(4, recipe, out, nodes=2)
    return out


def losses(out):
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row["loss"] for row in rows if "loss" in row}


def assert_near(one, other):
    assert losses(one).keys() == losses(other).keys()
    assert list(losses(one).values()) == pytest.approx(list(losses(other).values()), abs=1e-5)
    first, second = (load_file(out / "model.safetensors") for out in (one, other))
    assert all(torch.allclose(first[name], second[name], atol=1e-4) for name in first.keys() | second.keys())


@pytest.mark.slow
def test_four_processes_as_two_nodes_are_one(alone, four):
    assert_near(four, alone)
    shards = {path.name[:11] for path in checkpoints(four)[0].glob("*.safetensors")}
    assert shards == {f"shard-0000{rank}" for rank in range(1, 5)}, "each has written its own"


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_what_four_processes_saved_any_number_goes_on_with(processes, recipe, alone, four, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(four, out)
    for path in (*checkpoints(out)[1:], out / "best"):
        shutil.rmtree(path)
    (out / "model.safetensors").unlink()
    if processes == 1:
        assert resume(out, quiet=True).finished
    else:
        run_on(processes, recipe, out)
    assert_near(out, alone)


@pytest.mark.slow
@pytest.mark.parametrize("dies", ["3:step:5", "1:save:2", "0:save:2"])
def test_a_process_that_is_killed_changes_nothing(dies, recipe, four, tmp_path):
    """The agents start all four anew, and they end with the weights of four that nobody killed, bit for bit."""
    out = tmp_path / "run"
    said = run_on(4, recipe, out, nodes=2, restarts=3, dies=dies)
    assert (tmp_path / "run.killed").exists(), said
    assert losses(out) == losses(four)
    shards = sorted(path.relative_to(four) for path in four.glob("trainer/*/*.safetensors"))
    assert len(shards) == 12
    for name in ("model.safetensors", *shards):
        first, second = load_file(out / name), load_file(four / name)
        assert all(torch.equal(first[name], second[name]) for name in first.keys() | second.keys())
    assert not [path for path in (out / "trainer").iterdir() if path.name.startswith(".")]
