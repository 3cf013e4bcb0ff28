"""From a recipe to a run: what its model says of itself, what is measured, and how much room it needs."""

import dataclasses
import math
from types import SimpleNamespace

import pytest
import torch
from support.bundles import bundle
from support.runs import text_folder, tiny_recipe

from hdlm import files
from hdlm.bundle import Bundle
from hdlm.config.recipe import LossSettings, MixtureMember
from hdlm.config.schedule import ScheduleConfig
from hdlm.theory.layout import training_layout
from hdlm.train.dry_run import dry_run, shrink
from hdlm.train.finish import preview, unigram_entropy
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


def test_bounds_are_measured_on_the_first_rows_held_out_up_to_their_end(job):
    assert job.validation_rows() == [row[row >= 0].tolist() for row in job.valid_rows.take(torch.arange(3))]
    assert len(job.valid_rows) > 3
    few = dataclasses.replace(job, recipe=dataclasses.replace(job.recipe, eval_rows=10**6))
    assert len(few.validation_rows()) == len(job.valid_rows)


def test_a_model_that_reads_nothing_reaches_the_entropy_of_the_frequencies():
    expected = -(0.5 * math.log(0.5) + 2 * 0.25 * math.log(0.25))
    assert unigram_entropy([[0, 4], [0, 2]], 7) == pytest.approx(expected)
    assert unigram_entropy([[3, 3, 3]], 7) == 0


def test_a_run_needs_room_for_its_checkpoints_one_more_and_two_models(job, tmp_path, monkeypatch):
    """A checkpoint holds the weights, their average and two moments, each four bytes a number."""
    needed = 4 * sum(p.numel() for p in job.build_model().parameters()) * (4 * 3 + 2)
    monkeypatch.setattr(files, "free_space", lambda folder: needed)
    check_folder(tmp_path / "run", job)
    monkeypatch.setattr(files, "free_space", lambda folder: needed - 1)
    with pytest.raises(ValueError, match="MiB free: this run needs"):
        check_folder(tmp_path / "run", job)


def test_what_was_read_is_recorded(job):
    record, train, valid = job.data_record(), job.train_rows, job.valid_rows
    assert record["content"] == {"train": train.content, "valid": valid.content}
    assert (record["files"], record["skipped"], record["first_skipped"], record["replaced"]) == (120, 0, {}, 0)
    for name, rows in (("train", train), ("valid", valid)):
        assert record[name] == {"documents": rows.documents, "rows": len(rows), "tokens": 24 * len(rows)}
    assert record["held_out"] == len(valid) / (len(train) + len(valid))
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
    [("flat", 256, 256, 4.0), ("block", 256, 128, 2.0), ("quench", 256, 64, None), ("slide", 256, 128, None)],
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
    recipe = tiny_recipe("x", length=100, autoregressive_first=0.5)
    small = shrink(recipe)
    sizes = {"layers": 2, "width": 64, "heads": 4, "condition_width": 32}
    assert small.model == dataclasses.replace(recipe.model, **sizes)
    assert (small.length, small.global_batch, small.micro_batch) == (64, 4, 4)
    assert [member.width for member in small.schedules] == [3, 3, None]
    found = dry_run(recipe)
    layouts = [training_layout(m.schedule(64).build(), shifted=True, offset=1) for m, _ in small.members]
    assert found.slots == [len(layout) for layout in layouts]
    assert len(found.losses) == len(found.slots) == 4
    assert len(set(found.losses)) == 4
    large = tiny_recipe("x", length=100, compile=True, sharded=True, global_batch=32)
    assert (shrink(large).compile, shrink(large).sharded, shrink(large).global_batch) == (False, False, 4)
    assert shrink(tiny_recipe("x", length=20)).length == 20


@pytest.mark.parametrize(("bos", "eos", "expected"), [(3, None, (3, 3)), (3, 2, (3, 2))])
def test_a_tokenizer_that_names_one_end_has_it_for_both(bos, eos, expected):
    model = bundle(eos_id=eos)
    found = _tokenizer_of(model)
    assert (found.bos_id, found.eos_id) == expected
