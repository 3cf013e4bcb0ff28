"""How a run begins: what is refused before anything is read, and what is handed on to whom."""

import dataclasses
import json

import pytest
import torch
from support.runs import text_folder, tiny_recipe

from hdlm.processes import World
from hdlm.train import loop
from hdlm.train.log import Console
from hdlm.train.loop import resume, train
from hdlm.train.setup import anchored

PLAIN = {"device": None, "backend": None, "wandb": False, "quiet": False}
HOW = {"device": "cpu", "backend": "reference", "wandb": True, "quiet": True}


class EndedError(Exception):
    """Raised where a test has seen enough."""


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    monkeypatch.setenv("HDLM_CACHE", str(tmp_path / "cache"))
    return tiny_recipe(text_folder(tmp_path / "text", 12))


@pytest.fixture
def begun(monkeypatch):
    """Runs that would have begun."""
    told = []
    monkeypatch.setattr(loop, "_run", lambda recipe, out, **how: told.append((recipe, out, how)) or "result")
    return told


def place(out, *names):
    for name in names:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("{}")


def test_a_run_is_told_all_that_it_was_asked(recipe, tmp_path, begun):
    out, other = tmp_path / "run", text_folder(tmp_path / "other", 12)
    assert train(recipe, str(out)) == "result"
    assert train(recipe, out, **HOW) == "result"
    assert begun == [(recipe, out, {"resume": False, **PLAIN}), (recipe, out, {"resume": False, **HOW})]
    place(out, "trainer/recipe.json")
    (out / "trainer" / "recipe.json").write_text(json.dumps(recipe.to_json()))
    begun.clear()
    assert resume(str(out)) == "result"
    assert resume(out, data=other, **HOW) == "result"
    moved = dataclasses.replace(recipe, data=other)
    assert begun == [(recipe, out, {"resume": True, **PLAIN}), (moved, out, {"resume": True, **HOW})]


@pytest.mark.parametrize("call", [lambda out: train(tiny_recipe("x"), out), resume])
def test_a_place_that_is_no_path_is_named(call):
    with pytest.raises(ValueError, match=r"^out"):
        call(7)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("trainer/recipe.json", "it holds a run; go on with --resume"),
        ("trainer/step-00000001/state.json", "it holds a run; go on with --resume"),
        ("notes.txt", "the folder is not empty"),
        ("trainer/notes.txt", "the folder is not empty"),
    ],
)
def test_a_run_needs_a_folder_of_its_own(name, words, recipe, tmp_path, begun):
    place(tmp_path / "run", name)
    with pytest.raises(ValueError, match=words):
        train(recipe, tmp_path / "run")
    assert not begun


def test_what_a_run_leaves_that_never_began_is_nobodys(recipe, tmp_path, begun):
    place(tmp_path / "run", "tensorboard/events", *(f"trainer/{name}" for name in ("lock", "data.json")))
    assert train(recipe, tmp_path / "run") == "result"


def test_what_goes_on_from_a_model_is_told_where_it_is(recipe, tmp_path, begun):
    later = dataclasses.replace(recipe, goes_on_from="laptop")
    with pytest.raises(ValueError, match="init_from = None is not accepted"):
        train(later, tmp_path / "run")
    found = dataclasses.replace(later, init_from="somewhere")
    assert train(found, tmp_path / "run") == "result"
    assert begun == [(found, tmp_path / "run", {"resume": False, **PLAIN})]


def test_paths_are_found_again_from_any_folder(recipe, tmp_path, monkeypatch):
    place(tmp_path, "first/config.json", "words/tokenizer.json")
    monkeypatch.chdir(tmp_path)
    near = dataclasses.replace(recipe, data="text", init_from="first", tokenizer="words/tokenizer.json")
    far = anchored(near)
    assert (far.data, far.init_from) == (str(tmp_path / "text"), str(tmp_path / "first"))
    assert far.tokenizer == str(tmp_path / "words" / "tokenizer.json")
    assert anchored(dataclasses.replace(near, init_from="elsewhere")).init_from == "elsewhere"
    assert anchored(dataclasses.replace(near, init_from=None)).init_from is None


