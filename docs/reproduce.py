"""Write docs/reproduce.md from docs/reproduce.toml: `python docs/reproduce.py`."""

import tomllib
from pathlib import Path
from typing import Any

from hdlm.config.recipes import all_recipes

HERE = Path(__file__).parent
HEAD = """# The paper's tables and figures, and the commands that fill them

Written by `python docs/reproduce.py` from `docs/reproduce.toml`, which `tests/test_reproduce.py` holds to the paper's
own text (its rows, its values of gamma, eta and rho), to the recipes and to the command line.

MODEL is a row's model: the folder that its recipe was trained in, or a published one where a hub name stands beside
it. Full-size numbers need the paper's data and GPU days; nothing here fills a table with numbers of another model.
What of the paper's claims holds on a corpus whose truth is known is in [results.md](results.md).

To train: `hdlm train RECIPE` on one GPU, `torchrun --nproc-per-node 8 -m hdlm train RECIPE` on eight; `hdlm plan
RECIPE --gpus 8` says what it costs. A row "after R" goes on from a model of R: train that first, then add
`--init-from runs/R`. Fields after a recipe belong to its stage 1 too. `--out DIR` keeps finished cells, so that a
sweep that is stopped goes on.

`--metrics bound` prints the likelihood bound of the process and, for gamma and epsilon, the masked bound of the same
network beside it, which is what the paper calls test perplexity (appendix C). `--length 1024` is the default for
models of that context.
"""


def recipe_words(row: dict[str, Any]) -> str:
    """The recipe of a row, with what it takes."""
    recipe = all_recipes()[row["recipe"]]
    after = f", after `{recipe.goes_on_from}`" if recipe.goes_on_from else ""
    return f"`{' '.join([row['recipe'], *row.get('fields', '').split()])}`{after}"


def section(table: dict[str, Any]) -> str:
    """A table's part of the page."""
    lines = [f"## {table['title']}", "", f"`{table['label']}`" + ("" if "commands" in table else ": as below"), ""]
    if "commands" in table:
        lines += ["```", *table["commands"], "```", ""]
    if rows := table.get("rows"):
        lines += ["| row | recipe | published as | sampling |", "| --- | --- | --- | --- |"]
        for row in rows:
            hub, sampling = (f"`{row[name]}`" if name in row else "" for name in ("hub", "sampling"))
            lines.append(f"| {row.get('model') or row['name']} | {recipe_words(row)} | {hub} | {sampling} |")
        lines.append("")
    if others := table.get("elsewhere"):
        lines += [f"See also {', '.join(f'`{label}`' for label in others)}.", ""]
    if "note" in table:
        lines += [table["note"], ""]
    return "\n".join(lines)


def page() -> str:
    """The whole page."""
    tables = tomllib.loads((HERE / "reproduce.toml").read_text(encoding="utf-8"))["table"]
    return "\n".join([HEAD, *(section(table) for table in tables)])


if __name__ == "__main__":
    (HERE / "reproduce.md").write_text(page(), encoding="utf-8")
