"""Comparisons against exact references: perplexities of the same pieces, paired errors by numpy, oneself."""

import json
import math

import numpy as np
import pytest
import torch
from support.bundles import CONTEXT, bundle
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import hdlm
from hdlm.config.way import Way, parse_way
from hdlm.data.tokenizer import make_tokenizer
from hdlm.errors import UnwrittenError
from hdlm.evaluate import compare as compare_module
from hdlm.evaluate.diversity import unigram_entropy
from hdlm.evaluate.judge import Judge, causal_reader
from hdlm.evaluate.paired import Difference
from hdlm.evaluate.pieces import Reader, cut, cut_texts

TEXT = "abcdefg abc gfedcba a bc def gg " * 4 + "cab"


def model(seed=0, **changes):
    return bundle(process="absorbing", model={"seed": seed}, **changes)


def pairs():
    """A tokenizer of 11 tokens, three of which are two letters."""
    signs = [*"abcdefg ", "ab", "cd", "ef"]
    merges = [("a", "b"), ("c", "d"), ("e", "f")]
    tokenizer = Tokenizer(models.BPE({sign: i for i, sign in enumerate(signs)}, merges))
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def other(seed=1):
    """A model whose tokens are others."""
    found = model(seed)
    return hdlm.Bundle(found.model, found.config, pairs())


def pieces_of(*bundles, text=TEXT):
    return cut_texts(text, [Reader(str(n), one.tokenizer, one.config.context) for n, one in enumerate(bundles)])


@pytest.mark.parametrize("second", [model(1), other()], ids=["one tokenizer", "two tokenizers"])
def test_differences_and_errors_are_those_of_the_same_pieces(second):
    first = model()
    pieces = pieces_of(first, second)
    found = hdlm.compare({"a": first, "b": (second, "block:2")}, TEXT, draws=3, seed=5)
    a = first.perplexity(pieces.texts, samples=3, seed=5)
    b = second.perplexity(pieces.texts, samples=3, seed=5, hyperschedule=hdlm.Block(CONTEXT, 2))
    one = found.differences[0]
    assert (one.measure, one.model, one.against) == ("nats_per_byte", "b", "a")
    assert one.value == pytest.approx(b.per("bytes") - a.per("bytes"), rel=1e-12)
    size = np.array([len(text.encode()) for text in pieces.texts])
    gap = np.array(b.row_nats) - np.array(a.row_nats)
    left = gap - gap.sum() / size.sum() * size
    assert len(size) > 4
    assert one.error == pytest.approx(np.sqrt(np.sum(left**2) * len(size) / (len(size) - 1)) / size.sum(), rel=1e-9)
    assert one.ratio == pytest.approx(one.value / one.error)
    shown = found.rows[1]["text"]
    assert shown["nats_per_byte"]["value"] == pytest.approx(b.per("bytes"))
    assert shown["bits_per_byte"]["value"] == pytest.approx(b.per("bytes") / math.log(2))
    assert shown["bound"] == "masked bound (block 2)"
    assert ("nats_per_token" in shown) == (second.tokenizer.to_str() == first.tokenizer.to_str())
    if "nats_per_token" in shown:
        assert shown["nats_per_token"] == {"value": pytest.approx(b.value), "error": pytest.approx(b.error)}


def test_the_matrix_is_row_minus_column():
    found = hdlm.compare([model(), model(1), (model(), "ar")], TEXT, draws=1).to_json()
    measure = found["measures"]["nats_per_byte"]
    assert measure["models"] == ["model 1", "model 2", "model 3"]
    values, table, errors = (np.array(measure[name]) for name in ("values", "differences", "difference_errors"))
    assert np.allclose(table, values[:, None] - values[None, :])
    assert np.array_equal(errors, errors.T)
    assert (np.diag(errors) == 0).all()
    assert found["best"] == measure["models"][int(values.argmin())]
    assert json.loads(json.dumps(found)) == found


def test_a_model_against_itself_is_nothing_at_all():
    own = model()
    found = hdlm.compare({"a": own, "b": own, "block": (own, "block:4"), "other": model()}, TEXT, draws=2)
    assert [(one.value, one.error) for one in found.differences] == [(0.0, 0.0)] * 6
    assert {(one.words, one.ratio) for one in found.differences} == {("no difference seen", None)}


def test_one_piece_has_no_error():
    found = hdlm.compare([model(), model(1)], "abc", draws=1)
    assert [(one.error, one.words) for one in found.differences] == [(None, "no error known")] * 2
    value = found.rows[0]["text"]["nats_per_byte"]["value"]
    assert f"| masked bound (block 4) | {value:.4f} |" in found.table()
    assert found.notes[0].startswith("1 piece of text, 3 bytes")


