"""A model out of a run's checkpoints, whole or in shards, finished or not."""

import shutil

import pytest
import torch
from safetensors.torch import save_file
from support.forks import on_processes
from support.runs import text_folder, tiny_recipe

import hdlm
from hdlm.train import checkpoint, loop
from hdlm.train.consolidate import bundle_of
from hdlm.train.distributed import parallelize
from hdlm.train.loop import train
from hdlm.train.loss import LossModule
from hdlm.train.state import EMA, State, checkpoints
from hdlm.weights import contents

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HDLM_CACHE", str(tmp_path_factory.mktemp("cache")))
        out = tmp_path_factory.mktemp("runs") / "run"
        train(tiny_recipe(text_folder(tmp_path_factory.mktemp("text")), steps=8), out, quiet=True)
        return out


def same(one, other):
    first, second = contents(one.model), contents(other.model)
    return all(torch.equal(first[name], second[name]) for name in first.keys() | second.keys())


def test_the_model_of_a_finished_run_is_the_one_in_its_folder(run):
    found, there = bundle_of(run), hdlm.load(run)
    assert same(found, there)
    assert found.config == there.config
    assert found.tokenizer.to_str() == there.tokenizer.to_str()


def test_the_last_whole_checkpoint_counts(run, tmp_path):
    """By its average, and not by the weights that training had reached."""
    out = tmp_path / "run"
    shutil.copytree(run, out)
    (checkpoints(out)[-1] / "state.json").unlink()
    found = bundle_of(out)
    assert not same(found, hdlm.load(run))
    held = {f"average/{name}": torch.empty_like(tensor) for name, tensor in found.model.named_parameters()}
    checkpoint.load(checkpoints(out)[-1], held, whole=False)
    assert all(torch.equal(tensor, held[f"average/{name}"]) for name, tensor in found.model.named_parameters())


def test_shards_of_several_processes_are_put_together(run, tmp_path):
    out, bundle = tmp_path / "run", bundle_of(run)
    shutil.copytree(run, out)
    last = checkpoints(out)[-1]

    def save(world):
        model = bundle.model
        parallelize(LossModule(model, None), world, sharded=True)
        state = State(model, EMA(model, 0.9), torch.optim.AdamW(model.parameters()), step=8, updates=8)
        checkpoint.save(last, dict(state.tensors()), state.numbers())

    assert on_processes(3, save, tmp_path) == [None] * 3
    assert len(list(last.glob("*.safetensors"))) == 3
    assert same(bundle_of(out), bundle)


def test_a_checkpoint_of_one_file_is_read_too(run, tmp_path):
    out, found = tmp_path / "run", bundle_of(run)
    shutil.copytree(run, out)
    last = checkpoints(out)[-1]
    shutil.rmtree(last)
    last.mkdir()
    tensors = {f"average/{name}": tensor.detach() for name, tensor in found.model.named_parameters()}
    save_file(tensors | {"weights/embedding": torch.zeros(1)}, last / "state.safetensors")
    (last / "state.json").write_text('{"step": 8, "updates": 8, "best": null}')
    assert same(bundle_of(out), found)


def test_what_is_damaged_is_named(run, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(run, out)
    shard = next(checkpoints(out)[-1].glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-3])
    with pytest.raises(ValueError, match=f"{shard.name} is damaged: it has"):
        bundle_of(out)


def test_what_is_no_run_or_has_saved_nothing_is_refused(run, tmp_path):
    with pytest.raises(ValueError, match=r"it holds no run \(trainer/recipe.json is missing\)"):
        bundle_of(tmp_path)
    shutil.copytree(run, tmp_path / "run")
    for path in checkpoints(tmp_path / "run"):
        shutil.rmtree(path)
    with pytest.raises(ValueError, match="its run has saved no checkpoint yet"):
        bundle_of(tmp_path / "run")


def test_shards_are_put_together_by_the_first_process_at_the_end(run, monkeypatch):
    """From the last checkpoint: nothing is gathered for it."""
    read = []
    monkeypatch.setattr(loop, "read_average", lambda path, model: read.append((path, model)) or "whole")

    class Run:
        out, _is_sharded, job = run, True, type("Job", (), {"build_model": staticmethod(lambda: "network")})

    assert loop._Trainer._averaged(Run()) == "whole"
    assert read == [(checkpoints(run)[-1], "network")]
