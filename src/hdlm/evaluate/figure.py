"""The paper's figures of results: quality against diversity for any sweeps, with the front that no other point beats;
perplexity by gamma; the bound by position.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hdlm.evaluate.reference import PUBLISHED
from hdlm.viz.style import save

COLORS = ("#1f5f99", "#c77700", "#2e7d32", "#7b3fa0", "#a83232", "#00838f", "#6d4c41", "#546e7a")


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of points (cost, gain) that no other beats in both, by rising cost."""
    order = sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1]))
    best, kept = float("-inf"), []
    for i in order:
        if points[i][1] > best:
            best = points[i][1]
            kept.append(i)
    return kept


def draw_front(groups: Mapping[str, Sequence[dict[str, Any]]], path: Path) -> Path:
    """Generative perplexity (less is better) against entropy, and against MAUVE where there is one.

    `groups`: the cells of each model by its name, a colour each; the front is over all of them.
    """
    from matplotlib.figure import Figure

    cells = [cell for group in groups.values() for cell in group]
    panels = [("entropy", "unigram entropy, nats (more is better)")]
    if any("mauve" in cell["result"] for cell in cells):
        panels.append(("mauve", "MAUVE (more is better)"))
    figure = Figure(figsize=(6.2 * len(panels), 4.6), layout="constrained")
    judge = next(cell["result"]["gen_ppl"]["judge"] for cell in cells if "gen_ppl" in cell["result"])
    for axes, (name, label) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        paper = (PUBLISHED["gen_ppl"], PUBLISHED[name])
        axes.scatter(*paper, s=16, color="#c4c4c4", label="the paper, OpenWebText, gpt2-large")
        points: list[tuple[float, float]] = []
        for (model, group), color in zip(groups.items(), itertools.cycle(COLORS)):
            shown = [cell for cell in group if "gen_ppl" in cell["result"] and name in cell["result"]]
            values, errors = (
                [_numbers(cell["result"][n][part] for cell in shown) for n in ("gen_ppl", name)]
                for part in ("value", "error")
            )
            own = list(zip(values[0], values[1], strict=True))
            style = {"fmt": "o", "color": color, "ms": 5, "lw": 1, "label": model if len(groups) > 1 else None}
            axes.errorbar(*values, xerr=errors[0], yerr=errors[1], **style)
            for cell, point in zip(shown, own, strict=True):
                axes.annotate(f" {cell_name(cell)}", point, fontsize=7, color="#333333")
            points += own
        best = [points[i] for i in front(points)]
        what = "this sweep" if len(groups) == 1 else "all of them"
        axes.plot(*zip(*best, strict=True), color="#c0392b", lw=1.2, label=f"Pareto front of {what}")
        axes.set_xscale("log")
        axes.set_xlabel(f"generative perplexity under {judge} (less is better)", fontsize=8)
        axes.set_ylabel(label, fontsize=8)
        axes.legend(frameon=False, fontsize=7)
        axes.grid(alpha=0.25)
    return save(figure, path)


def draw_gammas(bounds: Mapping[str, Sequence[tuple[float, float, float]]], path: Path) -> Path:
    """Perplexity by the share of uniform noise: (gamma, nats per token, error) of several models, by bound."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.2, 4.2), layout="constrained")
    axes = figure.subplots()
    for (name, found), color in zip(bounds.items(), itertools.cycle(COLORS)):
        gammas, nats, errors = zip(*sorted(found), strict=True)
        values = [math.exp(value) for value in nats]
        spread = [value * error for value, error in zip(values, errors, strict=True)]
        axes.errorbar(gammas, values, yerr=spread, fmt="-o", ms=4, lw=1.2, color=color, label=name)
    axes.set_xscale("symlog", linthresh=0.01)
    axes.set_xlabel("gamma, the share of uniform noise")
    axes.set_ylabel("perplexity per token (less is better)")
    axes.set_ylim(bottom=0.95 * min(math.exp(nats) for found in bounds.values() for _, nats, _ in found))
    axes.legend(frameon=False, fontsize=8)
    axes.grid(alpha=0.25)
    return save(figure, path)


def draw_positions(cells: Sequence[dict[str, Any]], path: Path) -> Path:
    """The bound by position: does it fall with context?"""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for cell in cells:
        values = _numbers(cell["result"]["positions"])
        width = max(1, len(values) // 32)
        means = [sum(values[i : i + width]) / len(values[i : i + width]) for i in range(0, len(values), width)]
        axes.plot([i * width for i in range(len(means))], means, "-o", ms=3, lw=1.2, label=data_name(cell))
    axes.set(xlabel="position in the row", ylabel="bound, nats per token")
    axes.legend(frameon=False)
    axes.grid(alpha=0.25)
    return save(figure, path)


def _numbers(values: Iterable[float | None]) -> list[float]:
    """What is to be drawn: null, in results, is what was no number."""
    return [math.nan if value is None else value for value in values]


def data_name(cell: dict[str, Any]) -> str:
    """The text of a cell: a set's name, or a file's without its folder."""
    return Path(cell["spec"]["data"]).name


def bound_name(found: dict[str, Any]) -> str:
    """Which bound, and by which hyperschedule; results of earlier versions do not say the latter."""
    return found["name"] + (f" ({found['schedule']})" if "schedule" in found else "")


def cell_name(cell: dict[str, Any]) -> str:
    """The settings of a cell in a few words."""
    settings = cell["spec"]["settings"]
    words = [f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in settings.items()]
    return ", ".join(words) or "default"
