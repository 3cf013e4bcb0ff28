"""Two pictures of sampling: time against length, and tokens per second against rate."""

from collections import defaultdict
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from hdlm.bench.sampling import SampleRow
from hdlm.viz.style import save

Lines = dict[str, list[tuple[float, float]]]


def plot_growth(rows: list[SampleRow], path: Path) -> None:
    """Seconds for a text against its length: a line that rises by 1 is linear, by 2 quadratic."""
    lines: Lines = defaultdict(list)
    for row in rows:
        lines[row.label].append((row.length, row.seconds))
    _plot(lines, path, xlabel="tokens a sample", ylabel=f"seconds for {rows[0].samples} samples")


def plot_rates(rows: list[SampleRow], path: Path) -> None:
    """Tokens per second against the schedule's rate, a line a process."""
    lines: Lines = defaultdict(list)
    for row in rows:
        name, mark, rate = row.label.rpartition(", rate ")
        if mark:
            lines[name].append((float(rate), row.tokens_per_s))
    level = next((row.tokens_per_s for row in rows if row.label == "AR"), None)
    _plot(lines, path, level, xlabel="rate (tokens a step)", ylabel="tokens per second, all samples")


def _plot(lines: Lines, path: Path, autoregression: float | None = None, **names: str) -> None:
    """Both axes in powers, with plain numbers, those below at what was measured; dashed is without a cache."""
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    for label, points in lines.items():
        style = "--" if "no cache" in label else "-"
        axes.plot(*zip(*points, strict=True), style, marker="o", markersize=4, label=label)
    if autoregression is not None:
        axes.axhline(autoregression, color="gray", linewidth=1, label="autoregression")
    axes.set(xscale="log", yscale="log", **names)
    ticks = sorted({x for points in lines.values() for x, _ in points})
    axes.set_xticks(ticks, [f"{value:,g}" for value in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.legend(frameon=False)
    save(figure, path)