def test_words_go_by_two_errors():
    found = [Difference("nats", "a", "b", value, 0.1).words for value in (0.199, -0.2, 0.201, -0.3)]
    assert found == ["no difference seen", "no difference seen", "higher", "lower"]
    assert Difference("nats", "a", "b", 1.0, None).words == "no error known"


@pytest.mark.parametrize("context", [3, 5, 24])
def test_pieces_are_the_text_and_fit_everyone(context):
    text = "abc defg  abcdef\ncd\n" * 3 + "abcdefgabcdefgabcdefg" + " a" * 9
    readers = [Reader("x", model().tokenizer, 4 + context), Reader("y", pairs(), context)]
    text = text.replace("\n", " ")
    found = list(cut(text, readers))
    assert "".join(found) == text
    assert len(found) > 2
    for piece in found:
        assert all(1 <= len(reader.tokens(piece)) <= reader.context for reader in readers)
    whole = cut_texts([text, "", "abc"], readers)
    assert "".join(whole.texts) == text + "abc"
    assert whole.sizes == [len(piece.encode()) for piece in whole.texts]
    for row, reader in zip(whole.rows, readers, strict=True):
        assert [reader.tokenizer.decode(tokens) for tokens in row] == whole.texts


def test_pieces_end_before_spaces_and_never_inside_a_character():
    tokenizer = make_tokenizer("bytes", []).tokenizer
    assert list(cut("one two three", [Reader("x", tokenizer, 8)])) == ["one two", " three"]
    text = "ääääx€€ 𝄞𝄞é"
    found = list(cut(text, [Reader("x", tokenizer, 5)]))
    assert "".join(found) == text
    assert max(len(piece.encode()) for piece in found) <= 5
    with pytest.raises(ValueError, match="'𝄞' is not accepted: it has more tokens than x can read"):
        list(cut(text, [Reader("x", tokenizer, 3)]))


def test_a_cut_that_splits_a_token_of_another_reader_still_fits():
    signs, merges = [*"abcd", "ab", "cd", "abcd"], [("a", "b"), ("c", "d"), ("ab", "cd")]
    long = Reader("long", Tokenizer(models.BPE({sign: i for i, sign in enumerate(signs)}, merges)), 1)
    single = Reader("single", model().tokenizer, 3)
    assert list(cut("abcdabcd", [long])) == ["abcd", "abcd"]
    found = list(cut("abcdabcd", [long, single]))
    assert "".join(found) == "abcdabcd"
    assert all(reader.fits(piece) for piece in found for reader in (long, single))


def test_tokens_of_any_length_are_looked_ahead_for():
    halves = ["a" * 2**n for n in range(6)]
    merges = [(half, half) for half in halves[:-1]]
    reader = Reader("long", Tokenizer(models.BPE({half: i for i, half in enumerate(halves)}, merges)), 2)
    assert list(map(len, cut("a" * 150, [reader]))) == [64, 64, 20, 2]


def test_of_equal_tokenizers_the_smallest_context_counts():
    readers = [Reader(str(context), model().tokenizer, context) for context in (24, 5, 9)]
    assert max(map(len, cut_texts(TEXT, readers).texts)) == 5


def test_a_mark_is_one_byte_where_all_read_it_as_one():
    marked, plain = make_tokenizer("bytes", []).tokenizer, Tokenizer(models.BPE({}, []))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain.model = models.BPE({sign: i for i, sign in enumerate(alphabet)}, [])
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    readers = [Reader("marked", marked, 24), Reader("plain", plain, 24)]
    assert cut_texts("a<|eos|>b", readers[:1]).sizes == [3]
    assert cut_texts("a<|eos|>b", readers).sizes == [9]


def test_only_some_pieces_are_scored_and_it_is_said():
    found = hdlm.compare([model(), model(1)], TEXT, draws=1, max_tokens=50)
    assert found.pieces["count"] == 2
    assert found.pieces["share"] == pytest.approx(found.rows[0]["text"]["tokens"] / len(TEXT))
    assert "Evenly spaced pieces only: 3" in " ".join(found.notes)


