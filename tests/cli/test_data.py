"""`hdlm data`: what it prints for a person and for a script, and how it says no."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from support.prepared import make, write_text

from hdlm.cli import data as command
from hdlm.cli.main import build_parser, main
from hdlm.data.prepare import Progress
from hdlm.data.sets import SETS


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        return make(tmp_path_factory.mktemp("made"), patch)


def test_a_file_is_prepared_looked_at_and_verified(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path / "text.jsonl")
    assert main(["data", "prepare", "text.jsonl", "--tokenizer", "bytes", "--workers", "1", "--out", "tokens"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.startswith(f"tokens: 3 shards of {tmp_path}/text.jsonl by bytes, vocabulary 257\n")
    assert said.out.endswith("train with: hdlm train --data tokens\n")
    assert main(["data", "inspect", "tokens"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3] == "train: document 0 says: <|eos|>document 1 says: some words again, <|eos|>document 2"
    assert main(["data", "verify", "tokens"]) == 0
    assert capsys.readouterr().out.startswith(f"tokens is whole: 3 shards of {tmp_path}/text.jsonl by bytes, ")
    assert main(["data", "list", "."]) == 0
    listed = capsys.readouterr().out
    assert f"prepared: tokens: 3 shards of {tmp_path}/text.jsonl by bytes\n" in listed
    assert "owt" in listed


def test_scripts_read_json(made, tmp_path, capsys):
    facts = {}
    text = str(made.folder.parent / "text.jsonl")
    again = ["prepare", text, "--tokenizer", "bytes", "--out", str(made.folder)]
    for words in (again, ["inspect", str(made.folder)], ["verify", str(made.folder)]):
        assert main(["data", *words, "--json"]) == 0
        said = capsys.readouterr()
        assert said.err == ""
        facts[words[0]] = json.loads(said.out)
    splits = {
        split: {"shards": len(shards)}
        | {name: made.total(split, name) for name in ("tokens", "documents", "text_bytes", "replaced")}
        for split, shards in made.splits.items()
    }
    assert facts["prepare"] == {
        "folder": str(made.folder),
        "source": text,
        "encoding": "utf-8",
        "tokenizer": "bytes",
        "vocab_size": 257,
        "splits": splits,
    }
    assert facts["verify"] == facts["prepare"] | {"bytes": 2 * sum(s["tokens"] for s in splits.values()), "whole": True}
    assert list(facts["inspect"]["first"]) == ["train", "valid", "test"]
    assert main(["data", "list", str(made.folder.parent), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["prepared"] == [facts["prepare"]]
    assert {"name", "about", "splits", "state", "place"} == set(found["sets"][0])


@pytest.mark.parametrize("name", ["train-00001.bin", "tokenizer.json", "index.json"])
def test_damage_is_one_line_and_exit_code_2(name, made, tmp_path, capsys):
    folder = shutil.copytree(made.folder, tmp_path / "tokens")
    (folder / name).write_bytes(b"{")
    assert main(["data", "verify", str(folder)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"hdlm: {folder / name} is ")
    assert said.err.count("\n") == 1
    assert (folder / name).read_bytes() == b"{"


BAD = {
    "no action": ["data"],
    "no tokenizer": ["data", "prepare", "stdlib", "--out", "x"],
    "no folder": ["data", "prepare", "stdlib", "--tokenizer", "bytes"],
    "no such set": ["data", "prepare", "nowhere", "--tokenizer", "bytes", "--out", "x"],
    "no workers": ["data", "prepare", "stdlib", "--tokenizer", "bytes", "--out", "x", "--workers", "0"],
    "words for workers": ["data", "prepare", "stdlib", "--tokenizer", "bytes", "--out", "x", "--workers", "all"],
    "nothing prepared": ["data", "inspect", "x"],
    "nothing to verify": ["data", "verify", "."],
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_exit_code_2(case, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    try:
        code = main(BAD[case])
    except SystemExit as stop:
        code = stop.code
    said = capsys.readouterr()
    assert (code, said.out, said.err.count("\n")) == (2, "", 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [[], ["prepare"], ["list"], ["inspect"], ["verify"]])
def test_help_fits_on_a_screen(words, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main_raising(["data", *words, "--help"])
    assert len(capsys.readouterr().out.splitlines()) <= 24


def main_raising(words):
    raise SystemExit(main(words))


def test_the_page_has_the_commands_and_the_sets_that_there_are():
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    commands = re.findall(r"^hdlm [^#\n]+", page, re.MULTILINE)
    assert len(commands) >= 6
    for words in commands:
        build_parser().parse_args(shlex.split(words)[1:])
    named = {
        name for row in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE) for name in re.findall(r"`([\w-]+)`", row)
    }
    assert named >= {"stdlib", *SETS}
    for found in SETS.values():
        assert found.hub is None or f"`{found.hub.name}`" in page


@pytest.mark.parametrize(
    ("progress", "words"),
    [
        (Progress("training the tokenizer", documents=1200), "training the tokenizer: 1,200 documents"),
        (
            Progress("tokenising", 5, 12_345, 0.256, 1234.5, 3725.9),
            "tokenising: 5 documents, 12,345 tokens (26%)  1,234 tokens/s  1:02:05 left",
        ),
        (Progress("tokenising", 5, 10, None, 2.0), "tokenising: 5 documents, 10 tokens  2 tokens/s"),
    ],
)
def test_progress_is_a_line(progress, words):
    assert command._words(progress) == words
