"""Every block of README and docs: Python runs, commands are ones that exist, and the quick ones run too."""

import importlib.util
import re
import tomllib
import warnings
from collections import defaultdict

import pytest
from support.blocks import ELSEWHERE, ROOT, SHOWN, all_blocks, commands_of

from hdlm.cli.main import build_parser, main

BLOCKS = all_blocks()
COMMANDS = sorted({(str(b), tuple(c)) for b in BLOCKS if not b.language and not b.mark for c in b.commands})
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
TARGETS = set(re.findall(r"^([a-z-]+)(?: [a-z-]+)*:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
TARGETS |= {"docs-serve"}  # its own line begins with another's name


def parsed(words):
    args, fields = build_parser().parse_known_args(list(words))
    assert not fields or args.takes_fields, fields
    return args


def speed_of(words):
    """Whether a command can run here: quick, slow, or not at all (None), since it waits, or needs what is not here."""
    args = parsed(words)
    if words[:2] in (("plot", "hyperschedule"), ("plot", "layout")) or args.command == "plan":
        return "quick"
    if args.command == "train" and "--list" in words:
        return "quick"
    if args.command == "train" and ("--fields" in words or "--dry-run" in words) and "custom:levels.json" not in words:
        return "slow" if "--dry-run" in words else "quick"
    if getattr(args, "model", None) != "stories":
        return None
    if args.command == "sample" and args.count:
        return "quick"
    return "slow" if args.command in ("sample", "infill", "score") else None


def test_every_block_is_run_or_says_why_not():
    known = {"slow", "not run", *ELSEWHERE}
    for block in BLOCKS:
        assert block.language in ("", "python", *SHOWN), f"{block}: nobody knows what is done with {block.language!r}"
        assert not block.mark or block.mark in known, f"{block}: {block.mark!r} is no mark"
        assert block.mark not in ("slow", "not run") or len(block.reason) > 8, f"{block} says no reason"
    assert len(COMMANDS) > 80
    assert sum(block.language == "python" for block in BLOCKS) > 8


def name_of(command):
    return f"{command[0]}-{' '.join(command[1])}"


@pytest.mark.parametrize("command", COMMANDS, ids=name_of)
def test_commands_exist(command):
    program, *words = command[1]
    while "=" in program and program.split("=")[0].isupper():  # PYTHONPATH=src python ...
        program, *words = words
    if program == "torchrun":
        program, words = "python", words[words.index("-m") :]
    if program == "python" and words[:2] == ["-m", "hdlm"]:
        program, words = "hdlm", words[2:]
    if program == "hdlm":
        if words != ["--version"]:
            parsed(words)
    elif program == "python":
        script = importlib.util.find_spec(words[1]) if words[0] == "-m" else ROOT / words[0]
        assert script is not None if words[0] == "-m" else script.exists(), words
    elif program == "make":
        assert {word for word in words if "=" not in word} <= TARGETS
    elif program == "pip":
        for extras in re.findall(r"\[([a-z,]+)\]", " ".join(words)):
            assert set(extras.split(",")) <= set(EXTRAS)
    else:
        assert program in ("echo", "pre-commit"), f"{program} is nothing that this test knows: mark the block"


RUN = sorted({(speed_of(words[1:]), words) for _, words in COMMANDS if words[0] == "hdlm" and len(words) > 2}, key=str)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder to work in, with the files that commands of the pages read."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "story.txt").write_text("Tom had a red ball. He was very sad.")
    (tmp_path / "levels.json").write_text("[[2, 2, 2], [1, 2, 1], [0, 1, 1], [0, 0, 0]]")
    return tmp_path


@pytest.mark.parametrize("words", [w for how, w in RUN if how == "quick"], ids=" ".join)
def test_quick_commands_run(words, folder, capsys):
    assert main(words[1:]) == 0, capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("words", [w for how, w in RUN if how == "slow"], ids=" ".join)
def test_slow_commands_run(words, folder, capsys):
    assert main(words[1:]) == 0, capsys.readouterr().err


def pages_of_python():
    """All Python of a page in order, and whether it takes long."""
    found = defaultdict(list)
    for block in BLOCKS:
        if block.language == "python" and block.mark not in ("not run", *ELSEWHERE):
            found[block.page].append(block)
    for page, parts in found.items():
        marks = [pytest.mark.slow] if any(part.mark == "slow" for part in parts) else []
        yield pytest.param(parts, id=page, marks=marks)


@pytest.mark.parametrize("parts", list(pages_of_python()))
def test_python_runs(parts, folder):
    names = {"__name__": "__main__"}
    for part in parts:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as a reader would see them: beside the result
            exec(compile("\n" * part.line + part.text, part.page, "exec"), names)


def test_a_line_of_a_shell_is_taken_apart():
    assert commands_of("a 'b c' && d --x=1 | head -3  # and no more") == [["a", "b c"], ["d", "--x=1"], ["head", "-3"]]
    assert commands_of("echo '[[1], [0]]' > levels.json") == [["echo", "[[1], [0]]"]]
