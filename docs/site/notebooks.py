"""Notebooks: run their cells, keep what these show, and make a page of it.

    python docs/site/notebooks.py docs/notebooks/*.ipynb      # runs each from its top and writes its outputs into it

A cell shows what it prints, its last expression, and the figures that it leaves open, as in Jupyter. A cell with
"small" in its metadata sets sizes; a small run has that line behind it. Knows the notebook format, 4.5, and needs no
Jupyter.
"""

import argparse
import ast
import base64
import contextlib
import io
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from hdlm.files import written_aside

DPI = 75

Notebook = dict[str, Any]


def read(path: Path) -> Notebook:
    """A notebook from its file."""
    return json.loads(path.read_text(encoding="utf-8"))


def run(notebook: Notebook, *, small: bool = False) -> Notebook:
    """The notebook with the outputs that its cells have when they run one after the other, in an empty folder."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells, count, home = [], 0, Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for cell in notebook["cells"]:
                if cell["cell_type"] == "code":
                    count += 1
                    cell = cell | {"outputs": _outputs("".join(cell["source"]), names, count), "execution_count": count}
                    if small:
                        exec(cell["metadata"].get("small", ""), names)
                cells.append(cell)
        finally:
            os.chdir(home)
    return notebook | {"cells": cells}


def _outputs(source: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Run one cell; what it shows."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"<cell {count}>", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"<cell {count}>", "eval"), names)
    shown: list[dict[str, Any]] = []
    if printed.getvalue():
        shown.append({"output_type": "stream", "name": "stdout", "text": _lines(printed.getvalue())})
    if value is not None:
        data = {"text/plain": _lines(repr(value))}
        shown.append({"output_type": "execute_result", "execution_count": count, "metadata": {}, "data": data})
    for number in pyplot.get_fignums():
        picture = io.BytesIO()
        pyplot.figure(number).savefig(picture, format="png", dpi=DPI, bbox_inches="tight")
        data = {"image/png": base64.b64encode(picture.getvalue()).decode()}
        shown.append({"output_type": "display_data", "metadata": {}, "data": data})
    pyplot.close("all")
    return shown


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def as_markdown(path: Path) -> tuple[str, dict[str, bytes]]:
    """A notebook as a page, and its pictures by name."""
    parts, pictures = [], {}
    for cell in read(path)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                name = f"{path.stem}-{len(pictures) + 1}.png"
                pictures[name] = base64.b64decode("".join(data["image/png"]))
                parts.append(f"![What the cell draws]({name})")
            else:
                text = "".join(output.get("text", data.get("text/plain", []))).rstrip("\n")
                parts.append(f"```text\n{text}\n```")
    place = f"The notebook itself is `docs/notebooks/{path.name}`, with what its cells showed when they ran."
    return "\n\n".join([parts[0], place, *parts[1:]]) + "\n", pictures


def main() -> None:
    """Run the notebooks that are named, and write what they showed."""
    parser = argparse.ArgumentParser(description="Run notebooks and write their outputs into them.")
    parser.add_argument("notebooks", nargs="+", type=Path, metavar="NOTEBOOK")
    for path in parser.parse_args().notebooks:
        done = run(read(path))
        with written_aside(path) as aside:
            aside.write_text(json.dumps(done, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