@pytest.fixture
def prepared(monkeypatch):
    """What `prepare` is asked, and nothing after it."""
    told = []

    def prepare(recipe, **how):
        told.append((recipe, how))
        raise EndedError

    monkeypatch.setattr(loop, "prepare", prepare)
    return told


@pytest.mark.parametrize(("again", "saved", "kept"), [(False, False, True), (True, False, True), (True, True, False)])
def test_the_first_model_is_read_until_there_is_a_checkpoint(again, saved, kept, recipe, tmp_path, prepared):
    out, first = tmp_path / "run", dataclasses.replace(recipe, init_from="first")
    if saved:
        place(out, "trainer/step-00000004/state.json")
    with pytest.raises(EndedError):
        loop._run(first, out, resume=again, **PLAIN)
    [(asked, how)] = prepared
    assert asked == (first if kept else recipe)
    assert how["tokenizer_file"] == (out / "trainer" / "tokenizer.json" if again else None)
    assert how["tell"].__func__ is Console.line
    assert how["tokenise"] is True


def test_a_floor_that_is_none_is_refused_before_anything_is_read(recipe, tmp_path, prepared):
    with pytest.raises(ValueError, match="backend = 'swift' is not accepted"):
        train(recipe, tmp_path / "run", backend="swift")
    assert not prepared
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("rank", "quiet", "silent"), [(0, False, False), (0, True, True), (1, False, True)])
def test_one_process_of_several_talks_and_none_waits_for_another_to_read(
    rank, quiet, silent, recipe, tmp_path, prepared, monkeypatch
):
    told, asked = [], []

    class Told(World):
        def barrier(self):
            told.append(len(prepared))

    world = Told(rank, 2, torch.device("cpu"))
    monkeypatch.setattr(loop.processes, "init", lambda device: asked.append(device) or world)
    monkeypatch.setattr(loop.processes, "destroy", lambda: asked.append("destroy"))
    monkeypatch.setattr(loop, "Console", lambda quiet: told.append(quiet) or Console(quiet=quiet))
    with pytest.raises(EndedError):
        loop._run(recipe, tmp_path / "run", resume=False, **(PLAIN | {"device": "cpu", "quiet": quiet}))
    assert told == [silent]
    assert prepared[0][1]["tokenise"] is False
    assert asked == ["cpu", "destroy"]


def test_a_batch_is_shared_evenly(recipe, tmp_path, prepared, monkeypatch):
    monkeypatch.setattr(loop.processes, "init", lambda device: World(0, 3, torch.device("cpu")))
    with pytest.raises(ValueError, match="global_batch = 8 is not accepted: it must divide by 3 processes"):
        train(recipe, tmp_path / "run")
    assert not prepared


def test_network_and_log_are_those_asked_for(recipe, tmp_path, monkeypatch):
    told, stepper, batches = {}, loop.Stepper, loop.Batches

    def log(out, console, **how):
        told["log"] = out, how
        raise EndedError

    monkeypatch.setattr(loop, "Batches", lambda *what, **how: told.update(batches=how) or batches(*what, **how))
    monkeypatch.setattr(loop, "Stepper", lambda *what, **how: told.update(stepper=how) or stepper(*what, **how))
    monkeypatch.setattr(loop, "Log", log)
    monkeypatch.setattr(loop, "wandb_module", lambda: None)
    place(tmp_path / "run", "trainer/step-00000004/weights")  # no checkpoint: it was not finished
    with pytest.raises(EndedError):
        loop._run(recipe, tmp_path / "run", resume=False, **(PLAIN | {"backend": "reference", "wandb": True}))
    assert told["batches"] == {"bos_id": 256, "device": torch.device("cpu")}
    assert told["stepper"] == {"backend": "reference"}
    assert told["log"] == (tmp_path / "run", {"is_main": True, "first_step": 0, "wandb": True})
