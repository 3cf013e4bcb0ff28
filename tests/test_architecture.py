"""docs/architecture.md: its diffs apply to the source as it is, and what they add works; what it names exists."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"<!-- example: (\w+) -->\n```diff\n(.*?)```\n\n```python\n(.*?)```", PAGE, re.DOTALL)


def test_rule_hyperschedule_and_process_are_each_shown():
    assert [name for name, _, _ in EXAMPLES] == ["rule", "hyperschedule", "process"]


@pytest.mark.skipif(shutil.which("git") is None, reason="diffs are applied by git")
def test_the_worked_examples_apply_and_run(tmp_path):
    """All three in one tree, as somebody would who does one after the other."""
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    code = ["import warnings", "import hdlm, hdlm.config.parse, hdlm.train.dry_run", "warnings.simplefilter('ignore')"]
    for name, diff, python in EXAMPLES:
        (tmp_path / "change.diff").write_text(diff)
        applied = subprocess.run(["git", "apply", "change.diff"], cwd=tmp_path, capture_output=True, text=True)
        assert applied.returncode == 0, f"{name}: {applied.stderr}"
        code.append(python)
    command = [sys.executable, "-c", "\n".join(code)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env={"PYTHONPATH": "src", "PATH": ""})
    assert done.returncode == 0, done.stderr


def test_the_page_has_the_measured_walk_of_this_tree():
    """Those of benchmarks/results/trace.json, the older tree and this one; nothing is left to be filled in."""
    trees = json.loads((ROOT / "benchmarks" / "results" / "trace.json").read_text())
    assert len(trees) == 2
    for steps in trees.values():
        for one in steps.values():
            assert f"| {one['files']} | {one['jumps']} | {one['files_outside']} | {one['lines_outside']:,} |" in PAGE
    ours = list(trees.values())[-1]["sampling step, reference"]
    assert ours["files_outside"] <= 6
    assert set(ours["outside"]) <= {str(p.relative_to(ROOT / "src" / "hdlm")) for p in ROOT.glob("src/hdlm/**/*.py")}
    assert not re.search(r"\b[A-Z]+_[A-Z]+\b", PAGE)


def test_files_that_the_page_names_exist():
    named = set(re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.(?:py|md|json))`", PAGE))
    assert len(named) > 25
    folders = (ROOT, *(path for path in (ROOT / "src" / "hdlm").glob("**/") if path.name != "__pycache__"))
    assert not [name for name in named if not any((folder / name).exists() for folder in folders)]
    for picture in re.findall(r"!\[[^]]*\]\(([^)]+)\)", PAGE):
        assert (ROOT / "docs" / picture).exists()
