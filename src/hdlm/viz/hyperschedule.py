"""The paper's figure 2: hyperschedules as heat maps, and under each what noise does to a sentence.

A sentence's path is one exact draw given the sentence: full noise first, then each step from the posterior that knows
the answer.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hdlm.config.levels import read_levels
from hdlm.theory.absorbing import Absorbing
from hdlm.theory.custom import Custom
from hdlm.theory.entries import Block, Flat, Quench, Slide
from hdlm.theory.gamma_hybrid import GammaHybrid
from hdlm.theory.hyperschedule import Hyperschedule
from hdlm.theory.process import Process
from hdlm.theory.random import Source
from hdlm.theory.uniform import Uniform
from hdlm.viz import style

MAX_LABELLED = 16  # positions beyond which words no longer fit their cells
SENTENCE = "the old clock on the wall stopped at noon"
# What altered words are drawn from, besides the sentence's own: short, so that they fit a cell.
WORDS = """
    tree river blue moon cat seven rain open salt music fire wind stone green paper bread light
    ship cold dance cloud honey glass north winter apple yes over gold run small deep
""".split()  # noqa: SIM905, a sentence reads better than a list


@dataclass(frozen=True)
class Catalogue:
    """All that the picture shows: schedules by title, and for each process the states under each schedule."""

    sentence: list[str]
    words: list[str]
    x0: Tensor
    schedules: dict[str, Hyperschedule]
    states: dict[str, list[Tensor]]

    def fate(self, state: Tensor) -> Tensor:
        """0 original, 1 altered, 2 MASK, of the shape of `state` [steps + 1, length]."""
        return torch.where(state == len(self.words), 2, (state != self.x0).long())

    def labels(self, state: Tensor) -> list[list[tuple[str, str]]]:
        """The words of `state`, each with its ink."""
        labels = [*((word, "black") for word in self.words), ("mask", "#9aa3b2")]
        return [[labels[token] for token in row] for row in state.tolist()]


def sentence_of(text: str | None, length: int | None) -> list[str]:
    """The words of `text` (or of SENTENCE), repeated or cut to `length` where one is given."""
    words = (text if text is not None else SENTENCE).split()
    if not words:
        raise ValueError(f"text = {text!r} is not accepted: it must hold at least one word")
    count = len(words) if length is None else length
    return [words[i % len(words)] for i in range(count)]


def noising(process: Process, schedule: Hyperschedule, x0: Tensor, *, generator: Source = None) -> Tensor:
    """States [steps + 1, length] from full noise to x0 [length], one exact draw of the process given x0."""
    p0 = torch.nn.functional.one_hot(x0, process.vocab_size).double()
    times = schedule.levels.double() / schedule.max_level
    states = [process.corrupt(x0, times[0], generator=generator)]
    for t, s in itertools.pairwise(times):
        states.append(process.sample_posterior(states[-1], p0, s=s, t=t, generator=generator))
    return torch.stack(states)


def title(schedule: Hyperschedule) -> str:
    """One line: kind, width where it is not the whole length, and rate."""
    if schedule.autoregressive:
        return f"{schedule.kind} (autoregressive)"
    width = f", ω = {schedule.width}" if schedule.width < schedule.length else ""
    return f"{schedule.kind}{width}, ρ = {schedule.rate:.3g}"


def build_schedules(length: int, width: int, rate: float) -> list[Hyperschedule]:
    """The paper's four, for one length."""
    return [Quench(length), Flat(length, rate), Block(length, width, rate), Slide(length, width, rate)]


def build_catalogue(
    sentence: list[str], schedules: Sequence[Hyperschedule], *, gamma: float = 0.3, seed: int = 0
) -> Catalogue:
    """Draw the noising of `sentence` by three processes under every schedule."""
    words = list(dict.fromkeys([*sentence, *WORDS]))
    n, x0 = len(words), torch.tensor([words.index(word) for word in sentence])
    hybrid = f"hybrid, γ = {gamma:g}"
    processes: dict[str, Process] = {"absorb": Absorbing(n), "uniform": Uniform(n), hybrid: GammaHybrid(n, gamma)}
    states = {
        name: [
            noising(process, schedule, x0, generator=torch.Generator().manual_seed(seed + column))
            for column, schedule in enumerate(schedules)
        ]
        for name, process in processes.items()
    }
    return Catalogue(sentence, words, x0, {title(s): s for s in schedules}, states)


