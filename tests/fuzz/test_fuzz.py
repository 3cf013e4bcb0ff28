"""A few hundred cases of the fuzz suite, its judge against planted faults, and the page with its figures."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz import report
from fuzz.commands import VALID, leaves
from fuzz.planted import PLANTED
from fuzz.sections import SECTIONS

CASES = 300
TESTS = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="every case is a forked process")


def fuzz(*arguments):
    """The suite in a process of its own, which imports everything once and forks."""
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "fuzz", *arguments]
    return subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True)


def test_every_case_is_answered_refused_or_stopped():
    done = fuzz("--cases", str(CASES))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-3000:]}"


def test_the_judge_sees_planted_faults():
    done = fuzz("--planted")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == len(PLANTED), done.stderr[-3000:]
    assert [row for row in rows if not row["seen"]] == []


def test_commands_and_their_valid_neighbours_are_those_of_the_parser():
    words = {word for words in leaves() for word in (words[0], " ".join(words))}
    assert words >= set(VALID)


def test_the_page_shows_the_recorded_figures():
    figures = json.loads(report.FIGURES.read_text())
    assert figures["cases"] == sum(row["cases"] for row in figures["sections"].values())
    assert set(figures["sections"]) == set(SECTIONS)
    assert report.marked(figures) in report.PAGE.read_text(encoding="utf-8")


def test_files_that_the_page_names_exist():
    named = set(re.findall(r"`(tests/[\w/.]+)`", report.PAGE.read_text(encoding="utf-8")))
    assert len(named) > 8
    assert not [name for name in named if not (report.ROOT / name).exists()]
