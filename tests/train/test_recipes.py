"""Recipes: every one builds and takes a step, every field is a flag, and plans add up."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.runs import text_folder, tiny_recipe

from hdlm.bench.plan import plan
from hdlm.cli.main import main
from hdlm.config.parse import override
from hdlm.config.process import ProcessConfig
from hdlm.config.recipe import Recipe, SamplingSettings
from hdlm.config.recipes import all_recipes, get, laptop
from hdlm.train.dry_run import dry_run
from hdlm.train.setup import prepare


@pytest.mark.parametrize("name", all_recipes())
def test_every_recipe_takes_a_toy_step(name):
    result = dry_run(get(name))
    assert all(0 < loss < 1000 for loss in result.losses)


@pytest.mark.parametrize("name", all_recipes())
def test_recipes_survive_json(name):
    recipe = get(name)
    assert Recipe.from_json(json.loads(json.dumps(recipe.to_json()))) == recipe


def test_every_recipe_is_in_the_map():
    page = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text()
    named = set(re.findall(r"`([a-z0-9]+-[a-z0-9-]+|laptop|stories)`", page))
    assert set(all_recipes()) <= named


@pytest.mark.parametrize(
    ("name", "word", "value"),
    [
        ("steps", "7", 7),
        ("optimizer.lr", "1e-4", 1e-4),
        ("model.weighted_embedding", "false", False),
        ("process.gamma", "0.2", 0.2),
        ("schedules.0.width", "8", 8),
        ("init_from", "none", None),
        ("data", "wiki", "wiki"),
    ],
)
def test_any_field_is_changed_by_its_name(name, word, value):
    changed = override(laptop(), name, word)
    for part in name.split("."):
        changed = changed[int(part)] if part.isdigit() else getattr(changed, part)
    assert changed == value


@pytest.mark.parametrize(
    ("name", "word", "message"),
    [
        ("colour", "red", "the fields there are"),
        ("optimizer.speed", "1", "the fields there are.*lr"),
        ("optimizer", "1", "group of fields"),
        ("steps", "many", "steps = 'many' is not accepted: it must be a whole number"),
        ("steps", "0", "steps = 0 is not accepted"),
        ("schedules.3.width", "2", r"'3' must be in 0\.\.1"),
        ("model.conditioned", "maybe", "it must be true or false"),
        ("shifted", "false", "autoregressive_first"),
        ("schedules.0.kind", "quench", None),
    ],
)
def test_wrong_fields_are_refused(name, word, message):
    if message is None:
        override(laptop(), name, word)
        return
    with pytest.raises(ValueError, match=message):
        override(laptop(), name, word)


def test_plans_add_up():
    """GPT-2 size: 6 x parameters x tokens, and attention on top; twice the GPUs, half the hours."""
    found = plan(get("owt-ar"), gpus=8)
    assert found.tokens == 1_000_000 * 512 * 1024
    dense = 6 * (found.parameters - 50_258 * 768) * found.tokens
    assert 1.0 < found.flops / dense < 1.3
    assert plan(get("owt-ar"), gpus=16).hours == pytest.approx(found.hours / 2)
    block = plan(get("owt-gamma-block256"))
    assert (block.slots, block.active) == (768 + 1024, 1024)
    one = plan(replace(get("owt-gamma-block256"), doubled=False))
    assert (one.slots, one.active) == (1024, 256)
    with pytest.raises(ValueError, match="gpu = 'abacus' is not accepted"):
        plan(get("owt-ar"), gpu="abacus")


def test_commands(capsys):
    assert main(["train", "--list"]) == 0
    assert "owt-gamma-flat" in capsys.readouterr().out
    assert main(["train", "laptop", "--dry-run", "--optimizer.lr", "1e-3", "--schedules.0.width=8"]) == 0
    assert "one toy step" in capsys.readouterr().out
    assert main(["plan", "lm1b-ar", "--gpus", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["gpus"] == 2


@pytest.mark.parametrize(
    "words",
    [
        ["train", "nonsense"],
        ["train", "laptop", "--dry-run", "--optimizer.speed", "3"],
        ["train", "laptop", "--dry-run", "--optimizer.lr"],
        ["train", "--resume", "nowhere"],
        ["train", "--resume", "nowhere", "--steps", "20"],
        ["train", "laptop", "--save-every", "0", "--out", "here"],
        ["train", "laptop", "--optimizer.beta2", "1.5", "--out", "here"],
        ["train", "laptop", "--device", "banana", "--out", "here"],
        ["train", "laptop", "--data", "nowhere", "--out", "here"],
        ["train", "laptop", "--length", "1000000", "--out", "here"],
        ["train", "laptop", "--schedules.0.width", "1000", "--out", "here"],
        ["plan", "laptop", "--gpu", "abacus"],
    ],
    ids=" ".join,
)
def test_bad_input_is_one_line_and_exit_code_2(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HDLM_CACHE", str(tmp_path / "cache"))
    try:
        code = main(words)
    except SystemExit as stop:
        code = stop.code
    said = capsys.readouterr()
    assert code == 2
    assert len([line for line in said.err.splitlines() if line.startswith("hdlm")]) == 1  # others are of progress
    assert said.err.splitlines()[-1].startswith("hdlm")
    assert not (tmp_path / "here").exists()


def test_a_model_is_drawn_from_as_its_recipe_says(tmp_path, monkeypatch):
    monkeypatch.setenv("HDLM_CACHE", str(tmp_path / "cache"))
    recipe = tiny_recipe(text_folder(tmp_path / "text"), process=ProcessConfig("absorbing"))
    recipe = replace(recipe, sampling=SamplingSettings("certain", 0.8))
    made = prepare(recipe).config.sampling
    assert (made.sampler, made.temperature, made.top_p) == ("certain", 0.8, None)
    assert Recipe.from_json(json.loads(json.dumps(recipe.to_json()))) == recipe
    old = recipe.to_json()
    del old["sampling"]
    assert Recipe.from_json(old).sampling == SamplingSettings()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--sampling.sampler dream", "sampling: sampler = 'dream' is not accepted"),
        ("--sampling.sampler ar", "sampling.sampler = 'ar' is not accepted"),
        ("--sampling.sampler acs", "sampling: .*does not fit"),
        ("--sampling.temperature nan", "sampling.temperature = 'nan' is not accepted"),
        ("--sampling.eta 0.5", "sampling: eta = 0.5 is not accepted for sampler 'certain'"),
    ],
)
def test_a_wish_that_no_model_can_have_is_refused(words, said, capsys):
    assert main(["train", "laptop", *words.split(), "--dry-run"]) == 2
    assert re.search(said, capsys.readouterr().err)
