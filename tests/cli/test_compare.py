"""`hdlm compare` as a person meets it."""

import json
import re
import shutil

import pytest

import hdlm
from hdlm.cli import progress
from hdlm.cli.main import build_parser, main
from hdlm.evaluate import judge

TEXT = "abcdefghij abc jihgfedcba a bc def " * 3


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text(TEXT)
    return str(path)


def test_a_table_says_all_and_fits_a_terminal(folder, text, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    long = "m" * 60
    shutil.copytree(folder, "m")
    shutil.copytree(folder, long)
    words = ["m", "m@ar", "m@block:2", long, "--data", text, "--draws", "1", "--out", "out"]
    assert main(["compare", *words]) == 0
    said = capsys.readouterr()
    assert max(map(len, said.out.splitlines())) <= 80
    shown = " ".join(said.out.split())
    bounds = ("epsilon-hybrid bound (block 4)", "exact negative log-likelihood", "(block 2)")
    for part in ("m@ar", "m@block:2", *bounds, "errors)", "compare as upper bounds only"):
        assert part in shown
    assert len(re.findall(r" ±\d\.\d{4} +±\d\.\d{4} +±\d\.\d{3} ", said.out)) == 4, "numbers are whole"
    assert shown.count(" * ") == 2, "the best, and what the star means"
    assert "wrote out/report.md" in said.err
    names = {"results.json", "comparison.json", "report.md", "differences.png"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names
    assert main(["compare", *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((tmp_path / "out" / "comparison.json").read_text())


def test_json_is_the_comparison(folder, text, capsys):
    how = ["--draws", "2", "--seed", "3", "--tokens", "70", "--batch-size", "2"]
    assert main(["compare", folder, f"{folder}@ar", "--data", text, *how, "--json"]) == 0
    found, own = json.loads(capsys.readouterr().out), hdlm.load(folder)
    again = hdlm.compare({folder: own, f"{folder}@ar": (own, "ar")}, TEXT, draws=2, seed=3, max_tokens=70, batch_size=2)
    assert found["pieces"]["count"] == 2
    for old, new in zip(found["rows"], again.rows, strict=True):
        old["text"].pop("seconds"), new["text"].pop("seconds")
    assert found == again.to_json()


def test_ways_are_judged_by_texts(folder, capsys, monkeypatch):
    monkeypatch.setattr(judge, "has_judge", lambda: False)
    monkeypatch.setenv("COLUMNS", "80")
    ways = [f"{folder}@ar", f"{folder}@block:4,sampler=certain,rate=4"]
    assert main(["compare", *ways, "--samples", "3", "--length", "8"]) == 0
    said = capsys.readouterr()
    assert "no judge here" in said.err
    assert max(map(len, said.out.splitlines())) <= 80
    assert any(line.strip().startswith("@block:4, ") for line in said.out.splitlines()), "long names are broken"
    assert all(word in said.out for word in ("entropy", "1.000", "0.250", "3 samples a row of 8 tokens"))


def test_a_path_with_an_at_is_a_path(folder, text, capsys, tmp_path):
    shutil.copytree(folder, tmp_path / "m@ar")
    words = [str(tmp_path / "m@ar"), str(tmp_path / "m@ar@flat"), "--data", text, "--draws", "1", "--json"]
    assert main(["compare", *words]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["text"]["bound"].split("(")[1] for row in rows] == ["block 4)", "flat)"]


def test_an_encoding_can_be_named(folder, capsys, tmp_path):
    (tmp_path / "mine.txt").write_bytes(TEXT.encode("utf-16"))
    words = ["compare", folder, f"{folder}@ar", "--data", str(tmp_path / "mine.txt"), "--draws", "1", "--json"]
    assert main([*words, "--encoding", "utf-16"]) == 0
    assert json.loads(capsys.readouterr().out)["pieces"]["bytes"] == len(TEXT)
    assert main(words) == 2


BAD = {
    "one alone": (["M", "--data", "T"], "two or more"),
    "twice the same": (["M", "M", "M@ar", "--data", "T"], "is there twice"),
    "unknown way": (["nowhere", "M@fast", "--data", "T"], "way = 'fast'"),
    "no way": (["M", "M@", "--data", "T"], "way = ''"),
    "a way of nothing": (["M", "@ar", "--data", "T"], "@ar is not accepted: it names a way and no model"),
    "unknown setting": (["M", "M@ar,colour=red", "--samples", "1"], "colour"),
    "settings without samples": (["M", "M@ar,temperature=0.5", "--data", "T"], "ask for --samples"),
    "no text": (["M", "M@ar"], "nothing to compare on"),
    "text that is not there": (["M", "M@ar", "--data", "nowhere.txt"], "nowhere.txt"),
    "empty text": (["M", "M@ar", "--data", "empty.txt"], "holds no text"),
    "text of other letters": (["M", "M@ar", "--data", "other.txt"], "the character 'x'"),
    "model that is not there": (["M", "nowhere", "--data", "T"], "nowhere does not exist"),
    "model without tokenizer": (["M", "B", "--data", "T"], "bare has no tokenizer"),
    "judge without samples": (["M", "M@ar", "--data", "T", "--judge", "x"], "judge = 'x'"),
    "samples below 0": (["M", "M@ar", "--samples", "-1"], "samples = -1"),
    "no draws": (["M", "M@ar", "--data", "T", "--draws", "0"], "draws = 0"),
    "seed": (["M", "M@ar", "--data", "T", "--seed", "-1"], "--seed"),
    "out is a file": (["nowhere", "M@ar", "--data", "T", "--out", "empty.txt"], "empty.txt is not accepted"),
    "out holds other things": (["nowhere", "M@ar", "--data", "T", "--out", "B"], "no results of an evaluation"),
    "encoding": (["M", "M@ar", "--data", "T", "--encoding", "morse"], "morse"),
}


@pytest.fixture(scope="module")
def bare(folder, tmp_path_factory):
    """A model without a tokenizer."""
    own = hdlm.load(folder)
    return str(hdlm.Bundle(own.model, own.config).save(tmp_path_factory.mktemp("b") / "bare"))


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_exit_code_2(case, folder, bare, text, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "other.txt").write_text("xyz")
    before = {path.name for path in tmp_path.iterdir()}
    asked, why = BAD[case]
    places = {"T": text, "B": bare}
    words = [word.replace("M", folder) if word.startswith("M") else places.get(word, word) for word in asked]
    try:
        code = main(["compare", *words])
    except SystemExit as stop:
        code = stop.code
    said = capsys.readouterr()
    assert code == 2
    assert said.out == ""
    assert said.err.startswith("hdlm")
    assert why in said.err
    assert said.err.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == before


def test_help_fits_on_a_screen():
    commands = next(action for action in build_parser()._actions if action.dest == "command")
    assert len(commands.choices["compare"].format_help().splitlines()) <= 30


def test_without_a_terminal_progress_is_a_line_now_and_then(monkeypatch, capsys):
    now = iter(range(0, 1000, 6))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    for quiet in (True, False):
        found, unwritten = progress.told(lambda tell: [tell("scoring", done, 9) for done in range(9)], quiet=quiet)
        assert (len(found), unwritten) == (9, None)
        said = capsys.readouterr().err.splitlines()
        assert said == ([] if quiet else ["scoring: 2 of 9", "scoring: 5 of 9", "scoring: 8 of 9"])
