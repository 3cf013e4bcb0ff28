"""Killed at any moment of writing, what was there before or what was to come is there, and the next run does well."""

import json
import os
import shutil
from dataclasses import replace

import pytest
import torch
from support.bundles import LETTERS, bundle
from support.crashes import count, die
from support.runs import text_folder, tiny_recipe
from tokenizers import Tokenizer, decoders, models

import hdlm
from hdlm.bundle import Bundle
from hdlm.cli.main import main
from hdlm.config.recipe import MixtureMember, ModelSettings
from hdlm.config.schedule import ScheduleConfig
from hdlm.files import entries, finish_writing
from hdlm.train import checkpoint, saver
from hdlm.train.loop import resume, train
from hdlm.train.state import checkpoints
from hdlm.weights import contents as weights_of

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*trained on.*:UserWarning")
MODEL = ("model.safetensors", "config.json", "tokenizer.json", "README.md")
# How many points a run dies at, evenly spaced over all of it, and in how many parts a file is cut; None: all points.
SOME, ALL = {"most": 5, "parts": 2}, {"most": None, "parts": 10}
EITHER = pytest.mark.parametrize("how", [SOME, pytest.param(ALL, marks=pytest.mark.slow)], ids=["some", "all"])


@pytest.fixture(autouse=True)
def _no_syncing(monkeypatch):
    """It takes long, and only the machine's own death could tell."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def deaths(monkeypatch, root, run, *, most, parts, before=lambda: None):
    """Run to the end once, then begin `before` each of several deaths of it; gives way after each."""
    before()
    total = count(monkeypatch, root, run, parts=parts)
    wanted = range(total) if most is None else sorted({round(i * (total - 1) / (most - 1)) for i in range(most)})
    for point in wanted:
        before()
        die(monkeypatch, root, run, point, parts=parts)
        yield point


def contents(folder, names=None):
    """The files of a folder, but for what the killed left aside."""
    finish_writing(folder)
    return {name: content(folder / name) for name in entries(folder) if names is None or name in names}


def content(path):
    """What a file holds; the header of safetensors in an order of our own, since it has none."""
    data = path.read_bytes()
    if path.suffix != ".safetensors":
        return data
    end = 8 + int.from_bytes(data[:8], "little")
    return json.dumps(json.loads(data[8:end]), sort_keys=True).encode() + data[end:]


def unlike(old, *, tokenizer):
    """A model whose files all differ, though by their digest they are of the same meaning."""
    found = bundle(dtype=torch.float32)
    with torch.no_grad():
        for parameter in found.model.parameters():
            parameter.add_(1.0)
    config = replace(old.config, hyperschedule=ScheduleConfig("slide", 24, width=2), bos_id=5)
    backwards = Tokenizer(models.BPE({sign: i for i, sign in enumerate(reversed(LETTERS))}, []))
    backwards.decoder = decoders.Fuse()
    return Bundle(found.model, config, backwards if tokenizer else None)


@EITHER
@pytest.mark.parametrize("there", [True, False], ids=["over an old one", "into nothing"])
@pytest.mark.parametrize("tokenizer", [True, False], ids=["another tokenizer", "no tokenizer"])
def test_a_model_folder_is_the_old_or_the_new(tmp_path, monkeypatch, there, tokenizer, how):
    old, folder = bundle(dtype=torch.float32), tmp_path / "model"
    new = unlike(old, tokenizer=tokenizer)
    assert new.config.digest == old.config.digest
    before, after = contents(old.save(tmp_path / "old")), contents(new.save(tmp_path / "new"))
    assert not set(before.items()) & set(after.items())

    def start():
        shutil.rmtree(folder, ignore_errors=True)
        if there:
            shutil.copytree(tmp_path / "old", folder)

    found = []
    for _ in deaths(monkeypatch, tmp_path, lambda: new.save(folder), most=None, parts=how["parts"], before=start):
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        if folder.exists():
            shutil.copytree(folder, copy)
        found.append(contents(copy))
        new.save(folder)
        assert contents(folder) == after
    turn = found.index(after)
    assert found == [before if there else {}] * turn + [after] * (len(found) - turn)
    assert 2 < turn < len(found) - 4


def test_a_model_is_loaded_whole_where_its_saving_was_interrupted(tmp_path, monkeypatch):
    old, seen = bundle(dtype=torch.float32), set()
    new = unlike(old, tokenizer=True)

    def start():
        shutil.rmtree(tmp_path / "model", ignore_errors=True)
        old.save(tmp_path / "model")

    for _ in deaths(monkeypatch, tmp_path, lambda: new.save(tmp_path / "model"), most=8, parts=1, before=start):
        loaded = hdlm.load(tmp_path / "model")
        one, other = (weights_of(model.model)["embedding"] for model in (loaded, new))
        by_weights = new if torch.equal(one, other) else old
        assert loaded.config == by_weights.config
        assert loaded.tokenizer.to_str() == by_weights.tokenizer.to_str()
        seen.add(by_weights)
    assert seen == {old, new}


class AtOnce:
    """A thread that does its work where it is begun, so that points to die at come in one order."""

    def __init__(self, target, args, name):
        self.start = lambda: target(*args)

    def join(self):
        """It is done."""


@EITHER
def test_a_run_goes_on_as_if_nothing_had_been(tmp_path, monkeypatch, how):
    """One that tokenises, validates, saves a best model, two checkpoints and the model in the end."""
    monkeypatch.setenv("HDLM_CACHE", str(tmp_path / "cache"))
    data = text_folder(tmp_path / "text")
    model = ModelSettings(layers=1, width=16, heads=1, condition_width=8)
    shape = {"length": 8, "schedules": (MixtureMember("block", 4),), "model": model, "eval_rows": 2, "global_batch": 2}
    recipe = tiny_recipe(data, steps=2, save_every=1, eval_every=1, log_every=1, micro_batch=2, **shape)
    out, whole = tmp_path / "run", None
    monkeypatch.setattr(saver, "Thread", AtOnce)

    def start():
        for folder in (out, tmp_path / "cache"):
            shutil.rmtree(folder, ignore_errors=True)

    for _ in deaths(monkeypatch, tmp_path, lambda: train(recipe, out, quiet=True), **how, before=start):
        for path in checkpoints(out):
            checkpoint.verify(path)
            assert json.loads((path / "state.json").read_text())["step"] == int(path.name.removeprefix("step-"))
        for folder in (out, out / "best"):
            assert set(contents(folder, MODEL)) in (set(), set(MODEL))
        begun = (out / "trainer" / "recipe.json").exists()
        result = resume(out, quiet=True) if begun else train(recipe, out, quiet=True)
        assert result.finished
        found = contents(out, MODEL), contents(out / "best", MODEL)
        whole = whole or found
        assert found == whole
        rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        assert [row["step"] for row in rows if "loss" in row] == [1, 2]
        assert len({(row["step"], row["bound"]) for row in rows if "bound" in row}) == 2
    assert whole is not None


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(bundle(process="absorbing", dtype=torch.float32).save(tmp_path_factory.mktemp("m") / "letters"))


@EITHER
def test_results_and_reports_are_the_old_or_the_new(model, tmp_path, monkeypatch, how):
    text, out, kept = tmp_path / "t.txt", tmp_path / "report", tmp_path / "kept"
    text.write_text("abcdefghij " * 6)
    words = ["evaluate", model, "--data", str(text), "--metrics", "bound,entropy", "--draws", "1", "--length", "4"]
    assert main([*words, "--samples", "1", "--out", str(kept)]) == 0
    old, report = contents(kept), ("report.md", "report.html", "positions.png")

    def start():
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(kept, out)

    def again():
        assert main([*words, "--samples", "2", "--out", str(out)]) == 0

    for _ in deaths(monkeypatch, tmp_path, again, **how, before=start):
        now = contents(out)
        assert now.keys() == old.keys()
        is_new = b"2 samples a row" in now["report.md"]
        assert (b"2 samples a row" in now["report.html"]) == is_new
        assert is_new or all(now[name] == old[name] for name in report)
        cells = json.loads(now["results.json"])["cells"]
        assert len(cells) == 3 or now["results.json"] == old["results.json"]
        again()
        assert len(json.loads((out / "results.json").read_text())["cells"]) == 3
        assert "2 samples a row" in (out / "report.md").read_text()


def test_the_first_results_may_be_interrupted(model, tmp_path, monkeypatch):
    out = tmp_path / "report"

    def run():
        assert main(["evaluate", model, "--metrics", "entropy", "--samples", "1", "--out", str(out)]) == 0

    for _ in deaths(monkeypatch, tmp_path, run, **SOME, before=lambda: shutil.rmtree(out, ignore_errors=True)):
        assert entries(out) in (set(), {"results.json"}, {"results.json", "report.md", "report.html"})
        run()
        assert entries(out) == {"results.json", "report.md", "report.html"}


@EITHER
def test_samples_and_replays_are_the_old_or_the_new(model, tmp_path, monkeypatch, how):
    files = {"--out": tmp_path / "s.jsonl", "--replay": tmp_path / "r.html"}

    def run(seed=2):
        places = [str(word) for item in files.items() for word in item]
        assert main(["sample", model, "--length", "6", "--seed", str(seed), *places]) == 0
        return {path: path.read_bytes() for path in files.values()}

    def without_times(page):
        return page.split(b'"stats"')[0]

    old, new = run(1), run()

    def start():
        for path, content in old.items():
            path.write_bytes(content)

    for _ in deaths(monkeypatch, tmp_path, run, **how, before=start):
        for path in files.values():
            now = path.read_bytes()
            assert now == old[path] or without_times(now) == without_times(new[path])
        run()
