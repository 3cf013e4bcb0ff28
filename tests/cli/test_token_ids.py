"""Token ids on the command line: `hdlm sample --prompt-ids`, with and without a tokenizer, and log-probabilities."""

import json

import pytest

import hdlm
from hdlm.cli.main import main


@pytest.mark.parametrize("ids", ["0 1 2", " 0, 1,2 ", "[0, 1, 2]", "[[0, 1, 2]]"])
def test_ids_are_the_prompt_that_they_stand_for(folder, capsys, ids):
    for words in (["--prompt-ids", ids], ["--prompt", "abc"]):
        assert main(["sample", folder, *words, "--length", "4", "--seed", "1"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == second


def test_they_repeat_and_stand_beside_texts(folder, capsys):
    words = ["--prompt-ids", "0 1", "--prompt", "c", "--prompt-ids", "[[3], [4, 5]]"]
    assert main(["sample", folder, *words, "--length", "4", "--seed", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["samples"]
    assert [row["tokens"][: row["prompt_tokens"]] for row in found] == [[2], [0, 1], [3], [4, 5]]


def test_a_model_without_a_tokenizer_writes_ids(folder, capsys, tmp_path):
    model = hdlm.load(folder)
    bare = str(hdlm.Bundle(model.model, model.config).save(tmp_path / "bare"))
    assert main(["sample", bare, "--prompt-ids", "0 1", "--length", "4", "--seed", "1"]) == 0
    expected = model.generate([0, 1], length=4, seed=1).tokens[0]
    assert capsys.readouterr().out == " ".join(map(str, expected)) + "\n"
    assert main(["sample", bare, "--length", "4", "--seed", "1", "--num-samples", "2", "--watch"]) == 0
    assert main(["sample", bare, "--prompt", "ab"]) == 2
    assert capsys.readouterr().err.endswith("this model has no tokenizer: give token ids instead of text\n")


def test_log_probabilities_are_in_the_json(folder, capsys, tmp_path):
    out = tmp_path / "samples.jsonl"
    words = ["sample", folder, "--prompt", "ab", "--length", "4", "--seed", "1", "--temperature", "0.5"]
    assert main([*words, "--json", "--logprobs", "--out", str(out)]) == 0
    [row] = json.loads(capsys.readouterr().out)["samples"]
    assert [json.loads(line) for line in out.read_text().splitlines()] == [row]
    samples = hdlm.load(folder).generate("ab", length=4, seed=1, temperature=0.5, logprobs=True)
    assert [one["logprob"] for one in row["logprobs"]] == samples.logprobs[0]
    assert [one["text"] for one in row["logprobs"]] == list(row["text"][2:])
    assert main([*words, "--json"]) == 0
    [plain] = json.loads(capsys.readouterr().out)["samples"]
    assert plain == {name: value for name, value in row.items() if name != "logprobs"}


@pytest.mark.parametrize(
    "ids", ["", "[]", "a", "1_0", "[1", '{"a": 1}', "1 99", "-1", "1.0", "true", "[1, [2]]", "[[1], 2]"]
)
def test_what_are_no_ids_is_one_line(folder, capsys, ids):
    assert main(["sample", folder, f"--prompt-ids={ids}", "--length", "4"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert said.err.startswith("hdlm")
