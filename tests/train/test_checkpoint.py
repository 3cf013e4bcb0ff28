"""Checkpoints on disk: whole or not there, read by any number of processes, refused by the name of what is wrong."""

import errno
import hashlib
import json
import os
import threading

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.forks import on_processes
from support.networks import network
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from hdlm.processes import World
from hdlm.train import checkpoint
from hdlm.train.distributed import full_tensor
from hdlm.train.saver import Saver
from hdlm.train.state import EMA, State, checkpoints

CPU = torch.device("cpu")
NUMBERS = {"step": 3, "updates": 2, "best": None}


def tensors():
    """Of shapes that three and four processes share unevenly, or not at all."""
    generator = torch.Generator().manual_seed(0)
    return {f"weights/{i}": torch.randn(shape, generator=generator) for i, shape in enumerate([(7, 5), (2,), (8, 3)])}


def empty():
    return {name: torch.zeros_like(tensor) for name, tensor in tensors().items()}


@pytest.fixture
def saved(tmp_path):
    checkpoint.save(tmp_path / "run" / "step", tensors(), NUMBERS)
    return tmp_path / "run" / "step"


def record(folder, change=lambda shards: None):
    """Rewrite what a record says of its shards."""
    path = folder / "state.json"
    data = json.loads(path.read_text())
    for name in data["shards"]:
        if (folder / name).exists():
            content = (folder / name).read_bytes()
            data["shards"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    change(data["shards"])
    path.write_text(json.dumps(data))


def test_what_is_saved_is_read_again(saved):
    found = empty()
    checkpoint.verify(saved)
    checkpoint.load(saved, found)
    assert all(torch.equal(found[name], value) for name, value in tensors().items())
    assert checkpoint.read_numbers(saved) == NUMBERS
    shard = "shard-00001-model-00001-of-00001.safetensors"
    assert sorted(os.listdir(saved)) == [shard, "state.json"], "and no pickle"
    content = (saved / shard).read_bytes()
    told = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    assert json.loads((saved / "state.json").read_text())["shards"] == {shard: told}
    assert os.listdir(saved.parent) == ["step"]


def test_much_is_written_in_several_files(tmp_path, monkeypatch):
    """So that no more than one of them exists twice in the memory."""
    monkeypatch.setattr(checkpoint, "_FILE_BYTES", 150)
    checkpoint.save(tmp_path / "step", tensors(), NUMBERS)
    files = sorted(tmp_path.glob("step/*.safetensors"))
    assert [list(load_file(path)) for path in files] == [["weights/0", "weights/1"], ["weights/2"]]
    found = empty()
    checkpoint.load(tmp_path / "step", found)
    assert all(torch.equal(found[name], value) for name, value in tensors().items())


def flip(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda shard: shard.write_bytes(shard.read_bytes()[:-1]), r"{0} is damaged: it has \d+ bytes, and had \d+"),
        (flip, r"{0} is damaged: its SHA-256 is not the one that state.json gives"),
        (lambda shard: shard.unlink(), r"{0} does not exist"),
        (lambda shard: (shard.unlink(), os.mkfifo(shard)), r"{0} is not accepted: it is no regular file"),
        (
            lambda shard: shard.with_name("x.safetensors").touch(),
            r"x.safetensors is not accepted: state.json beside it",
        ),
        (lambda shard: shard.with_name(".metadata").touch(), r"/.metadata is not accepted: state.json beside it does"),
        (lambda shard: record(shard.parent, dict.clear), r"{0} is not accepted: state.json beside it does not name it"),
        (
            lambda shard: record(shard.parent, lambda of: of.update(x=3)),
            "state.json is damaged: it must name its shards",
        ),
        (lambda shard: record(shard.parent, lambda of: of.update({"../x": {}})), "state.json is damaged: it must"),
    ],
    ids=["cut", "flipped", "missing", "pipe", "foreign", "pickle", "unnamed", "record", "elsewhere"],
)
def test_a_shard_that_is_not_what_was_written_is_named(damage, message, saved):
    shard = next(saved.glob("*.safetensors"))
    damage(shard)
    with pytest.raises(ValueError, match=message.format(shard.name)) as caught:
        checkpoint.verify(saved)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda held: held.pop("weights/1"), "step is the checkpoint of another network: weights/1 differs"),
        (lambda held: held.update({"weights/1": torch.zeros(3)}), "of another network: weights/1 differs"),
        (lambda held: held.update({"more": torch.zeros(3)}), "of another network: more differs"),
        (lambda held: held["weights/1"].fill_(torch.inf), "step is damaged: weights/1 holds inf"),
    ],
    ids=["fewer", "other", "more", "infinite"],
)
def test_other_tensors_are_refused_by_name(change, message, tmp_path):
    held = tensors()
    change(held)
    checkpoint.save(tmp_path / "step", held, NUMBERS)
    checkpoint.verify(tmp_path / "step")
    with pytest.raises(ValueError, match=message):
        checkpoint.load(tmp_path / "step", empty())


