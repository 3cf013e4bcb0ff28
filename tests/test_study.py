"""benchmarks/study: every row is a recipe that can be trained, and the driver keeps what is done."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.bundles import LETTERS, letters

from hdlm.config.build import check_recipe

STUDY = Path(__file__).parents[1] / "benchmarks" / "study"
sys.path.insert(0, str(STUDY))

import run  # noqa: E402


@pytest.mark.parametrize("row", run.all_rows(), ids=lambda row: f"{row.group}, {row.name}")
def test_every_row_is_a_recipe(row):
    recipe = row.recipe(3, [])
    check_recipe(recipe)
    assert recipe.seed == 3
    for word in row.settings:
        name, _, value = word.partition("=")
        if name == "process.gamma" and not any(later.startswith("process.kind") for later in row.settings):
            assert recipe.process.gamma == float(value)


def test_rows_have_files_of_their_own(tmp_path):
    files = [row.file(tmp_path, seed) for row in run.all_rows() for seed in (0, 1)]
    assert len(set(files)) == len(files)


@pytest.mark.slow
def test_a_study_goes_on_where_it_was(tmp_path):
    """Two rows of a tiny corpus: run, run again (nothing to do), and the table."""
    corpus, rng = tmp_path / "corpus", np.random.default_rng(0)
    corpus.mkdir()
    tokenizer = letters()
    tokenizer.add_special_tokens(["<|eos|>"])
    tokenizer.save(str(corpus / "tokenizer.json"))
    tokens = rng.integers(0, len(LETTERS), (32, 32)).astype(np.uint16)
    np.save(corpus / "train.npy", tokens)
    numbers = {"nats": np.full(32, 40.0), "pieces": np.full(32, 32), "bytes": np.full(32, 32)}
    np.savez(corpus / "valid.npz", tokens=tokens, **numbers)
    small = {"length": 32, "model.layers": 1, "model.width": 8, "model.heads": 2, "model.hidden": 8, "compile": "false"}
    small |= {"global_batch": 4, "micro_batch": 4}
    words = [f"--set={name}={value}" for name, value in small.items()]
    command = [sys.executable, str(STUDY / "run.py"), "--out", str(tmp_path / "out")]
    how = ["--corpus", str(corpus), "--steps", "2", "--only", "process epsilon", "--held-out", "4", "--batch", "4"]
    how += ["--seeds", "0", "--draws", "1", "--device", "cpu", *words]
    first = subprocess.run([*command, *how], capture_output=True, text=True, check=False)
    assert first.returncode == 0, first.stderr
    files = sorted((tmp_path / "out" / "steps-2").iterdir())
    assert [file.name for file in files] == ["process-epsilon-0.02-bound-0.json", "process-epsilon-0.02-hdce-0.json"]
    assert "block 16" in json.loads(files[0].read_text())["ways"]
    before = [file.stat().st_mtime_ns for file in files]
    again = subprocess.run([*command, *how], capture_output=True, text=True, check=False)
    assert (again.returncode, again.stdout) == (0, "")
    assert [file.stat().st_mtime_ns for file in files] == before
    aligned = [word if word != "process epsilon" else "table 1 (c)" for word in how]
    other = subprocess.run([*command, *aligned], capture_output=True, text=True, check=False)
    assert other.returncode == 0, other.stderr
    [file] = (tmp_path / "out" / "steps-2").glob("table-1-c*")
    assert set(json.loads(file.read_text())["ways"]) >= {"block 16", "flat"}
    shown = subprocess.run([*command, "--table"], capture_output=True, text=True, check=True).stdout
    assert "process | epsilon 0.02, HDCE | 2 steps | AR" in shown
