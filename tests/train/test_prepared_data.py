"""Training on prepared data: the run that its text would have been, and no process that waits for another."""

import dataclasses
import json

import pytest
import torch
from support.prepared import make
from support.runs import tiny_recipe

import hdlm
from hdlm.data.corpus import open_corpus
from hdlm.data.prepare import prepare as prepare_data
from hdlm.evaluate.texts import fingerprint, rows_of_set
from hdlm.processes import World
from hdlm.train import loop
from hdlm.train.loop import resume, train
from hdlm.train.setup import prepare

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
PLAIN = {"device": "cpu", "backend": None, "wandb": False, "quiet": True}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HDLM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def made(tmp_path, monkeypatch):
    return make(tmp_path, monkeypatch)


def recipe_of(made, **changes):
    return tiny_recipe(str(made.folder), steps=4, eval_every=4, save_every=2, **changes)


def losses(out):
    return [json.loads(line).get("loss") for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_a_run_on_prepared_data_is_the_run_on_its_text(made, tmp_path, capsys):
    text = dataclasses.replace(recipe_of(made), data=made.source.name)
    train(recipe_of(made), tmp_path / "tokens-run", device="cpu")
    said = capsys.readouterr().err.splitlines()
    train(text, tmp_path / "text-run", quiet=True, device="cpu")
    assert said[0] == f"data: {made.folder}: {made}"
    assert losses(tmp_path / "tokens-run") == losses(tmp_path / "text-run")
    one, other = (
        json.loads((tmp_path / run / "trainer" / "data.json").read_text()) for run in ("tokens-run", "text-run")
    )
    assert (one["content"], one["train"], one["valid"]) == (other["content"], other["train"], other["valid"])
    model, kept = (tmp_path / run / "tokenizer.json" for run in ("tokens-run", "text-run"))
    assert model.read_text() == kept.read_text()


def test_a_run_goes_on_with_its_text_prepared_meanwhile(made, tmp_path):
    """The content is the same, and so is the tokenizer."""
    text = dataclasses.replace(recipe_of(made), data=made.source.name)
    train(text, tmp_path / "run", quiet=True, device="cpu")
    for name in ("model.safetensors", "trainer/step-00000004"):
        (tmp_path / "run" / name).rename(tmp_path / name.replace("/", "-"))
    assert resume(tmp_path / "run", data=str(made.folder), quiet=True, device="cpu").finished


def test_another_tokenizer_than_the_models_is_refused(made, tmp_path):
    train(recipe_of(made), tmp_path / "run", quiet=True, device="cpu")
    other = prepare_data(made.source.name, tmp_path / "other", tokenizer="bpe-300", workers=1)
    second = dataclasses.replace(recipe_of(made), data=str(other.folder), init_from=str(tmp_path / "run"))
    message = r"it was prepared by another tokenizer \(bpe-300\) than the one that this run goes on with"
    with pytest.raises(ValueError, match=message):
        prepare(second)
    assert prepare(dataclasses.replace(second, data=str(made.folder))).tokenizer.vocab_size == made.vocab_size
    (tmp_path / "run" / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=message):
        resume(tmp_path / "run", data=str(other.folder), quiet=True)


def test_a_damaged_shard_is_named_before_a_run_begins(made, tmp_path):
    path = made.folder / "train-00003.bin"
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(ValueError, match=rf"{path} is damaged or another one"):
        train(recipe_of(made), tmp_path / "run", quiet=True, device="cpu")
    assert not (tmp_path / "run").exists()


def test_an_encoding_of_tokens_is_refused(made):
    with pytest.raises(ValueError, match=r"encoding = 'latin-1' is not accepted: data = .* is prepared tokens, and no"):
        prepare(recipe_of(made, encoding="latin-1"))


def several(monkeypatch):
    """As if this were one of two processes."""
    monkeypatch.setattr(loop.processes, "init", lambda device: World(1, 2, torch.device("cpu")))
    monkeypatch.setattr(World, "barrier", lambda self: pytest.fail("nobody waits"))
    monkeypatch.setattr(loop.processes, "destroy", lambda: None)


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe-300"])
def test_several_processes_refuse_what_is_not_tokenised_and_say_what_to_run(
    tokenizer, made, tmp_path, monkeypatch, cache
):
    several(monkeypatch)
    text = made.source.name
    recipe = dataclasses.replace(recipe_of(made), data=text, tokenizer=tokenizer)
    message = (
        f"data = '{text}' is not accepted by several processes: it is not tokenised yet, and all would wait; first "
        f"run: hdlm data prepare {text} --tokenizer {tokenizer} --out DIR ; then train with --data DIR"
    )
    with pytest.raises(ValueError, match="several processes") as caught:
        loop._run(recipe, tmp_path / "run", resume=False, **PLAIN)
    assert str(caught.value) == message
    assert not (tmp_path / "run").exists()
    assert not cache.exists()


@pytest.mark.parametrize("where", ["prepared", "cache"])
def test_several_processes_take_what_is_tokenised(where, made, monkeypatch):
    recipe = recipe_of(made) if where == "prepared" else dataclasses.replace(recipe_of(made), data=made.source.name)
    if where == "cache":
        prepare(recipe)
    monkeypatch.setattr("hdlm.data.packed._make", None)  # any attempt to tokenise fails
    assert len(prepare(recipe, tokenise=False).train_rows) > 10


def test_prepared_data_is_scored_as_its_text_is(made, tmp_path):
    train(recipe_of(made), tmp_path / "run", quiet=True, device="cpu")
    bundle, held_out = hdlm.load(tmp_path / "run"), tmp_path / "held-out.jsonl"
    lines = [json.dumps({"text": text}) + "\n" for text in open_corpus(made.source.name).documents("test")]
    held_out.write_text("".join(lines))
    rows, text = (rows_of_set(bundle, str(data), length=10) for data in (made.folder, held_out))
    assert rows.tokens == text.tokens
    assert rows.counts["bytes"] == text.counts["bytes"]
    some = rows_of_set(bundle, str(made.folder), length=10, max_tokens=30)
    assert some.tokens == rows_of_set(bundle, str(held_out), length=10, max_tokens=30).tokens
    assert fingerprint(str(made.folder)) == fingerprint(str(made.folder))
    other = prepare_data(made.source.name, tmp_path / "other", tokenizer="bpe-300", workers=1)
    assert fingerprint(str(made.folder)) != fingerprint(str(other.folder))
    with pytest.raises(ValueError, match="it was prepared by another tokenizer than the model's own"):
        rows_of_set(bundle, str(other.folder))
