"""The notebooks run from their top, as they stand there, at small size; and what a page makes of them."""

import json
import os
from pathlib import Path

import notebooks
import pytest
from support.blocks import ROOT

FILES = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.fixture(autouse=True)
def _same_folder():
    home = Path.cwd()
    yield
    assert Path.cwd() == home


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    monkeypatch.setenv("HDLM_CACHE", str(tmp_path))
    done = notebooks.run(notebooks.read(path), small=True)
    assert all(cell["execution_count"] for cell in done["cells"] if cell["cell_type"] == "code")


def test_notebooks_are_whole_and_small():
    """What each shows was kept, cells are explained, and format and names are Jupyter's."""
    assert len(FILES) == 3
    assert sum(path.stat().st_size for path in FILES) < 300_000
    for path in FILES:
        notebook = notebooks.read(path)
        assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
        kinds = [cell["cell_type"] for cell in notebook["cells"]]
        assert kinds == ["markdown", "code"] * (len(kinds) // 2)
        assert len({cell["id"] for cell in notebook["cells"]}) == len(kinds)
        code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
        assert sum(bool(cell["metadata"].get("small")) for cell in code) == 1
        text, pictures = notebooks.as_markdown(path)
        assert pictures
        assert all(name in text for name in pictures)
        assert text.startswith("# ")


def cell(source, **metadata):
    return {
        "cell_type": "code",
        "id": "a",
        "metadata": metadata,
        "source": [source],
        "outputs": [],
        "execution_count": None,
    }


def test_a_cell_shows_what_it_prints_what_it_ends_with_and_its_figures(tmp_path):
    cells = [
        cell("n = 3", small="n = 2"),
        cell("print('a' * n)\nn + 1"),
        cell("from matplotlib import pyplot\npyplot.plot([1])\nNone"),
    ]
    run = notebooks.run({"cells": cells}, small=True)
    printed, ended = run["cells"][1]["outputs"]
    assert printed["text"] == ["aa\n"]
    assert ended["data"]["text/plain"] == ["3"]
    assert [output["output_type"] for output in run["cells"][2]["outputs"]] == ["display_data"]
    assert notebooks.run({"cells": cells})["cells"][1]["outputs"][0]["text"] == ["aaa\n"]
    path = tmp_path / "x.ipynb"
    path.write_text(json.dumps(run | {"cells": [{"cell_type": "markdown", "source": ["# T"]}, *run["cells"]]}))
    text, pictures = notebooks.as_markdown(path)
    assert "```python\nn = 3\n```" in text
    assert "```text\naa\n```" in text
    assert pictures["x-1.png"].startswith(b"\x89PNG")


def test_a_notebook_that_fails_leaves_the_folder():
    before = os.listdir()
    with pytest.raises(ZeroDivisionError):
        notebooks.run({"cells": [cell("open('left', 'w').close()\n1 / 0")]})
    assert os.listdir() == before
