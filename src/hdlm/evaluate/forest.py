"""Paired differences as a forest plot: one line a model, its error bar, its numbers beside."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

from hdlm.evaluate.paired import SEEN, Measure
from hdlm.viz.style import OUTPUT_ACTIVE, OUTPUT_SETTLED, save

_FIRST = "#333333"


def draw_forest(measures: Sequence[Measure], path: Path) -> Path:
    """A panel a measure, a line a model from above; a bar that crosses the first model's line shows no difference."""
    from matplotlib.figure import Figure

    models = measures[0].models
    figure = Figure(figsize=(8.6, (1.1 + 0.42 * len(models)) * len(measures)), layout="constrained")
    for axes, measure in zip(figure.subplots(len(measures), 1, squeeze=False)[:, 0], measures, strict=True):
        axes.axvline(0.0, color=_FIRST, lw=1)
        for number, _ in enumerate(models):
            one = measure.difference(number)
            seen = one.error is not None and abs(one.value) > SEEN * one.error
            color = _FIRST if number == 0 else OUTPUT_ACTIVE if seen else OUTPUT_SETTLED
            bar = SEEN * (one.error or 0.0)
            axes.errorbar(one.value, number, xerr=bar, fmt="o", ms=5, lw=1.6, capsize=3, color=color)
            axes.annotate(
                _beside(measure, number),
                (1.02, number),
                xycoords=("axes fraction", "data"),
                va="center",
                fontsize=8,
            )
        axes.set_yticks(range(len(models)), [_label(name) for name in models], fontsize=8)
        axes.set_ylim(len(models) - 0.5, -0.5)
        axes.set_xlabel(f"{measure.unit}: difference to the first, ± {SEEN:g} paired errors", fontsize=8)
        axes.tick_params(axis="x", labelsize=8)
        axes.locator_params(axis="x", nbins=7)
        axes.grid(axis="x", alpha=0.25)
    return save(figure, path)


def _label(name: str) -> str:
    """A name on lines that leave room for the picture; dollars in it are not mathematics."""
    return textwrap.fill(name, 28, max_lines=4, placeholder=" ...").replace("$", r"\$")


def _beside(measure: Measure, number: int) -> str:
    """A model's value, its difference to the first, and what can be said of that."""
    value, error = measure.values[number], measure.errors[number]
    own = f"{value:.4f}" + (f" ± {error:.4f}" if error is not None else "")
    one = measure.difference(number)
    if number == 0:
        return f"{own}   (the first)"
    paired = f" ± {one.error:.4f}" if one.error is not None else ""
    return f"{own}   {one.value:+.4f}{paired}, {one.words}"