def test_a_part_is_read_where_a_part_is_asked_for(saved):
    found = {"weights/2": torch.zeros(8, 3)}
    checkpoint.load(saved, found, whole=False)
    assert torch.equal(found["weights/2"], tensors()["weights/2"])


def test_a_record_of_fewer_shards_does_not_hide_a_hole(tmp_path):
    """The first rows are missing: by the last ones the shapes are what they should be."""
    folder = tmp_path / "step"

    def save(world):
        checkpoint.save(folder, {"weights/0": spread(world)["weights/0"]}, NUMBERS)

    on_processes(2, save, tmp_path)
    gone = min(folder.glob("*.safetensors"))
    gone.unlink()
    record(folder, lambda shards: shards.pop(gone.name))
    checkpoint.verify(folder)
    with pytest.raises(ValueError, match=r"step is damaged: its shards hold 15 numbers of weights/0 \(7, 5\)"):
        checkpoint.load(folder, {"weights/0": torch.zeros(7, 5)})


def spread(world, values=None):
    """Tensors cut over a group, and one that is on all of its processes."""
    mesh = init_device_mesh("cpu", (world.size,))
    found = {name: distribute_tensor(value, mesh, [Shard(0)]) for name, value in (values or tensors()).items()}
    return found | {"weights/2": (values or tensors())["weights/2"]}


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_any_number_of_processes_reads_what_three_have_written(count, tmp_path):
    folder = tmp_path / "step"
    assert on_processes(3, lambda world: checkpoint.save(folder, spread(world), NUMBERS), tmp_path) == [None] * 3
    assert {path.name[:11] for path in folder.glob("*.safetensors")} == {f"shard-0000{i}" for i in (1, 2, 3)}

    def read(world):
        found = spread(world, empty())
        checkpoint.verify(folder)
        checkpoint.load(folder, found)
        return all(torch.equal(full_tensor(found[name]), value) for name, value in tensors().items())

    assert on_processes(count, read, tmp_path) == [True] * count


@pytest.mark.parametrize("who", [0, 1])
def test_what_one_process_cannot_write_is_told_by_all(who, tmp_path, monkeypatch):
    folder = tmp_path / "run" / "step"

    def save(world):
        if world.rank == who:

            def full(*arguments):
                raise OSError(errno.ENOSPC, "No space left on device")

            monkeypatch.setattr(checkpoint._HashedFile, "write", full)
        checkpoint.save(folder, spread(world), NUMBERS)

    for error in on_processes(3, save, tmp_path):
        assert (error.errno, error.strerror) == (errno.ENOSPC, "No space left on device")
        assert error.filename == str(folder)
    assert os.listdir(folder.parent) == []


