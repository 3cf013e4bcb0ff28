"""The README's Python runs, and its commands exist."""

import re
import shlex
from pathlib import Path

from hdlm.cli.main import build_parser

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_python_blocks_run(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})
    assert capsys.readouterr().out.startswith("1024 16\n")


def test_commands_parse():
    commands = re.findall(r"^hdlm [^#\n]+", README, re.MULTILINE)
    assert len(commands) >= 4
    for command in commands:
        args, fields = build_parser().parse_known_args(shlex.split(command)[1:])
        assert not fields or args.takes_fields


def test_pictures_exist():
    for path in re.findall(r"!\[[^]]*\]\(([^)]+)\)", README):
        assert (Path(__file__).parents[1] / path).exists()
