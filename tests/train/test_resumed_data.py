"""What a run reads, what it says of that, and how a resumed one knows its data again."""

import json
import shutil

import numpy as np
import pytest
from support.runs import text_folder, tiny_recipe
from tokenizers import Tokenizer

from hdlm.cli.main import main
from hdlm.config import recipes
from hdlm.data.tokenizer import make_tokenizer
from hdlm.train import loop
from hdlm.train.loop import resume, train
from hdlm.train.setup import anchored, prepare

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HDLM_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def _light(monkeypatch):
    """Runs that neither validate nor draw: their end is a file."""
    monkeypatch.setattr(loop._Trainer, "_validate", lambda self: None)
    monkeypatch.setattr(loop, "finish", lambda job, model, out, bound, log: (out / "model.safetensors").touch())


light = pytest.mark.usefixtures("_light")


def short(data, **changes):
    return tiny_recipe(data, steps=2, eval_every=2, save_every=1, **changes)


def unfinished(out):
    """Forget the end of a run, so that there is something to go on with."""
    (out / "model.safetensors").unlink()
    return out


def record_of(out):
    return json.loads((out / "trainer" / "data.json").read_text())


def saved_recipe(out):
    return json.loads((out / "trainer" / "recipe.json").read_text())


@light
def test_a_run_says_what_it_read(tmp_path, capsys):
    data = text_folder(tmp_path / "text")
    (tmp_path / "text" / "notes.pdf").write_text("x")
    train(short(data), tmp_path / "run")
    said = capsys.readouterr().err.splitlines()
    assert said[0] == f"data: {data}: 120 files read, 1 skipped: notes.pdf (.pdf is not read)"
    record = record_of(tmp_path / "run")
    counts = {name: record[name]["tokens"] for name in ("train", "valid")}
    share = counts["valid"] / sum(counts.values())
    assert 0.01 < share < 0.2
    assert said[1] == (
        f"data: {counts['train']:,} tokens of {record['train']['documents']} documents to learn from, "
        f"{counts['valid']:,} tokens of {record['valid']['documents']} documents held out ({share:.1%})"
    )
    assert (record["files"], record["skipped"], record["first_skipped"]) == (120, 1, {"notes.pdf": ".pdf is not read"})
    assert record["held_out"] == pytest.approx(share)


@light
def test_replaced_characters_are_told(tmp_path, capsys):
    (tmp_path / "a.txt").write_bytes("Märchen vom Käse\n".encode("latin-1") * 400)
    train(short(str(tmp_path / "a.txt"), encoding="utf-8:replace"), tmp_path / "run")
    assert record_of(tmp_path / "run")["replaced"] == pytest.approx(0.95 * 800, abs=10)
    assert "characters are U+FFFD, for what utf-8:replace could not decode" in capsys.readouterr().err


@light
def test_a_resume_reads_with_the_same_encoding(tmp_path):
    (tmp_path / "a.txt").write_bytes("Märchen vom Käse\n".encode("latin-1") * 400)
    train(short(str(tmp_path / "a.txt"), encoding="latin-1"), tmp_path / "run", quiet=True)
    assert resume(unfinished(tmp_path / "run"), quiet=True).finished


def one_letter(folder):
    """Change one letter in the middle of one file that is trained on."""
    for path in sorted(folder.glob("*.txt"))[50:]:
        text = path.read_text()
        path.write_text(text[:40] + ("x" if text[40] != "x" else "y") + text[41:])
        return


@light
def test_one_changed_letter_is_noticed(tmp_path):
    data = text_folder(tmp_path / "text")
    train(short(data), tmp_path / "run", quiet=True)
    one_letter(tmp_path / "text")
    with pytest.raises(ValueError, match="has changed since the run began"):
        resume(unfinished(tmp_path / "run"), quiet=True)


@light
def test_one_changed_token_of_a_matrix_is_noticed(tmp_path):
    tokens = np.random.default_rng(0).integers(0, 200, (400, 24)).astype(np.uint16)
    np.save(tmp_path / "rows.npy", tokens)
    train(short(str(tmp_path / "rows.npy")), tmp_path / "run", quiet=True)
    assert resume(tmp_path / "run", quiet=True).finished
    tokens[201, 7] ^= 1
    np.save(tmp_path / "rows.npy", tokens)
    with pytest.raises(ValueError, match="has changed since the run began"):
        resume(unfinished(tmp_path / "run"), quiet=True)


def test_a_run_goes_on_from_another_folder(tmp_path, monkeypatch, request):
    text_folder(tmp_path / "here" / "text")
    Tokenizer.from_str(make_tokenizer("bytes", []).tokenizer.to_str()).save(str(tmp_path / "here" / "mine.json"))
    monkeypatch.chdir(tmp_path / "here")
    train(short("text", tokenizer="mine.json"), tmp_path / "run", quiet=True)
    saved = saved_recipe(tmp_path / "run")
    assert saved["data"] == str(tmp_path / "here" / "text")
    assert saved["tokenizer"] == str(tmp_path / "here" / "mine.json")
    assert str(tmp_path) not in (tmp_path / "run" / "README.md").read_text()
    monkeypatch.chdir(tmp_path)
    request.getfixturevalue("_light")
    assert resume(unfinished(tmp_path / "run"), quiet=True).finished
    begun = anchored(short(str(tmp_path / "here" / "text"), init_from="run"))
    assert begun.init_from == str(tmp_path / "run")