def test_text_of_a_known_source_is_compared_with_it(tmp_path):
    path = tmp_path / "known.jsonl"
    lines = [{"text": "abc abc", "nats": 5.0}, {"text": "", "nats": 0.0}, {"text": "gfedcba gfe", "nats": 20.0}]
    path.write_text("\n".join(map(json.dumps, lines)))
    first = model()
    found = hdlm.compare([first, model(1)], path, draws=2)
    value, error = first.perplexity(["abc abc", "gfedcba gfe"], samples=2).above([5.0, 20.0], 18)
    assert found.rows[0]["text"]["above_source"] == {"value": pytest.approx(value), "error": pytest.approx(error)}
    assert f"source needs {25 / 18:.4f} nats per byte" in " ".join(found.notes)
    path.write_text("\n".join(json.dumps(line | {"text": line["text"] * 4}) for line in lines))
    with pytest.warns(UserWarning, match="not compared with its source: document 1 is longer"):
        found = hdlm.compare([first, model(1)], path, draws=1)
    assert "above_source" not in found.rows[0]["text"]


def test_bounds_of_different_names_are_said_to_be_upper_bounds_only():
    said = [
        " ".join(hdlm.compare({"a": model(), "b": (model(1), way)}, TEXT, draws=1).notes)
        for way in ("block:4", "block:2", "ar", "flat")
    ]
    assert ["compare as upper bounds only" in words for words in said] == [False, True, True, True]


def test_a_stopped_comparison_goes_on(tmp_path, monkeypatch):
    scored, estimate = [], compare_module.estimate

    def stopping(bundle, rows, **settings):
        if len(rows) > 1:
            scored.append(settings["hyperschedule"].name)
            if scored == ["block 4", "block 2"]:
                raise KeyboardInterrupt
        return estimate(bundle, rows, **settings)

    monkeypatch.setattr(compare_module, "estimate", stopping)
    ways, folder = {way: (model(), way) for way in ("block:4", "block:2", "ar")}, tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        hdlm.compare(ways, TEXT, draws=1, folder=folder)
    found = hdlm.compare(ways, TEXT, draws=1, folder=folder)
    assert scored == ["block 4", "block 2", "block 2", "quench"]
    monkeypatch.undo()
    assert found.to_json()["differences"] == hdlm.compare(ways, TEXT, draws=1).to_json()["differences"]
    assert json.loads((folder / "comparison.json").read_text())["measures"] == found.to_json()["measures"]
    assert (folder / "differences.png").read_bytes().startswith(b"\x89PNG")
    report = (folder / "report.md").read_text()
    assert all(line in report for line in found.table().splitlines())
    assert "compare as upper bounds only" in report


def test_cells_are_kept_by_all_that_they_depend_on(tmp_path, monkeypatch):
    monkeypatch.setattr(compare_module.judges, "has_judge", lambda: False)
    monkeypatch.setattr(compare_module, "write_comparison", lambda *_: None)
    changes = [{}, {"texts": "abc"}, {"draws": 2}, {"seed": 1}, {"models": [model(2), model(1)]}]
    changes += [{"models": [(model(), "block:2"), model(1)]}]
    counts = [_cells(tmp_path / "text", {"texts": "ab", "draws": 1} | change) for change in changes]
    assert counts == [2, 4, 6, 8, 9, 10]
    own, cool = model(), (model(1), "temperature=0.5")
    changes = [{}, {"samples": 2}, {"length": 3}, {"seed": 1}, {"models": [own, cool]}]
    counts = [_cells(tmp_path / "samples", {"samples": 1, "length": 2} | change) for change in changes]
    assert counts == [2, 4, 6, 8, 9]


def _cells(folder, asked):
    """How many cells a folder has after one more comparison, which comes to the same without a folder."""
    asked = {"models": [model(), model(1)]} | asked
    found = hdlm.compare(**asked, folder=folder)
    assert found.to_json()["measures"] == hdlm.compare(**asked).to_json()["measures"]
    return len(json.loads((folder / "results.json").read_text())["cells"])


def test_names_are_text_in_the_report(tmp_path):
    names = {"a|b *x* $y$ <i>": model(), "[c](d) `e`": model(1)}
    hdlm.compare(names, "abc def", draws=1, folder=tmp_path, command="hdlm `x`")
    report = (tmp_path / "report.md").read_text()
    assert r"| a\|b \*x\* $y$ \<i\> " in report
    assert "`` hdlm `x` ``" in report


