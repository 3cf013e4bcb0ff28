"""`hdlm score` as a person meets it: the text, its numbers, a page and JSON."""

import json
import math

import pytest

import hdlm
from hdlm.cli import score
from hdlm.cli.main import main
from hdlm.viz.surprise import spans


@pytest.fixture(scope="module")
def bare(folder, tmp_path_factory):
    """The model without its tokenizer."""
    model = hdlm.load(folder)
    return str(hdlm.Bundle(model.model, model.config).save(tmp_path_factory.mktemp("m") / "bare"))


def test_the_text_its_numbers_and_what_surprises_are_shown(folder, capsys):
    assert main(["score", folder, "abcdef ab", "--top", "3"]) == 0
    said = capsys.readouterr().out
    found = hdlm.load(folder).logprobs("abcdef ab")
    lines = said.splitlines()
    assert lines[0] == "abcdef ab"
    assert "exact negative log-likelihood (quench)" in said
    assert f"total       {-found.total:.2f} nats, 9 tokens" in said
    assert f"perplexity {found.perplexity:,.2f}" in said
    assert f"{-found.total / 9 / math.log(2):.3f} bits, 9 bytes" in said
    worst = sorted(range(9), key=lambda n: found.logprobs[n])[:3]
    rows = [line.split() for line in lines if "%" in line]
    assert [(int(row[-3]), float(row[-2])) for row in rows] == [
        (n, pytest.approx(-found.logprobs[n], abs=0.006)) for n in worst
    ]


def test_json_is_all_there_is(folder, capsys):
    assert main(["score", folder, "abc", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(hdlm.load(folder).logprobs("abc").to_json()))


def test_another_schedule_has_a_bound_and_its_error(folder, capsys, tmp_path):
    assert main(["score", folder, "abcdef", "--block", "4", "--samples", "6", "--seed", "1"]) == 0
    said = capsys.readouterr().out
    assert "epsilon-hybrid bound (block 4)" in said
    found = hdlm.load(folder).logprobs("abcdef", hyperschedule=hdlm.Block(4, 4), samples=6, seed=1)
    assert f"{-found.total:.2f} ± {found.error:.2f} nats" in said
    assert "%" not in said, "a share of a bound is no probability"


def test_a_page_is_written(folder, capsys, tmp_path):
    (tmp_path / "a text.txt").write_text("abc def\n")
    page = tmp_path / "deep" / "page.html"
    assert main(["score", folder, "--file", str(tmp_path / "a text.txt"), "--html", str(page), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    text = page.read_text()
    assert "letters reads a text.txt" in text
    assert text.count("<span class=") == len(data["tokens"]) == 7
    assert main(["score", folder, "abc", "--html", str(page)]) == 0
    assert capsys.readouterr().err == f"wrote {page}\n"


def test_in_colour_there_is_a_legend_and_markup_is_text(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert main(["score", "stories", "Tom had [/]\x1b[31m", "--top", "30"]) == 0
    said = capsys.readouterr().out
    assert "1 in 1000" in said
    assert "␛" in said
    assert "\x1b[31m" not in said.split("nats:")[0]


def test_brackets_in_the_table_are_text(capsys):
    score._print(spans(["[bold]", "[/]"], [-1.0, -2.0]), {}, exact=True, top=2)
    said = capsys.readouterr().out
    assert "'[bold]'" in said
    assert "'[/]'" in said


def test_ids_are_scored_without_a_tokenizer(folder, bare, capsys):
    assert main(["score", bare, "--ids", "0 1 2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert main(["score", folder, "abc", "--json"]) == 0
    text = json.loads(capsys.readouterr().out)
    assert [one["logprob"] for one in found["tokens"]] == [one["logprob"] for one in text["tokens"]]
    assert main(["score", bare, "--ids", "[0, 1]"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == " 0 1"


BAD = {
    "no text": ["score", "MODEL"],
    "empty text": ["score", "MODEL", ""],
    "two texts": ["score", "MODEL", "ab", "--file", "text.txt"],
    "text and ids": ["score", "MODEL", "ab", "--ids", "1"],
    "no ids": ["score", "MODEL", "--ids", "a b"],
    "ids out of range": ["score", "MODEL", "--ids", "1 99"],
    "several rows of ids": ["score", "MODEL", "--ids", "[[1], [2]]"],
    "no file": ["score", "MODEL", "--file", "nowhere.txt"],
    "bytes": ["score", "MODEL", "--file", "bytes.bin"],
    "unknown characters": ["score", "MODEL", "XYZ"],
    "no tokenizer": ["score", "BARE", "ab"],
    "no page": ["score", "MODEL", "ab", "--html", "page.txt"],
    "a folder as a page": ["score", "MODEL", "ab", "--html", "folder.html"],
    "top": ["score", "MODEL", "ab", "--top", "0"],
    "samples": ["score", "MODEL", "ab", "--samples", "0"],
    "width": ["score", "MODEL", "ab", "--block", "0"],
    "device": ["score", "MODEL", "ab", "--device", "abacus"],
    "model": ["score", "nowhere", "ab"],
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(folder, bare, capsys, case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("ab")
    (tmp_path / "bytes.bin").write_bytes(b"a\xff")
    (tmp_path / "folder.html").mkdir()
    assert main([{"MODEL": folder, "BARE": bare}.get(word, word) for word in BAD[case]]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("hdlm")
    assert said.err.count("\n") == 1
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("command", ["score", "infill"])
def test_help_fits_on_a_screen(command, capsys):
    assert main([command, "--help"]) == 0
    assert len(capsys.readouterr().out.splitlines()) <= 30


def test_levels_of_ones_own(folder, capsys, tmp_path):
    (tmp_path / "levels.json").write_text("[[2, 2, 2], [1, 2, 1], [0, 1, 1], [0, 0, 0]]")
    assert main(["score", folder, "abc", "--custom", str(tmp_path / "levels.json"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["schedule"], len(found["tokens"]), found["exact"]) == ("custom", 3, False)