@pytest.mark.parametrize("word", ["bytes", "chars", "bpe-400", "gpt2"])
def test_words_stay_words(word, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bytes").mkdir()
    (tmp_path / "bytes" / "tokenizer.json").write_text("{}")
    recipe = anchored(tiny_recipe("stdlib", tokenizer=word))
    assert (recipe.data, recipe.tokenizer) == ("stdlib", word)


@light
def test_moved_data_is_gone_on_with_where_it_is_the_same(tmp_path, monkeypatch):
    text_folder(tmp_path / "text")
    train(short(str(tmp_path / "text")), tmp_path / "run", quiet=True)
    out = unfinished(tmp_path / "run")
    shutil.move(tmp_path / "text", tmp_path / "moved")
    with pytest.raises(ValueError, match=r"run cannot go on: .*if it has moved: hdlm train --resume .*run --data"):
        resume(out, quiet=True)
    text_folder(tmp_path / "other", 90)
    with pytest.raises(ValueError, match="has changed since the run began"):
        resume(out, data=str(tmp_path / "other"), quiet=True)
    assert saved_recipe(out)["data"] == str(tmp_path / "text")
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--resume", str(out), "--data", "moved", "--json"]) == 0
    assert saved_recipe(out)["data"] == str(tmp_path / "moved")
    assert resume(out, quiet=True).finished


def test_a_resume_takes_no_encoding(tmp_path, capsys):
    assert main(["train", "--resume", str(tmp_path), "--encoding", "latin-1"]) == 2
    assert "--resume takes no encoding" in capsys.readouterr().err


def old_record(data):
    """What runs wrote before there were digests: 64 rows of each split, summed."""
    job, found = prepare(short(data)), {}
    for name, rows in (("train", job.train_rows), ("valid", job.valid_rows)):
        picked = np.linspace(0, len(rows) - 1, 64, dtype=np.float32).astype(int)
        weighted = rows.tokens[picked].astype(int) * np.arange(1, 65)[:, None]
        found |= {f"{name}_rows": len(rows), f"{name}_sum": int(weighted.sum())}
    return found


@light
def test_an_older_run_goes_on_and_gets_a_digest(tmp_path):
    data = text_folder(tmp_path / "text")
    train(short(data), tmp_path / "run", quiet=True)
    out, path = unfinished(tmp_path / "run"), tmp_path / "run" / "trainer" / "data.json"
    old = old_record(data)
    path.write_text(json.dumps(old | {"train_sum": old["train_sum"] + 1}))
    with pytest.raises(ValueError, match="has changed since the run began"):
        resume(out, quiet=True)
    path.write_text(json.dumps(old))
    assert resume(out, quiet=True).finished
    assert set(record_of(out)["content"]) == {"train", "valid"}


@pytest.mark.parametrize("how", ["resumed", "started from"])
def test_characters_that_a_tokenizer_has_not_are_refused_later_too(how, tmp_path):
    """The second run reads its tokenizer from a file, and still knows which characters it has."""
    (tmp_path / "a.txt").write_text("only letters and spaces " * 200)
    (tmp_path / "b.txt").write_text("not only Äöü " * 200)
    first = prepare(short(str(tmp_path / "a.txt"), tokenizer="chars"))
    first.bundle(first.build_model()).save(tmp_path / "run")
    second = short(str(tmp_path / "b.txt"), tokenizer="chars", init_from=str(tmp_path / "run"))
    file = tmp_path / "run" / "tokenizer.json"
    with pytest.raises(ValueError, match="the text holds 'Ä': this tokenizer knows only"):
        prepare(second, **({"tokenizer_file": file} if how == "resumed" else {}))


def test_the_stories_say_where_they_come_from_before_anybody_is_asked(tmp_path, monkeypatch, capsys):
    def asked(*words, **settings):
        raise AssertionError(words)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Tokenizer, "from_pretrained", asked, raising=False)
    assert main(["train", "stories"]) == 2
    said = capsys.readouterr().err
    assert said == (
        "hdlm: data = 'stories/train.npy' is not here: benchmarks/stories/make_corpus.py draws it (docs/results.md "
        "says how)\n"
    )
    assert list(tmp_path.iterdir()) == []
    assert recipes.get("stories").data == "stories/train.npy"


@pytest.mark.parametrize("word", ["nowhere/tokenizer.json", "mine.json", "./gpt2", "a/b/c", "~nobody/x"])
def test_a_path_to_no_tokenizer_is_not_asked_of_the_hub(word, tmp_path, monkeypatch):
    from hdlm.data import tokenizer

    class Offline:
        @staticmethod
        def from_pretrained(name):
            raise AssertionError(name)

    monkeypatch.setattr(tokenizer, "Tokenizer", Offline)
    monkeypatch.setenv("HDLM_DATA", str(tmp_path))
    with pytest.raises(ValueError, match=r"tokenizer = .* is not accepted: there is no such file"):
        make_tokenizer(word, [])


@light
def test_a_run_is_no_part_of_its_data(tmp_path):
    data = text_folder(tmp_path / "text")
    for out in (tmp_path / "text" / "runs" / "a", tmp_path / "text"):
        with pytest.raises(ValueError, match=r"is inside of data = .*, and would be read|not empty"):
            train(short(data), out, quiet=True)
    assert train(short(data), tmp_path / "text" / ".runs" / "a", quiet=True).finished


def test_an_encoding_is_for_text_alone(tmp_path):
    np.save(tmp_path / "rows.npy", np.zeros((400, 24), np.uint16))
    with pytest.raises(ValueError, match=r"encoding = 'latin-1' is not accepted: data = .* is a matrix of tokens"):
        prepare(short(str(tmp_path / "rows.npy"), encoding="latin-1"))