def draw(catalogue: Catalogue):
    """The picture as a matplotlib figure: one column per schedule, one row of panels per process."""
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    length = len(catalogue.sentence)
    rows = max(schedule.steps for schedule in catalogue.schedules.values()) + 1
    cell_width, cell_height = min(0.25, 5 / length), min(0.12, 4 / rows)
    if length <= MAX_LABELLED:
        cell_width, cell_height = max(0.5, 2.4 / length), 0.22
    columns, height = len(catalogue.schedules), 4 * (rows * cell_height + 0.25) + 1.5
    figure = Figure(figsize=(columns * (length * cell_width + 0.3) + 1.4, height))
    figure.subplots_adjust(bottom=1.0 / height, top=1 - 0.5 / height)
    grid = figure.subplots(4, columns, squeeze=False, gridspec_kw={"wspace": 0.06, "hspace": 0.07})
    fates = ListedColormap([style.ORIGINAL, style.ALTERED, style.MASKED])

    for column, (name, schedule) in enumerate(catalogue.schedules.items()):
        top, most = grid[0, column], schedule.max_level
        top.set_title(f"({chr(97 + column)}) {name}", fontsize=11, fontweight="bold")
        numbers = [[(str(level), style.ink(level / most)) for level in row] for row in schedule.levels.tolist()]
        _draw_cells(top, schedule.levels / most, style.LEVEL_MAP, numbers, 7.0, cell_width)
        for row, states in enumerate(catalogue.states.values(), start=1):
            words = catalogue.labels(states[column])
            _draw_cells(grid[row, column], catalogue.fate(states[column]) / 2, fates, words, 8.0, cell_width)
        for row in range(4):
            _finish(grid[row, column], length, schedule.steps + 1, rows, first=column == 0, last=row == 3)

    for row, name in enumerate(["noise level", *catalogue.states]):
        grid[row, 0].set_ylabel(f"({row + 1}) {name}\ngeneration step", fontsize=10)
    bar = figure.colorbar(grid[0, -1].images[0], cax=grid[0, -1].inset_axes((1.03, 0.0, 0.035, 1.0)))
    bar.set_ticks([0, 1], labels=["clean", "full\nnoise"])
    patches = [Patch(color=c, label=label) for c, label in _LEGEND]
    below = (0.5, 0.1 / height)
    figure.legend(handles=patches, loc="lower center", ncols=3, fontsize=11, frameon=False, bbox_to_anchor=below)
    return figure


_LEGEND = (
    (style.MASKED, "MASK: known to be unknown"),
    (style.ALTERED, "altered: another word than in the sentence"),
    (style.ORIGINAL, "original word"),
)


def _draw_cells(
    axes, values: Tensor, colours, labels: list[list[tuple[str, str]]], size: float, cell_width: float
) -> None:
    """Cells of values in [0, 1], and where there is room the label and its ink in each."""
    axes.imshow(values.numpy(), cmap=colours, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    for step, row in enumerate(labels if values.shape[1] <= MAX_LABELLED else []):
        for i, (label, ink) in enumerate(row):
            fitting = min(size, cell_width * 72 / (0.7 * max(len(label), 4)))
            axes.text(i, step, label, ha="center", va="center", fontsize=fitting, color=ink, parse_math=False)


def _finish(axes, length: int, height: int, rows: int, *, first: bool, last: bool) -> None:
    """Cells outlined, positions counted below, steps on the left, every panel of a row equally tall."""
    axes.set(xlim=(-0.5, length - 0.5), ylim=(rows - 0.5, -0.5))
    if length <= MAX_LABELLED:
        axes.set_xticks([i - 0.5 for i in range(length + 1)], minor=True)
        axes.set_yticks([i - 0.5 for i in range(height + 1)], minor=True)
        axes.grid(which="minor", color="white", linewidth=1.0)
    axes.tick_params(which="both", length=0, labelsize=8, labelleft=first, labelbottom=last)
    axes.set_yticks(range(0, height, max(1, rows // 12)))
    axes.set_xticks(range(0, length, max(1, length // 12)))
    axes.set_xlabel("position" if last else "", fontsize=10)
    axes.spines[:].set_visible(False)


def load_custom(path: str) -> Custom:
    """A `Custom` schedule from a JSON file that holds its matrix of levels, or an object with the key "levels"."""
    return Custom(read_levels(path))