@pytest.mark.parametrize("moment", ["before", "after"])
def test_what_the_first_process_cannot_do_is_told_by_all(moment, tmp_path):
    """Make the folder, or tidy up when it is there."""
    (tmp_path / "file").touch()
    folder = tmp_path / ("file/step" if moment == "before" else "step")

    def after():
        raise OSError(errno.EACCES, "Permission denied", "older")

    for error in on_processes(2, lambda world: checkpoint.save(folder, spread(world), NUMBERS, after=after), tmp_path):
        assert error.errno == (errno.EEXIST if moment == "before" else errno.EACCES)
    assert folder.exists() == (moment == "after")


def test_what_one_process_finds_damaged_all_refuse(tmp_path):
    folder = tmp_path / "step"
    on_processes(2, lambda world: checkpoint.save(folder, spread(world), NUMBERS), tmp_path)
    flip(max(folder.glob("*.safetensors")))
    first, second = on_processes(2, lambda world: checkpoint.verify(folder), tmp_path)
    assert str(first) == str(second)
    assert "shard-00002" in str(first)


def test_a_shard_that_only_another_machine_has_is_missed(tmp_path, monkeypatch):
    folder, save_shards = tmp_path / "run" / "step", checkpoint._save_shards

    def elsewhere(place, tensors, group):
        found = save_shards(place, tensors, group)
        max(place.glob("*.safetensors")).unlink()
        return found

    monkeypatch.setattr(checkpoint, "_save_shards", elsewhere)
    with pytest.raises(ValueError, match="which another process wrote, is not there: a run's folder must lie where"):
        checkpoint.save(folder, tensors(), NUMBERS)
    assert os.listdir(folder.parent) == []


def state():
    torch.manual_seed(1)
    model = network()
    return State(model, EMA(model, 0.9), torch.optim.AdamW(model.parameters()), step=4, updates=4)


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    """What is written is the state at the time that it was asked for."""
    may, save_shards = threading.Event(), checkpoint._save_shards
    monkeypatch.setattr(checkpoint, "_save_shards", lambda *how: may.wait(20) and save_shards(*how))
    run, saver = state(), Saver(tmp_path, World(0, 1, CPU), keep=2)
    before = {name: tensor.clone() for name, tensor in run.tensors()}
    saver.save(run)
    run.step = 5
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter.add_(1.0)
    assert checkpoints(tmp_path) == []
    may.set()
    saver.wait()
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000004"]
    run.load(checkpoints(tmp_path)[0])
    assert run.step == 4
    assert all(torch.equal(tensor, before[name]) for name, tensor in run.tensors())


def test_what_went_wrong_meanwhile_is_raised_by_the_next(tmp_path):
    (tmp_path / "trainer").touch()
    run, saver = state(), Saver(tmp_path, World(0, 1, CPU), keep=2)
    saver.save(run)
    saver.close()
    assert saver.failed
    with pytest.raises((OSError, ValueError), match="trainer"):
        saver.save(run)
    assert not saver.failed


def test_only_the_last_are_kept(tmp_path):
    run, saver = state(), Saver(tmp_path, World(0, 1, CPU), keep=2)
    for step in (4, 5, 6):
        run.step = step
        saver.save(run)
    saver.wait()
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000005", "step-00000006"]


def test_checkpoints_of_one_file_are_read_still(tmp_path):
    """Those of versions that gathered them."""
    run, other, folder = state(), state(), tmp_path / "trainer" / "step-00000004"
    folder.mkdir(parents=True)
    save_file({name: tensor.contiguous() for name, tensor in run.tensors()}, folder / "state.safetensors")
    (folder / "state.json").write_text(json.dumps(run.numbers()))
    with torch.no_grad():
        for parameter in other.model.parameters():
            parameter.zero_()
    other.load(checkpoints(tmp_path)[0])
    found = dict(other.tensors())
    assert all(torch.equal(found[name], tensor) for name, tensor in run.tensors())
