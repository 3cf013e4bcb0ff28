"""Replays in the pages: what a page's own command writes stands below that command, and the landing page plays some.

A command of its own in a block, with `--replay NAME.html`, is run as it is written there. Knows the command line and
the data of a replay page; knows no mkdocs.
"""

import contextlib
import io
import json
import re
import shlex
import tempfile
from functools import cache
from html import escape
from pathlib import Path

from hdlm.cli.main import main

COMMAND = re.compile(r"^```\n(hdlm [^\n]*--replay ([\w-]+\.html)[^\n]*)\n```\n", re.MULTILINE)
LANDING = "<!-- replays: (.*) -->"
_DATA = re.compile(r'<script id="data" type="application/json">(.*?)</script>', re.DOTALL)


def pages(markdown: str) -> dict[str, str]:
    """Name to page, of every replay that a page of the documentation writes."""
    return {name: _written(command) for command, name in COMMAND.findall(markdown)}


def embedded(markdown: str) -> str:
    """The same page with each replay below the command that writes it."""
    frame = '<iframe class="replay" src="{0}" title="{1}" loading="lazy"></iframe>'
    return COMMAND.sub(lambda found: found[0] + "\n" + frame.format(found[2], escape(found[1])) + "\n", markdown)


def landing(markdown: str) -> str:
    """The page with `<!-- replays: FILE NAME ... -->` as data for its animation: replays of another page, FILE."""
    return re.sub(LANDING, lambda found: _lanes(*found[1].split()), markdown)


def _lanes(file: str, *names: str) -> str:
    found = pages((Path(__file__).parents[1] / file).read_text(encoding="utf-8"))
    lanes = json.dumps([lane(found[name]) for name in names], separators=(",", ":")).replace("<", "\\u003c")
    return f'<script id="lanes" type="application/json">{lanes}</script>'


def lane(page: str) -> dict[str, list[str] | list[int] | int]:
    """The first text of a replay: its pieces, the call after which each stands (0: given), and how many steps."""
    data = json.loads(_DATA.findall(page)[0])
    sample = data["samples"][0]
    tokens, when = list(sample["first"]), [0] * len(sample["first"])
    for step, place, token, *_ in sample["changes"]:
        tokens[place], when[place] = token, step + 1
    if data["stats"]["drafted"]:  # a drafted token stands when it has been verified
        when[sample["start"] :] = [step + 1 for step in sample["schedule"]["entry"]]
    last = sample["length"]
    pieces, steps = [data["pieces"][str(token)] for token in tokens[:last]], sample["schedule"]["steps"]
    if steps != (calls := data["stats"]["network_calls"]):
        raise ValueError(f"{data['title']}: {steps} steps took {calls} calls of the network, and are shown as calls")
    return {"pieces": pieces, "when": when[:last], "steps": steps}


@cache
def _written(command: str) -> str:
    """The page that a command writes, given as it stands in the documentation."""
    words, said = shlex.split(command)[1:], io.StringIO()
    at = words.index("--replay") + 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / words[at]
        words[at] = str(path)
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = main(words)
        if code:
            raise ValueError(f"{command!r} ended with exit code {code}: {said.getvalue()}")
        return path.read_text(encoding="utf-8")
