"""From a recipe to a run: what its model says of itself, what is measured, and how much room it needs."""

import dataclasses
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.bundles import bundle
from support.runs import text_folder, tiny_recipe

from hdlm import files
from hdlm.bundle import Bundle
from hdlm.config.model import DenoiserConfig
from hdlm.config.process import ProcessConfig
from hdlm.config.recipe import LossSettings, MixtureMember
from hdlm.config.schedule import ScheduleConfig
from hdlm.data.listing import Listing
from hdlm.data.packed import Rows
from hdlm.evaluate.bound import Bound
from hdlm.nn.transformer import Denoiser
from hdlm.theory.layout import training_layout
from hdlm.train.dry_run import dry_run, shrink
from hdlm.train.finish import _draw_curve, finish, preview, unigram_entropy
from hdlm.train.setup import _tokenizer_of, check_folder, config_of, prepare


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HDLM_CACHE", str(tmp_path_factory.mktemp("cache")))
        return prepare(tiny_recipe(text_folder(tmp_path_factory.mktemp("text")), eval_rows=3, keep=2))


def test_a_model_says_what_it_was_trained_on(job):
    recipe, tokenizer = job.recipe, job.tokenizer
    config = config_of(recipe, tokenizer)
    kinds = [ScheduleConfig("block", 24, width=6), ScheduleConfig("slide", 24, width=6), ScheduleConfig("flat", 24)]
    assert [config.hyperschedule, *config.mixture] == kinds
    assert (config.process, config.parameterization, config.shifted) == (recipe.process, "clean", True)
    assert (config.bos_id, config.eos_id) == (tokenizer.bos_id, tokenizer.eos_id)
    assert config.model.vocab_size == tokenizer.vocab_size
    assert {name: getattr(config.model, name) for name in vars(recipe.model)} == vars(recipe.model)


@pytest.mark.parametrize(("shifted", "beta1", "learned"), [(True, 0.5, True), (True, 0.0, False), (False, 0.5, False)])
def test_the_next_token_is_learned_where_settled_slots_are_shifted_and_count(job, shifted, beta1, learned):
    recipe = dataclasses.replace(job.recipe, shifted=shifted, loss=LossSettings(beta1=beta1))
    assert config_of(recipe, job.tokenizer).next_token == learned


def test_a_model_says_how_its_outputs_are_read(job):
    process = ProcessConfig("epsilon", epsilon=0.1)
    recipe = dataclasses.replace(job.recipe, process=process, parameterization="hdce")
    config = config_of(recipe, job.tokenizer)
    assert (config.process, config.parameterization) == (process, "hdce")


def test_bounds_are_measured_on_the_first_rows_held_out_up_to_their_end(job):
    assert job.validation_rows() == [row[row >= 0].tolist() for row in job.valid_rows.take(torch.arange(3))]
    assert len(job.valid_rows) > 3
    short = dataclasses.replace(job, valid_rows=Rows(np.array([[0, 1, 2], [4, 0, -1], [3, -1, -1]])))
    assert short.validation_rows() == [[0, 1, 2], [4, 0], [3]]
    few = dataclasses.replace(job, recipe=dataclasses.replace(job.recipe, eval_rows=10**6))
    assert len(few.validation_rows()) == len(job.valid_rows)


def test_a_model_that_reads_nothing_reaches_the_entropy_of_the_frequencies():
    expected = -(0.5 * math.log(0.5) + 2 * 0.25 * math.log(0.25))
    assert unigram_entropy([[0, 4], [0, 2]], 7) == pytest.approx(expected)
    assert unigram_entropy([[3, 3, 3]], 7) == 0


