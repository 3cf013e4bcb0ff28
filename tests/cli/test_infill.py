"""`hdlm infill` as a person meets it."""

import json
import re

import pytest

import hdlm
from hdlm.cli.main import main


def test_every_way_to_fill_is_shown(folder, capsys):
    assert main(["infill", folder, "abc[[gap:5]]def", "--num-samples", "2", "--seed", "0"]) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert lines[::2] == ["--- 1 of 2 ---", "--- 2 of 2 ---"]
    assert all(re.fullmatch(r"abc[a-j ]{5}def", line) for line in lines[1::2])
    assert said.err.startswith("10 tokens in ")


def test_it_fills_what_sample_would(folder, capsys, tmp_path):
    (tmp_path / "gaps.txt").write_text("abc[[gap:5]]def")
    for words in (
        ["infill", folder, "--file", str(tmp_path / "gaps.txt")],
        ["sample", folder, "--prompt", "abc[[gap:5]]def"],
    ):
        assert main([*words, "--seed", "3", "--rate", "2.5", "--temperature", "0.5", "--json"]) == 0
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first["samples"] == second["samples"]
    assert first["samples"][0]["settings"]["steps"] == 2


def test_it_is_watched_replayed_and_written(folder, capsys, tmp_path):
    replay, out = tmp_path / "r.html", tmp_path / "o.jsonl"
    words = ["infill", folder, "ab[[gap:3]]c[[gap:2]]d", "--seed", "0"]
    assert main([*words, "--watch", "--replay", str(replay), "--out", str(out), "--logprobs"]) == 0
    said = capsys.readouterr().out
    assert "step 5/5" in said
    assert "░" in said
    [row] = [json.loads(line) for line in out.read_text().splitlines()]
    assert [one["position"] for one in row["logprobs"]] == [2, 3, 4, 6, 7]
    assert row["text"] in replay.read_text()


def test_an_open_gap_says_which_length_it_found(folder, capsys):
    for words in (
        ["infill", folder, "ab[[gap:1-3]]c[[gap:2]]d"],
        ["sample", folder, "--prompt", "ab[[gap:1-3]]c[[gap:2]]d"],
    ):
        assert main([*words, "--num-samples", "3", "--seed", "2", "--json"]) == 0
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first["samples"] == second["samples"]
    for row in first["samples"]:
        found, fixed = row["settings"]["gaps"]
        assert fixed == 2
        assert len(row["tokens"]) == 4 + found + fixed
        assert row["settings"]["hyperschedule"]["length"] == found + fixed
    assert first["stats"]["slots"] > 3 * (3 + 4 + 5)


def test_what_is_watched_and_replayed_has_the_length_that_was_found(folder, capsys, tmp_path):
    words, replay = ["infill", folder, "ab[[gap:2-4]]cd", "--seed", "3"], tmp_path / "r.html"
    assert main([*words, "--json"]) == 0
    [row] = json.loads(capsys.readouterr().out)["samples"]
    assert main([*words, "--watch", "--replay", str(replay)]) == 0
    said = capsys.readouterr().out
    [length] = row["settings"]["gaps"]
    assert f"step {length}/{length}" in said
    assert row["text"] in said
    assert row["text"] in replay.read_text()


def test_what_an_open_gap_would_cost_is_not_known_before(folder, capsys):
    assert main(["sample", folder, "--prompt", "a[[gap]]b", "--count"]) == 2
    assert "give the number of every gap, as in [[gap:8]]" in capsys.readouterr().err
    assert main(["sample", folder, "--prompt", "a[[gap:4]]b", "--count"]) == 0


def test_a_file_is_read_as_it_is(capsys, tmp_path):
    (tmp_path / "gaps.txt").write_bytes("\ufeffTom had a [[gap:2]].\r\n".encode())
    assert main(["infill", "stories", "--file", str(tmp_path / "gaps.txt"), "--seed", "0", "--json"]) == 0
    text = json.loads(capsys.readouterr().out)["samples"][0]["text"]
    assert text.startswith("Tom had a ")
    assert text.endswith(".\r\n")


BAD = {
    "no text": ["infill", "MODEL"],
    "no gap": ["infill", "MODEL", "abc"],
    "two texts": ["infill", "MODEL", "a[[gap:2]]b", "--file", "gaps.txt"],
    "no file": ["infill", "MODEL", "--file", "nowhere.txt"],
    "no text in the file": ["infill", "MODEL", "--file", "bytes.txt"],
    "a schedule": ["infill", "MODEL", "a[[gap:2]]b", "--block", "4"],
    "a length": ["infill", "MODEL", "a[[gap:2]]b", "--length", "4"],
    "no tokenizer": ["infill", "BARE", "a[[gap:2]]b"],
    "watch and json": ["infill", "MODEL", "a[[gap:2]]b", "--watch", "--json"],
    "logprobs for nobody": ["infill", "MODEL", "a[[gap:2]]b", "--logprobs"],
    "a folder as a file": ["infill", "MODEL", "a[[gap:2]]b", "--out", "."],
    "no sample": ["infill", "MODEL", "a[[gap:2]]b", "--num-samples", "0"],
    "a range from more to less": ["infill", "MODEL", "a[[gap:20-4]]b"],
    "half a range": ["infill", "MODEL", "a[[gap:4-]]b"],
    "a range beyond the context": ["infill", "MODEL", "a[[gap:1-33]]b"],
    "nothing right of an open gap": ["infill", "MODEL", "a[[gap]]"],
    "half a range as a prompt": ["sample", "MODEL", "--prompt", "a[[gap:4-]]b"],
    "no rate": ["infill", "MODEL", "a[[gap:2]]b", "--rate", "0"],
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(folder, bare, capsys, case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gaps.txt").write_text("a[[gap:2]]b")
    (tmp_path / "bytes.txt").write_bytes(b"a\xff[[gap:2]]")
    assert main([{"MODEL": folder, "BARE": bare}.get(word, word) for word in BAD[case]]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("hdlm")
    assert said.err.count("\n") == 1
    assert len(list(tmp_path.iterdir())) == 2


@pytest.fixture(scope="module")
def bare(folder, tmp_path_factory):
    """The model without its tokenizer."""
    model = hdlm.load(folder)
    return str(hdlm.Bundle(model.model, model.config).save(tmp_path_factory.mktemp("m") / "bare"))
