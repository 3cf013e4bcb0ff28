"""The demo on a small untrained model: every scene plays, the replay is written, bad input is refused."""

import math
import re

import pytest
from rich.console import Console
from support.bundles import bundle

import hdlm
from hdlm import folders
from hdlm.cli import demo
from hdlm.cli.main import main
from hdlm.config.bundle import BundleConfig
from hdlm.config.model import preset
from hdlm.config.process import NoiseConfig, ProcessConfig
from hdlm.config.schedule import ScheduleConfig
from hdlm.data.tokenizer import make_tokenizer
from hdlm.nn.transformer import Denoiser
from hdlm.viz import scenes

PROCESSES = {
    "epsilon": ProcessConfig("epsilon", epsilon=0.1),
    "absorbing": ProcessConfig("absorbing"),
    "gamma": ProcessConfig("gamma", NoiseConfig("loglinear"), gamma=0.1),
}


def make(out, process, mixture):
    """A small untrained model of bytes."""
    text = make_tokenizer("bytes", [])
    settings = preset("tiny", text.vocab_size)
    config = BundleConfig(
        settings,
        PROCESSES[process],
        ScheduleConfig("block", 512, width=4),
        shifted=True,
        bos_id=text.bos_id,
        eos_id=text.eos_id,
        next_token=True,
        mixture=tuple(ScheduleConfig(kind, 512, width=width) for kind, width in mixture),
    )
    bundle = hdlm.Bundle(Denoiser(settings), config, text.tokenizer)
    return str(bundle.save(out))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make(tmp_path_factory.mktemp("m") / "bytes", "epsilon", [("flat", None), ("slide", 4)])


@pytest.mark.parametrize(("process", "mixture"), [("absorbing", [("flat", None)]), ("gamma", [])])
@pytest.mark.filterwarnings("ignore:.*trained on.*:UserWarning")
def test_it_plays_what_other_models_can(process, mixture, tmp_path, capsys):
    model = make(tmp_path / "model", process, mixture)
    assert main(["demo", "--model", model, "--length", "1", "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "replay.html").exists()
    assert ("not by this model" in capsys.readouterr().out) == (not mixture)


def test_the_demo_plays_every_scene_and_writes_a_replay(model, tmp_path, capsys):
    assert main(["demo", "--model", model, "--length", "12", "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    for title in ("1. Text out of noise", "2. A gap filled", "3. Second thoughts", "4. One network", "5. How likely"):
        assert title in said
    assert demo.PROMPT[:20] in said
    page = (tmp_path / "out" / "replay.html").read_text()
    assert demo.PROMPT in page
    assert "±" in said


def stage(model):
    bundle = hdlm.load(model)
    return scenes.Stage(
        bundle, Console(quiet=True), prompt="abc", gaps="ab[[gap:3]]c", paragraph="some words here", width=4, seed=1
    )


def test_corrections_are_tokens_that_were_there_before(folder):
    found = scenes.corrections(stage(folder), 24, 1.0)
    assert found
    assert all(one.before != one.after for one in found)
    assert all(0 <= share <= 1 for one in found for share in (one.then, one.new))
    assert all(math.isnan(one.now) or 0 <= one.now <= 1 for one in found)


def test_a_correction_says_why(tmp_path):
    """A hybrid's: the probability with which the token was written, and what the network thinks of it now."""
    bundle(process="gamma").save(tmp_path / "gamma")
    found = scenes.corrections(stage(tmp_path / "gamma"), 20, 1.0)
    assert found
    assert all(0 < one.now < 1 for one in found)
    assert re.fullmatch(r"\d+\.\d% then, \d+\.\d% now; new \d+\.\d%", found[0].why)


def test_the_ways_of_decoding_differ_in_calls(model):
    rows = {row["way"]: row for row in scenes.race(stage(model), 24)}
    assert rows["autoregressive"]["network_calls"] == 24
    assert rows["block 4, 4 tokens a step"]["network_calls"] == 6
    cached, plain = rows["block 4, 4 tokens a step"], rows["block 4, 4 tokens a step, no cache"]
    assert cached["text"] == plain["text"]
    assert cached["slots"] < plain["slots"]


def test_the_bounds_are_those_of_perplexity(model):
    found = scenes.likelihood(stage(model))
    assert len(found) == 3
    exact = hdlm.load(model).perplexity("some words here", hyperschedule=hdlm.Quench(1))
    assert found["the paragraph, exact negative log-likelihood, autoregressive"] == pytest.approx(exact.per("bytes"))


def test_the_gap_alone_is_written(model):
    found = scenes.gap(stage(model))
    assert re.fullmatch(r"ab.*c", found.text[0], re.DOTALL)


@pytest.mark.parametrize("words", [["--model", "nowhere"], ["--length", "0"], ["--seed", "-1"]])
def test_bad_input_is_refused_in_a_line(words, model, tmp_path, capsys):
    chosen = [] if "--model" in words else ["--model", model]
    assert _code(["demo", "--out", str(tmp_path), *chosen, *words]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def _code(words):
    try:
        return main(words)
    except SystemExit as stopped:
        return stopped.code


def test_the_shipped_model_plays_every_scene(tmp_path, capsys):
    assert main(["demo", "--length", "40", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "not by this model" not in said
    assert "trained on" not in said
    assert (tmp_path / "replay.html").exists()


def test_without_any_model_it_draws_pictures(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(folders, "SHIPPED", tmp_path / "none")
    assert main(["demo", "--out", str(tmp_path)]) == 0
    assert {path.name for path in tmp_path.glob("*.png")} == {"hyperschedule.png", "layout.png"}
