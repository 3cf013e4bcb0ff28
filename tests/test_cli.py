"""The command line as a person meets it: what it prints, what it writes, and how it says no."""

import json
import subprocess
import sys

import pytest

from hdlm.cli.main import main


def run(*words, cwd=None):
    command = [sys.executable, "-m", "hdlm", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


@pytest.mark.parametrize("suffix", [".png", ".svg"])
@pytest.mark.parametrize("picture", ["hyperschedule", "layout"])
def test_pictures_are_written(tmp_path, capsys, picture, suffix):
    out = tmp_path / "deep" / f"picture{suffix}"
    assert main(["plot", picture, "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"wrote {out}\n"
    signature = {".png": b"\x89PNG", ".svg": b"<?xml"}[suffix]
    assert out.read_bytes().startswith(signature)
    assert [path.name for path in out.parent.iterdir()] == [out.name]


def test_terminal_pictures_say_the_same_without_colour(capsys):
    assert main(["plot", "hyperschedule", "--terminal"]) == 0
    text = capsys.readouterr().out
    assert " 3 3 3 3 3 3 3 3 3" in text
    assert "▒▒" in text
    assert "~~" in text
    assert "the old clock" in text
    assert max(len(line) for line in text.splitlines()) <= 80
    assert main(["plot", "layout", "--terminal"]) == 0
    assert "shifted, slide" in capsys.readouterr().out


def test_json_is_the_schedule(capsys):
    assert main(["plot", "hyperschedule", "--length", "6", "--width", "2", "--json"]) == 0
    quench, flat, block, slide = json.loads(capsys.readouterr().out)
    assert (quench["steps"], flat["steps"], block["steps"], slide["steps"]) == (6, 6, 6, 7)
    assert slide["levels"][1] == [1, 2, 2, 2, 2, 2]
    assert main(["plot", "layout", "--json"]) == 0
    aligned = json.loads(capsys.readouterr().out)[0]
    assert aligned["holds"][12:] == [2, 3, 4, 5, 5, 6, 7, 8, 11]
    assert aligned["mask"][12][:12] == [True, True] + [False] * 10


def test_a_custom_schedule_is_drawn_beside_the_four(tmp_path, capsys):
    path = tmp_path / "levels.json"
    path.write_text("[[2, 2, 2], [1, 2, 1], [0, 1, 1], [0, 0, 0]]")
    assert main(["plot", "hyperschedule", "--custom", str(path), "--width", "2", "--json"]) == 0
    custom = json.loads(capsys.readouterr().out)[4]
    assert (custom["name"], custom["width"], custom["rate"]) == ("custom", 3, 1.0)
    assert main(["plot", "hyperschedule", "--custom", str(path), "--out", str(tmp_path / "c.png")]) == 0


def test_long_sequences_and_long_words_are_drawn(tmp_path):
    for words in (["--length", "200", "--width", "50"], ["--text", "extraordinarily long-winded words"]):
        assert main(["plot", "hyperschedule", *words, "--out", str(tmp_path / "a.png")]) == 0


def test_dollars_are_not_mathematics(tmp_path):
    assert main(["plot", "hyperschedule", "--text", "costs $x^$ now", "--out", str(tmp_path / "a.png")]) == 0


def test_wide_schedules_fit_a_narrow_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["plot", "hyperschedule", "--length", "60", "--terminal"]) == 0
    assert max(len(line) for line in capsys.readouterr().out.splitlines()) <= 80


def test_warnings_are_one_line_for_a_person():
    shown = run("plot", "hyperschedule", "--rate", "3", "--json")
    assert shown.returncode == 0
    assert shown.stderr.startswith("hdlm: note: Slide with width = 3, rate = 3.0")
    assert shown.stderr.count("\n") == 1


def test_a_reader_who_leaves_early_is_no_error():
    command = f"{sys.executable} -m hdlm plot hyperschedule --length 300 --json | head -c 10"
    shown = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, check=False)
    assert (shown.returncode, shown.stderr) == (0, "")


def test_importing_the_package_is_light():
    code = "import sys, hdlm, hdlm.cli.main; assert 'torch' not in sys.modules; hdlm.Quench(3); sys.modules['torch']"
    subprocess.run([sys.executable, "-c", code], check=True)


BAD = {
    "no command": [],
    "unknown command": ["fly"],
    "unknown flag": ["plot", "layout", "--colour", "red"],
    "not a number": ["plot", "layout", "--width", "x"],
    "width past the length": ["plot", "hyperschedule", "--length", "2", "--width", "3"],
    "rate 0": ["plot", "hyperschedule", "--rate", "0"],
    "gamma above 1": ["plot", "hyperschedule", "--gamma", "1.5", "--terminal"],
    "empty text": ["plot", "hyperschedule", "--text", " "],
    "picture without a suffix": ["plot", "layout", "--out", "picture"],
    "missing file": ["plot", "hyperschedule", "--custom", "nowhere.json"],
    "not JSON": ["plot", "hyperschedule", "--custom", "broken.json"],
    "not a matrix": ["plot", "hyperschedule", "--custom", "object.json"],
    "rising levels": ["plot", "hyperschedule", "--custom", "rising.json"],
    "length against the file": ["plot", "hyperschedule", "--custom", "good.json", "--length", "9"],
    "null in the file": ["plot", "hyperschedule", "--custom", "null.json"],
    "empty file": ["plot", "hyperschedule", "--custom", "empty.json"],
    "rate of nothing": ["plot", "hyperschedule", "--rate", "1e-320"],
    "width 0": ["plot", "layout", "--width", "0"],
    "seed too large": ["plot", "hyperschedule", "--seed", "9" * 23],
    "window past the end": ["plot", "layout", "--starts", "12"],
    "folder in the way": ["plot", "layout", "--out", "good.json/x.png"],
}
FILES = {
    "null.json": "[[1, null], [0, 0]]",
    "empty.json": "",
    "broken.json": "[[1,",
    "object.json": '{"steps": 3}',
    "rising.json": "[[2, 2], [1, 1], [2, 1], [0, 0]]",
    "good.json": "[[1, 1], [0, 1], [0, 0]]",
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_exit_code_2(case, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    try:
        code = main(BAD[case])
    except SystemExit as stop:
        code = stop.code
    said = capsys.readouterr()
    assert code == 2
    assert said.out == ""
    assert said.err.startswith("hdlm")
    assert said.err.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == set(FILES)


def test_help_fits_on_a_screen():
    commands = ("plot", "demo", "train", "plan", "sample", "evaluate", "bench")
    for words in ([], ["plot", "hyperschedule"], ["plot", "layout"], *([command] for command in commands)):
        shown = run(*words, "--help")
        assert shown.returncode == 0
        assert len(shown.stdout.splitlines()) <= 30
        assert all(command in shown.stdout for command in commands) or words


def test_a_flag_without_its_value_and_a_message_without_end(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["sample", "stories", "--replay=--"]) == 2
    assert capsys.readouterr().err.startswith("hdlm: argument --replay: expected one argument")
    for words in (["sample", "d/" * 2000], ["train", "--steps", "9" * 5000], ["train", "d/" * 2000]):
        assert main(words) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert len(said) < 600


def test_version():
    assert run("--version").stdout.startswith("hdlm 0.")
