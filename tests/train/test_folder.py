"""A run's folder: gone on with by the same command, refused to another recipe, and seen by all processes."""

import os
import signal
from dataclasses import replace

import pytest
import torch
from support.forks import on_processes
from support.runs import text_folder, tiny_recipe

from hdlm.processes import World
from hdlm.train import folder, loop
from hdlm.train.folder import held, is_restarted
from hdlm.train.loop import train

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """A recipe and its run, stopped after the third step."""
    monkeypatch.setenv("HDLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(loop._Trainer, "_validate", lambda self: None)
    monkeypatch.setattr(loop, "finish", lambda job, model, out, bound, log: (out / "model.safetensors").touch())
    recipe, step = tiny_recipe(text_folder(tmp_path / "text")), loop._Trainer._step

    def stopping(self):
        if self.state.step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self)

    with monkeypatch.context() as patch:
        patch.setattr(loop._Trainer, "_step", stopping)
        assert train(recipe, tmp_path / "run", quiet=True).step == 3
    return recipe, tmp_path / "run"


def test_the_same_command_goes_on_where_that_is_asked_for(begun):
    recipe, out = begun
    with pytest.raises(ValueError, match="it holds a run; go on with --resume"):
        train(recipe, out, quiet=True)
    assert train(recipe, out, quiet=True, go_on=True).finished
    assert train(recipe, out, quiet=True, go_on=True).finished, "and when there is nothing left to do"


def test_what_torchrun_starts_again_goes_on(begun, monkeypatch):
    recipe, out = begun
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    assert train(recipe, out, quiet=True).finished


def test_where_there_is_no_run_yet_it_begins(begun, tmp_path):
    recipe, _ = begun
    assert train(replace(recipe, steps=2), tmp_path / "new", quiet=True, go_on=True).finished


@pytest.mark.parametrize("change", [{"seed": 1}, {"recompute": True}])
def test_a_run_of_another_recipe_is_not_gone_on_with(change, begun):
    recipe, out = begun
    with pytest.raises(
        ValueError, match=f"holds a run of another recipe, whose {next(iter(change))} differs; go on with"
    ):
        train(replace(recipe, **change), out, quiet=True, go_on=True)


@pytest.mark.parametrize(("count", "restarted"), [(None, False), ("0", False), ("", False), ("1", True)])
def test_torchrun_says_whether_it_has_started_us_before(count, restarted, monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    if count is not None:
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", count)
    assert is_restarted() == restarted


def test_what_the_killed_left_is_removed_by_who_holds_the_folder(tmp_path):
    rest = tmp_path / "trainer" / ".aside-1234" / "new"
    rest.mkdir(parents=True)
    (rest / "shard").touch()
    (tmp_path / "trainer" / "step-00000001").mkdir()
    with held(tmp_path, World(0, 1, torch.device("cpu"))):
        assert sorted(os.listdir(tmp_path / "trainer")) == ["lock", "step-00000001"]


def test_processes_that_see_another_folder_are_refused_by_all(tmp_path, monkeypatch):
    """As on machines without a common file system: a folder of the same name, in which another run has been."""
    monkeypatch.setattr(folder, "_SEEN_WITHIN", 0.3)
    for place in ("here", "there"):
        (tmp_path / place / "trainer").mkdir(parents=True)
    (tmp_path / "there" / "trainer" / "lock").write_text("old")

    def hold(place):
        def be(world):
            with held(tmp_path / place(world), world):
                return "held"

        return be

    assert on_processes(2, hold(lambda world: "here"), tmp_path) == ["held"] * 2
    for error in on_processes(2, hold(lambda world: ("here", "there")[world.rank]), tmp_path):
        assert "is not seen by all 2; a run's folder must lie on a file system that all nodes share" in str(error)