def test_the_curve_is_of_losses_and_bounds_by_their_steps(tmp_path, monkeypatch):
    """Those that are numbers."""
    drawn = {}
    monkeypatch.setattr("hdlm.viz.style.save", lambda figure, path: drawn.update({path: figure.axes}))
    rows = [{"step": 1, "loss": 2.5}, {"step": 3, "loss": 2.25}, {"step": 4, "bound": 3.5}, {"step": 5, "loss": "nan"}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    _draw_curve(tmp_path)
    [axes] = drawn[tmp_path / "loss.png"]
    lines = [(line.get_label(), *map(list, line.get_data())) for line in axes.lines]
    assert lines == [("training loss", [1, 3], [2.5, 2.25]), ("validation bound", [4], [3.5])]
    assert [line.get_marker() for line in axes.lines] == ["None", "o"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("step", "nats per token")
    (tmp_path / "metrics.jsonl").write_text(json.dumps(rows[0]) + "\n")
    _draw_curve(tmp_path)
    assert [line.get_label() for line in drawn[tmp_path / "loss.png"][0].lines] == ["training loss"]


@pytest.mark.parametrize(("data", "named"), [("/some/where/novels", "novels"), ("stories", "stories")])
def test_a_card_says_how_a_model_was_trained_and_not_where_its_data_lay(data, named, job, tmp_path, monkeypatch):
    saved, said, curves = [], [], []
    recipe = dataclasses.replace(job.recipe, data=data, steps=1200)
    fake = SimpleNamespace(recipe=recipe, tokenizer=job.tokenizer, validation_rows=lambda: [[3, 4], [3, 5]])
    fake.bundle = lambda model: SimpleNamespace(save=lambda *what, **how: saved.append((model, what, how)))
    monkeypatch.setattr("hdlm.train.finish._draw_curve", curves.append)
    shared = {"draw_error": None, "tokens": 4, "rows": 2, "draws": 1, "seconds": 0.0}
    bound = Bound("upper bound", "block 6", 2.0, None, **shared)
    finish(fake, "network", tmp_path, bound, SimpleNamespace(say=said.append))
    [(model, what, how)] = saved
    assert (model, what, set(how), curves) == ("network", (tmp_path,), {"notes"}, [tmp_path])
    lines = how["notes"].splitlines()
    assert f"Recipe `tiny`, 1,200 steps of 8 x 24 tokens of `{named}`." in lines
    assert "| upper bound, validation | 2.0000 ± 0.0000 | 7.39 |" in lines
    assert "| unigram entropy of the same tokens | 1.0397 | 2.83 |" in lines
    assert lines[-1] == "![loss](loss.png)"
    words = "validation upper bound: 2.0000 nats per token; unigram entropy: 1.0397"
    assert said == [words, f"model: {tmp_path}"]


def test_a_run_needs_room_for_its_checkpoints_one_more_and_two_models(job, tmp_path, monkeypatch):
    """A checkpoint holds the weights, their average and two moments, each four bytes a number."""
    needed = 4 * sum(p.numel() for p in job.build_model().parameters()) * (4 * 3 + 2)
    monkeypatch.setattr(files, "free_space", lambda folder: needed)
    check_folder(tmp_path / "run", job)
    monkeypatch.setattr(files, "free_space", lambda folder: needed - 1)
    with pytest.raises(ValueError, match="MiB free: this run needs"):
        check_folder(tmp_path / "run", job)


def test_a_run_needs_a_place_for_its_best_model(job, tmp_path):
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "notes.txt").write_text("mine")
    (tmp_path / "metrics.jsonl").write_text("")
    (tmp_path / "config.json").write_text("")
    with pytest.raises(ValueError, match=r"best is not accepted: it holds other files and no model"):
        check_folder(tmp_path, job)


def test_a_second_stage_has_the_weights_and_the_tokenizer_of_the_first(job, tmp_path, monkeypatch):
    monkeypatch.setenv("HDLM_CACHE", str(tmp_path))
    other = dataclasses.replace(job, recipe=dataclasses.replace(job.recipe, seed=5))
    first = job.bundle(other.build_model())
    monkeypatch.setattr("hdlm.train.setup.load", {"first": first}.get)
    later = prepare(dataclasses.replace(job.recipe, init_from="first", tokenizer="bpe-300"))
    assert later.start is first
    assert later.tokenizer.tokenizer is first.tokenizer
    weights = first.model.state_dict()
    assert all(torch.equal(weights[name], value) for name, value in later.build_model().state_dict().items())


def test_a_matrix_of_tokens_comes_with_its_tokenizer(job, tmp_path, monkeypatch):
    monkeypatch.setenv("HDLM_CACHE", str(tmp_path / "cache"))
    np.save(tmp_path / "tokens.npy", np.arange(24 * 40).reshape(40, 24) % 256)
    recipe = dataclasses.replace(job.recipe, data=str(tmp_path / "tokens.npy"))
    assert prepare(recipe).tokenizer.vocab_size == job.tokenizer.vocab_size
    with pytest.raises(ValueError, match="is a matrix of tokens: name the tokenizer that they are of"):
        prepare(dataclasses.replace(recipe, tokenizer="bpe-300"))


def test_a_model_of_other_sizes_is_refused_by_what_differs(job, tmp_path, monkeypatch):
    """The first four of it."""
    monkeypatch.setenv("HDLM_CACHE", str(tmp_path))
    theirs = dataclasses.replace(job.config.model, layers=3, width=64, heads=4, condition_width=8, dropout=0.25)
    start = SimpleNamespace(tokenizer=None, config=SimpleNamespace(model=theirs))
    monkeypatch.setattr("hdlm.train.setup.load", {"first": start}.get)
    numbers = {"layers": (3, 2), "width": (64, 32), "heads": (4, 2), "condition_width": (8, 16)}
    words = ", ".join(f"its model.{name} is {one}, not {other}" for name, (one, other) in numbers.items())
    with pytest.raises(ValueError, match=rf"init_from = 'first' is not accepted: {words}$"):
        prepare(dataclasses.replace(job.recipe, init_from="first"))


def test_what_was_read_is_recorded(job):
    record, train, valid = job.data_record(), job.train_rows, job.valid_rows
    assert record["content"] == {"train": train.content, "valid": valid.content}
    assert (record["files"], record["skipped"], record["first_skipped"], record["replaced"]) == (120, 0, {}, 0)
    for name, rows in (("train", train), ("valid", valid)):
        assert record[name] == {"documents": rows.documents, "rows": len(rows), "tokens": 24 * len(rows)}
    assert record["held_out"] == len(valid) / (len(train) + len(valid))
    skipped = tuple((f"{number}.pdf", "why") for number in range(25))
    record_of_many = dataclasses.replace(job, files=Listing(skipped=skipped)).data_record()
    assert (record_of_many["files"], record_of_many["skipped"]) == (0, 25)
    assert record_of_many["first_skipped"] == dict(skipped[:20])
    assert job.has_data_of(record)
    assert not job.has_data_of({"content": record["content"] | {"valid": "other"}})


def test_the_seed_makes_the_network(job):
    torch.manual_seed(99)
    first = [p.clone() for p in job.build_model().parameters()]
    torch.manual_seed(7)
    again = dataclasses.replace(job, recipe=dataclasses.replace(job.recipe, seed=job.recipe.seed + 1))
    assert all(torch.equal(a, b) for a, b in zip(first, job.build_model().parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, again.build_model().parameters(), strict=True))


@pytest.mark.parametrize(
    ("kind", "length", "asked", "rate"),
    [
        ("flat", 256, 256, 4.0),
        ("flat", 64, 64, 1.0),
        ("block", 256, 128, 2.0),
        ("quench", 256, 64, None),
        ("slide", 256, 128, None),
    ],
)
def test_samples_on_the_way_take_few_steps(job, monkeypatch, kind, length, asked, rate):
    """About 64: several tokens a step where all of a window is at one level, fewer tokens where they come in order."""
    member = MixtureMember(kind, 64 if kind in ("block", "slide") else None)
    recipe = dataclasses.replace(job.recipe, length=length, schedules=(member,))
    wide = dataclasses.replace(job, recipe=recipe, config=config_of(recipe, job.tokenizer))
    seen = {}
    monkeypatch.setattr(Bundle, "generate", lambda self, **how: seen.update(how) or SimpleNamespace(text=["a", "b"]))
    assert preview(wide, wide.build_model()) == ["a", "b"]
    assert seen == {"num_samples": 2, "length": asked, "rate": rate, "seed": recipe.seed, "stop_at_eos": False}


def test_a_toy_run_takes_one_step_of_every_member():
    model = dataclasses.replace(tiny_recipe("x").model, layers=3)
    recipe = tiny_recipe("x", length=100, autoregressive_first=0.5, model=model, micro_batch=2)
    small = shrink(recipe)
    sizes = {"layers": 2, "width": 64, "heads": 4, "condition_width": 32}
    assert small.model == dataclasses.replace(recipe.model, **sizes)
    assert (small.length, small.global_batch, small.micro_batch) == (64, 4, 4)
    assert [member.width for member in small.schedules] == [3, 3, None]
    found = dry_run(recipe)
    assert found.parameters == Denoiser(DenoiserConfig(vocab_size=97, **vars(small.model))).num_parameters
    layouts = [training_layout(m.schedule(64).build(), shifted=True, offset=1) for m, _ in small.members]
    assert found.slots == [len(layout) for layout in layouts]
    assert len(found.losses) == len(found.slots) == 4
    assert len(set(found.losses)) == 4
    large = tiny_recipe("x", length=100, compile=True, sharded=True, global_batch=32)
    assert (shrink(large).compile, shrink(large).sharded, shrink(large).global_batch) == (False, False, 4)
    assert shrink(tiny_recipe("x", length=20)).length == 20


@pytest.mark.parametrize(("bos", "eos", "expected"), [(3, None, (3, 3)), (None, 2, (2, 2)), (3, 2, (3, 2))])
def test_a_tokenizer_that_names_one_end_has_it_for_both(bos, eos, expected):
    model = SimpleNamespace(tokenizer=bundle().tokenizer, config=SimpleNamespace(bos_id=bos, eos_id=eos))
    found = _tokenizer_of(model)
    assert (found.bos_id, found.eos_id) == expected
    assert found.tokenizer is model.tokenizer
