"""Two pictures of sampling: time against length, and tokens per second against rate."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from hdlm.bench.sampling import SampleRow
from hdlm.plots.style import save


def plot_growth(rows: list[SampleRow], path: Path) -> None:
    """Seconds for a text against its length, both axes in powers: slope 1 is linear, 2 quadratic."""
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    for label in dict.fromkeys(row.label for row in rows):
        own = [row for row in rows if row.label == label]
        style = "--" if "no cache" in label else "-"
        axes.plot(
            [row.length for row in own], [row.seconds for row in own], style, marker="o", markersize=4, label=label
        )
    axes.set(xscale="log", yscale="log", xlabel="tokens a sample", ylabel=f"seconds for {rows[0].samples} samples")
    _plain_ticks(axes, sorted({row.length for row in rows}))
    axes.legend(frameon=False)
    save(figure, path)


def plot_rates(rows: list[SampleRow], path: Path) -> None:
    """Tokens per second against the schedule's rate, a line a process."""
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    rated = [(row, *row.label.rsplit(", rate ", 1)) for row in rows if ", rate " in row.label]
    for name in dict.fromkeys(name for _, name, _ in rated):
        own = [(float(rate), row.tokens_per_s) for row, other, rate in rated if other == name]
        axes.plot(*zip(*own, strict=True), "-", marker="o", markersize=4, label=name)
    for row in rows:
        if row.label == "AR":
            axes.axhline(row.tokens_per_s, color="gray", linewidth=1, label="autoregression")
    axes.set(xscale="log", yscale="log", xlabel="rate (tokens a step)", ylabel="tokens per second, all samples")
    _plain_ticks(axes, sorted({float(rate) for _, _, rate in rated}))
    axes.legend(frameon=False)
    save(figure, path)


def _plain_ticks(axes: Axes, values: list[float]) -> None:
    """Numbers as they are on both axes, those below at the measured places."""
    axes.set_xticks(values, [f"{value:,g}" for value in values])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
