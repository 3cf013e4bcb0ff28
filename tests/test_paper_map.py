"""docs/paper.toml: every entry resolves to code, and no label of the paper is missing."""

import importlib
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAP = tomllib.loads((ROOT / "docs" / "paper.toml").read_text(encoding="utf-8"))
VALUES = {label: value for section in MAP.values() for label, value in section.items()}
BUILT = [(label, target) for label, value in VALUES.items() if isinstance(value, list) for target in value]
PLANNED = {label: value for label, value in VALUES.items() if isinstance(value, str)}
PAPER = ROOT.parent / "shared" / "paper" / "unifying-ar-and-diffusion.tex"


@pytest.mark.parametrize(("label", "target"), BUILT)
def test_entry_names_code_that_exists(label, target):
    module, _, name = target.partition(":")
    found = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)


def test_planned_entries_say_for_what():
    assert all(re.fullmatch(r"planned: \w+", value) for value in PLANNED.values())


def test_no_equation_algorithm_table_or_figure_is_missing():
    if not PAPER.exists():
        pytest.skip("the paper's source is not beside this checkout")
    labels = re.findall(r"\\label\{((?:eq|equation|alg|tab|fig|figure):[^}]+)\}", PAPER.read_text(encoding="utf-8"))
    assert len(labels) > 30
    assert set(labels) <= set(VALUES)