def test_what_cannot_be_written_costs_no_result(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device", "x")

    monkeypatch.setattr(compare_module, "write_comparison", full)
    with pytest.raises(UnwrittenError, match="No space left") as caught:
        hdlm.compare([model(), model(1)], "abc def", draws=1, folder=tmp_path)
    assert len(caught.value.result.rows) == 2


class Letters:
    """A judge: a nat for each letter, and one more for each `a`."""

    name = "letters"

    def read(self, texts, *, progress):
        return [(len(text) + text.count("a"), len(text)) for text in texts]


@pytest.fixture
def judged(monkeypatch):
    monkeypatch.setattr(compare_module.judges, "has_judge", lambda: True)
    monkeypatch.setattr(compare_module.judges, "load_judge", lambda name, device: Letters())


@pytest.mark.usefixtures("judged")
def test_samples_are_compared_seed_by_seed():
    own, count = model(), 40
    found = hdlm.compare(
        {"ar": (own, "ar"), "block": (own, "block:4,rate=2,temperature=0.7")}, samples=count, length=12, seed=3
    )
    texts, tokens = {}, {}
    for name, how in (("ar", {"kind": "quench"}), ("block", {"width": 4, "rate": 2.0, "temperature": 0.7})):
        drawn = own.generate(num_samples=count, length=12, seed=3, stop_at_eos=False, **how)
        texts[name], tokens[name] = drawn.text, drawn.tokens
    gaps = {one.measure: one for one in found.differences}
    entropies = np.array([[unigram_entropy([row])[0] for row in tokens[name]] for name in ("block", "ar")])
    gap = entropies[0] - entropies[1]
    assert gaps["entropy"].value == pytest.approx(gap.mean())
    assert gaps["entropy"].error == pytest.approx(gap.std(ddof=1) / math.sqrt(count))
    shares = np.array([[text.count("a") / 12 for text in texts[name]] for name in ("block", "ar")])
    gap = shares[0] - shares[1]
    assert gaps["judge_nats"].value == pytest.approx(gap.mean())
    assert gaps["judge_nats"].error == pytest.approx(gap.std(ddof=1) / math.sqrt(count))
    rows = [row["samples"] for row in found.rows]
    assert rows[0]["gen_ppl"]["value"] == pytest.approx(math.exp(1 + shares[1].mean()))
    assert [row["calls_per_token"] for row in rows] == [1.0, 0.5]
    assert found.best == ("block" if gaps["judge_nats"].value < 0 else "ar")
    assert "Judge: letters" in " ".join(found.notes)
    assert "gen. ppl" in found.table()


def test_without_a_judge_there_is_entropy_and_no_best(monkeypatch):
    monkeypatch.setattr(compare_module.judges, "has_judge", lambda: False)
    found = hdlm.compare([model(), other()], samples=2, length=6)
    assert list(found.measures) == ["entropy"]
    assert found.best is None
    assert "Tokenizers differ" in " ".join(found.notes)


def test_a_judge_reads_text_by_text_what_it_scores_together():
    class Two(torch.nn.Module):
        config = type("config", (), {"max_position_embeddings": 6})

        def forward(self, ids):
            logits = torch.nn.functional.one_hot(ids, 5).float() * ids[..., None]
            return type("out", (), {"logits": logits})

    class Words:
        bos_token_id = eos_token_id = 0

        def __call__(self, text, add_special_tokens):
            return {"input_ids": [len(word) for word in text.split()]}

    judge, texts = Judge("two", causal_reader(Two(), Words())), ["a bb ccc dddd a a a a", "", "bb a"]
    read = judge.read(texts)
    assert [count for _, count in read] == [5, 0, 2]
    verdict = judge.score(texts)
    assert verdict.tokens == 7
    assert math.log(verdict.value) == pytest.approx(sum(nats for nats, _ in read) / 7)


def test_ways_are_words():
    assert parse_way("ar") == parse_way("quench") == Way(kind="quench")
    assert parse_way("block:16,sampler=certain,rate=4") == Way("block", 16, rate=4.0, sampler="certain")
    assert parse_way("top_k=3,temperature=0") == Way(top_k=3, temperature=0.0)
    assert parse_way("slide:4,precision=float32").said == {"kind": "slide", "width": 4, "precision": "float32"}
    assert parse_way("slide:4,eta=0.5").drawn == {"eta": 0.5}


WAYS = {
    "": "one of .*block.* ar",
    "blok:4": "way = 'blok' is not accepted: it must be one of .*block.* ar",
    "block:x": "width = 'x' is not accepted",
    "block:4,rate": "write it as",
    "block:4,colour=red": "colour",
    "block:4,rate=1,rate=2": "rate is there twice",
    "block:4,width=8": "width is there twice",
    "block:4,temperature=-1": "temperature = -1.0 is not accepted",
    "block:4,top_p=2": "top_p",
}


@pytest.mark.parametrize("word", WAYS)
def test_other_ways_are_refused(word):
    with pytest.raises(ValueError, match=WAYS[word]):
        parse_way(word)


BAD = {
    "nothing to compare on": ({}, "nothing to compare on"),
    "empty text": ({"texts": ""}, "holds no text"),
    "no texts": ({"texts": []}, "holds no text"),
    "no text of this kind": ({"texts": 3}, "texts = 3 is not accepted"),
    "a character that one cannot read": ({"texts": "abc hij"}, "b cannot read this text: .*'h'"),
    "half a character": ({"texts": "\ud800"}, "no valid Unicode"),
    "no noise draws": ({"texts": "abc", "draws": 0}, "^draws = 0"),
    "no rows at once": ({"texts": "abc", "batch_size": 0}, "batch_size = 0"),
    "no tokens": ({"texts": "abc", "max_tokens": 0}, "max_tokens = 0"),
    "seed": ({"texts": "abc", "seed": -1}, "seed = -1"),
    "samples below 0": ({"texts": "abc", "samples": -1}, "samples = -1"),
    "a judge of nothing": ({"texts": "abc", "judge": "x"}, "judge = 'x' is not accepted without samples"),
    "length of samples": ({"samples": 2, "length": 0}, "length = 0"),
    "one model": ({"models": {"a": model()}, "texts": "abc"}, "two or more"),
    "no model": ({"models": {"a": "stories", "b": model()}, "texts": "abc"}, r"models\['a'\] = 'stories'"),
    "no models": ({"models": "stories", "texts": "abc"}, "models = 'stories'"),
    "a way that is no word": ({"models": [model(), (model(), 4)], "texts": "abc"}, "way = 4"),
    "unknown way": ({"models": [model(), (model(), "fast")], "texts": "abc"}, "way = 'fast'"),
    "flat with a width": ({"models": [model(), (model(), "flat:3")], "texts": "abc"}, "model 2: width = 3"),
    "settings without samples": ({"models": [model(), (model(), "eta=0.5")], "texts": "abc"}, "ask for --samples"),
    "unknown sampler": ({"models": [model(), (model(), "sampler=x")], "samples": 1}, "sampler = 'x'"),
    "eta of no sampler": (
        {"models": [model(), (model(), "sampler=certain,eta=0.5")], "samples": 1},
        "model 2: eta = 0.5",
    ),
    "flat past the context": ({"models": [model(), (model(), "flat")], "samples": 1, "length": 50}, "one window"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_before_anything_is_scored(case, monkeypatch, tmp_path):
    monkeypatch.setattr(compare_module, "_score", lambda *_: pytest.fail("scored"))
    monkeypatch.setattr(compare_module, "_write", lambda *_: pytest.fail("written"))
    settings, words = BAD[case]
    with pytest.raises(ValueError, match=words):
        hdlm.compare(**{"models": {"a": model(), "b": other()}} | settings, folder=tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_judge_that_cannot_be_had_is_refused_before_anything_is_scored(monkeypatch):
    def nowhere(name, device):
        raise ValueError(f"judge = {name!r} cannot be had")

    monkeypatch.setattr(compare_module.judges, "load_judge", nowhere)
    monkeypatch.setattr(compare_module, "_score", lambda *_: pytest.fail("scored"))
    with pytest.raises(ValueError, match=r"^judge = 'x' cannot be had"):
        hdlm.compare([model(), model(1)], "abc", samples=1, length=2, judge="x")


def test_models_that_cannot_take_part_are_named(tmp_path):
    bare = model()
    bare.tokenizer = None
    with pytest.raises(ValueError, match="b has no tokenizer"):
        hdlm.compare({"a": model(), "b": bare}, "abc")
    blind = model()
    blind.tokenizer = Tokenizer(models.WordLevel({"a": 0, **{f"w{i}": i for i in range(1, 11)}}, unk_token="a"))
    blind.tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(ValueError, match="text = '  ' is not accepted: it has no token for b"):
        hdlm.compare({"a": model(), "b": blind}, "  ")
    broken = model()
    with torch.no_grad():
        broken.model.embedding.fill_(math.nan)
    with pytest.raises(ValueError, match="b: the network's outputs are not finite"):
        hdlm.compare({"a": model(), "b": broken}, "abc def")
    (tmp_path / "results.json").write_text('{"about": {}, "cells": {"x": {"spec": {"kind": "bound"}, "result": {}}}}')
    with pytest.raises(ValueError, match="it holds an evaluation"):
        hdlm.compare([model(), model()], "abc", folder=tmp_path)
