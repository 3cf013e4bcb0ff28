"""`--custom` and `--schedules`: hyperschedules of one's own, by a file of levels or in words."""

import json

import pytest

import hdlm
from hdlm.cli.main import main

SCRAMBLED = [[2] * 5, [2, 1, 2, 0, 1], [2, 0, 1, 0, 1], [1, 0, 0, 0, 1], [0] * 5]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "levels.json"
    path.write_text(json.dumps(SCRAMBLED))
    return str(path)


@pytest.mark.parametrize("levels", [SCRAMBLED, hdlm.Slide(5, 2).levels.tolist()], ids=["scrambled", "in order"])
@pytest.mark.parametrize("prompt", [[], ["--prompt", "abc"]])
def test_samples_by_a_file_of_levels(folder, file, levels, prompt, capsys):
    with open(file, "w") as out:
        json.dump(levels, out)
    assert main(["sample", folder, "--custom", file, "--seed", "1", "--json", *prompt]) == 0
    [row] = json.loads(capsys.readouterr().out)["samples"]
    again = hdlm.load(folder).generate(prompt[1] if prompt else None, hyperschedule=hdlm.Custom(levels), seed=1)
    assert again.tokens == [row["tokens"]]
    assert row["settings"]["hyperschedule"]["levels"] == levels
    assert row["settings"]["steps"] == len(levels) - 1
    assert main(["sample", folder, "--custom", file, "--count", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["calls"] == len(levels) - 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rate", "2"], "has a length, width and rate of its own"),
        (["--length", "9"], "has a length, width and rate of its own"),
        (["--flat"], "not allowed with argument --custom"),
        (["--prompt", "a[[gap:2]]"], "a prompt with gaps is not accepted with --custom"),
        (["--custom", "nowhere.json"], "nowhere.json is not accepted: it is no file of levels"),
        (["--prompt", "a" * 30], "custom has one window, and this network was trained on 32 tokens"),
    ],
)
def test_what_does_not_go_with_levels_is_refused(folder, file, words, message, capsys):
    try:
        code = main(["sample", folder, "--custom", file, *words])
    except SystemExit as stop:
        code = stop.code
    said = capsys.readouterr()
    assert (code, said.out, said.err.count("\n")) == (2, "", 1)
    assert message in said.err


@pytest.mark.filterwarnings("ignore:.*trained on.*")
def test_evaluation_by_a_file_of_levels(folder, file, tmp_path, capsys):
    """The bound and the samples; another matrix is another cell."""
    levels = hdlm.Block(32, 8).levels[::3].tolist()
    out = tmp_path / "report"
    for number in (2, 4):
        with open(file, "w") as written:
            json.dump([*levels, [0] * 32] if number == 2 else hdlm.Flat(32).levels.tolist(), written)
        words = ["evaluate", folder, "--custom", file, "--samples", "2", "--metrics", "bound,entropy"]
        words += ["--backend", "reference"]
        (tmp_path / "text.txt").write_text("abc abd " * 20)
        assert main([*words, "--data", str(tmp_path / "text.txt"), "--draws", "1", "--out", str(out), "--json"]) == 0
        bound, drawn = json.loads(capsys.readouterr().out)["cells"]
        assert bound["result"]["schedule"] == "custom"
        assert drawn["spec"]["settings"] == {"kind": "custom"}
        assert drawn["result"]["stats"]["network_calls"] == bound["spec"]["schedule"]["levels"].index([0] * 32)
        assert len(json.loads((out / "results.json").read_text())["cells"]) == number
        assert "custom" in (out / "report.md").read_text()


@pytest.mark.parametrize(("words", "slots"), [("flat", 1024), ("block:64:3,flat", 1756), ("quench", 1024)])
def test_plans_of_a_mixture_in_words(words, slots, capsys):
    assert main(["plan", "owt-mdlm", "--schedules", words, "--shifted", "true", "--json"]) == 0
    assert abs(json.loads(capsys.readouterr().out)["slots"] - slots) <= 2


def test_plans_of_levels_and_refusals(file, capsys):
    words = ["--length", "5", "--loss.averaged", "false"]
    assert main(["plan", "laptop", "--schedules", f"custom:{file},flat:2", *words]) == 0
    capsys.readouterr()
    for words in (["--schedules", "blok:4"], ["--schedules", f"custom:{file}"], ["--schedules", "block:4:0"]):
        assert main(["plan", "laptop", *words]) == 2
        said = capsys.readouterr().err
        assert said.startswith("hdlm: schedules")
        assert said.count("\n") == 1
    assert main(["train", "--resume", "x", "--schedules", "flat"]) == 2
    assert "--resume takes no schedules" in capsys.readouterr().err


def test_fields_are_listed_with_value_and_meaning(capsys):
    assert main(["train", "owt-mdlm", "--fields", "--optimizer.lr", "2e-3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    [rate] = [line for line in lines if line.startswith("--optimizer.lr ")]
    assert rate.split()[1:3] == ["float", "0.002"]
    assert rate.endswith("learning rate at its highest")
    assert main(["train", "owt-mdlm", "--fields", "--json"]) == 0
    fields = {field["name"]: field for field in json.loads(capsys.readouterr().out)}
    assert fields["data"]["value"] == "owt"
    assert fields["schedules"] == fields["schedules"] | {"type": "words", "value": "flat"}
    assert set(fields["model.width"]) == {"name", "type", "value", "about"}
    assert len(lines) == len(fields)
