"""Pages that are drawn from the code: one a command, from the parsers, and one a room, from the docstrings.

The rooms' pages only name their modules: mkdocstrings reads those.
"""

import argparse
import ast
from functools import partial
from pathlib import Path

from hdlm.cli.main import build_parser

WIDTH = 88  # characters of a help text
# Rooms in the order of the house, from the ground up; one that is not named here comes behind them.
ROOMS = (
    "theory",
    "config",
    "nn",
    "objectives",
    "sampling",
    "data",
    "interop",
    "evaluate",
    "train",
    "fast",
    "serve",
    "viz",
    "bench",
    "cli",
)
_ABOUT = """# Command line

Drawn from the parsers themselves. `python -m hdlm` is `hdlm`. Exit codes: 0; 1 when a result was shown but not all
of it could be written; 2 on bad input, with one line that says what is wrong; 130 and 143 when a signal ended it.
"""


def command_pages() -> dict[str, str]:
    """Path to Markdown, of the whole command line and of every command."""
    parser = build_parser()
    commands = _subcommands(parser)
    lines = ["# Command line", "", "Drawn from the parsers themselves. `python -m hdlm` is `hdlm`.", ""]
    lines += ["| command | |", "| --- | --- |"]
    lines += [f"| [`hdlm {name}`]({name}.md) | {said.capitalize()} |" for name, (_, said) in commands.items()]
    lines += [
        "",
        "Exit codes: 0; 1 when a result was shown but not all of it could be written; 2 on bad input, with one",
    ]
    lines += ["line that says what is wrong; 130 and 143 when a signal ended it.", "", *_help(parser)]
    pages = {"reference/cli/index.md": "\n".join(lines) + "\n"}
    for name, (command, said) in commands.items():
        pages[f"reference/cli/{name}.md"] = "\n".join([f"# hdlm {name}", "", *_sections(command, said, 2)]) + "\n"
    return pages


def _sections(parser: argparse.ArgumentParser, said: str, level: int) -> list[str]:
    """What a command says of itself, then the commands inside of it."""
    lines = [_sentence(said), "", *_help(parser)]
    if hidden := [
        action.option_strings[-1]
        for action in parser._actions
        if action.help == argparse.SUPPRESS and action.option_strings
    ]:
        lines += ["", f"Also: {', '.join(f'`{flag}`' for flag in hidden)}."]
    for name, (inner, words) in _subcommands(parser).items():
        lines += ["", f"{'#' * level} {name}", "", *_sections(inner, words, level + 1)]
    return lines


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


def _help(parser: argparse.ArgumentParser) -> list[str]:
    parser.formatter_class = partial(parser.formatter_class, width=WIDTH)
    return ["```text", parser.format_help().rstrip(), "```"]


def _subcommands(parser: argparse.ArgumentParser) -> dict[str, tuple[argparse.ArgumentParser, str]]:
    """Name to parser and the line that is said of it."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            said = {choice.dest: choice.help or "" for choice in action._choices_actions}
            return {name: (inner, said.get(name, "")) for name, inner in action.choices.items()}
    return {}


def room_pages(source: Path) -> dict[str, str]:
    """Path to Markdown, of every room of `source`/hdlm and of the files that stand between the rooms."""
    house = source / "hdlm"
    found = {path.name: files for path in house.iterdir() if (files := sorted(path.rglob("*.py")))}
    names = [*(name for name in ROOMS if name in found), *sorted(set(found) - set(ROOMS))]
    pages = {f"reference/rooms/{name}.md": _room(name, found[name], source) for name in names}
    return pages | {"reference/rooms/hdlm.md": _room("", sorted(house.glob("*.py")), source)}


def _room(room: str, files: list[Path], source: Path) -> str:
    about = [file for file in files if file.stem == "__init__" and room]
    lines = [f"# {room or 'Between the rooms'}", ""]
    lines += [ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "" for file in about]
    for file in files:
        if not file.stem.startswith("__"):
            name = ".".join(file.relative_to(source).with_suffix("").parts)
            lines += ["", f"::: {name}", "    options: {show_root_full_path: true}"]
    return "\n".join(lines) + "\n"
