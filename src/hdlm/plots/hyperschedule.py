"""The paper's figure 2: hyperschedules as heat maps, and under each what noise does to a sentence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hdlm.plots import style
from hdlm.plots.trajectory import Vocabulary, noising
from hdlm.theory.absorbing import Absorbing
from hdlm.theory.gamma_hybrid import GammaHybrid
from hdlm.theory.hyperschedule import Block, Custom, Flat, Hyperschedule, Quench, Slide
from hdlm.theory.process import Process
from hdlm.theory.uniform import Uniform

MAX_LABELLED = 16  # positions beyond which words no longer fit their cells


@dataclass(frozen=True)
class Catalogue:
    """All that the picture shows: schedules by title, and for each process the states under each schedule."""

    sentence: list[str]
    words: list[str]
    schedules: dict[str, Hyperschedule]
    states: dict[str, list[Tensor]]

    def fate(self, state: Tensor) -> Tensor:
        """0 original, 1 altered, 2 MASK, of the shape of `state` [steps + 1, length]."""
        clean = Vocabulary(self.words).ids(self.sentence)
        return torch.where(state == len(self.words), 2, (state != clean).long())


def title(schedule: Hyperschedule) -> str:
    """One line: name, width and rate."""
    name = type(schedule).__name__.lower()
    if isinstance(schedule, Quench):
        return f"{name} (autoregressive)"
    width = "" if isinstance(schedule, Flat) else f", ω = {schedule.width}"
    return f"{name}{width}, ρ = {schedule.rate:.3g}"


def build_schedules(length: int, width: int, rate: float) -> list[Hyperschedule]:
    """The paper's four, for one length."""
    return [Quench(length), Flat(length, rate), Block(length, width, rate), Slide(length, width, rate)]


def build_catalogue(
    sentence: Sequence[str], schedules: Sequence[Hyperschedule], *, gamma: float = 0.3, seed: int = 0
) -> Catalogue:
    """Draw the noising of `sentence` by three processes under every schedule."""
    vocabulary = Vocabulary.of(list(sentence))
    n, x0 = len(vocabulary.words), vocabulary.ids(list(sentence))
    processes: Mapping[str, Process] = {
        "absorb": Absorbing(n),
        "uniform": Uniform(n),
        f"hybrid, γ = {gamma:g}": GammaHybrid(n, gamma),
    }
    states = {
        name: [
            noising(process, schedule, x0, generator=torch.Generator().manual_seed(seed + column))
            for column, schedule in enumerate(schedules)
        ]
        for name, process in processes.items()
    }
    return Catalogue(list(sentence), vocabulary.words, {title(s): s for s in schedules}, states)


def draw(catalogue: Catalogue):
    """The picture as a matplotlib figure: one column per schedule, one row of panels per process."""
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    length = len(catalogue.sentence)
    rows = max(schedule.steps for schedule in catalogue.schedules.values()) + 1
    labelled = length <= MAX_LABELLED
    cell_width, cell_height = (
        (max(0.5, 2.4 / length), 0.22) if labelled else (min(0.25, 5 / length), min(0.12, 4 / rows))
    )
    columns = len(catalogue.schedules)
    panel = (length * cell_width, rows * cell_height)
    height = 4 * (panel[1] + 0.25) + 1.5
    figure = Figure(figsize=(columns * (panel[0] + 0.3) + 1.4, height))
    figure.subplots_adjust(bottom=1.0 / height, top=1 - 0.5 / height)
    grid = figure.subplots(4, columns, squeeze=False, gridspec_kw={"wspace": 0.06, "hspace": 0.07})
    fates = ListedColormap([style.ORIGINAL, style.ALTERED, style.MASKED])
    heat = None

    for column, (name, schedule) in enumerate(catalogue.schedules.items()):
        top = grid[0, column]
        relative = schedule.levels.double() / schedule.max_level
        heat = top.imshow(
            relative.numpy(), cmap=style.LEVEL_MAP, vmin=0, vmax=1, aspect="auto", interpolation="nearest"
        )
        top.set_title(f"({chr(97 + column)}) {name}", fontsize=11, fontweight="bold")
        if labelled:
            for step, i in torch.cartesian_prod(torch.arange(schedule.steps + 1), torch.arange(length)).tolist():
                dark = relative[step, i] > 0.85 or relative[step, i] < 0.12
                colour = "white" if dark else "black"
                top.text(i, step, str(schedule.levels[step, i].item()), **_centred(7, colour))
        for row, states in enumerate(catalogue.states.values(), start=1):
            fate = catalogue.fate(states[column])
            grid[row, column].imshow(fate.numpy(), cmap=fates, vmin=0, vmax=2, aspect="auto", interpolation="nearest")
            if labelled:
                _write_words(grid[row, column], catalogue, states[column], fate, cell_width)
        for row in range(4):
            _finish(grid[row, column], length, schedule.steps + 1, rows, first=column == 0, last=row == 3)

    for row, name in enumerate(["noise level", *catalogue.states]):
        grid[row, 0].set_ylabel(f"({row + 1}) {name}\ngeneration step", fontsize=10)
    assert heat is not None
    bar = figure.colorbar(heat, cax=grid[0, -1].inset_axes((1.03, 0.0, 0.035, 1.0)))
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


def _centred(size: float, colour: str) -> dict:
    return {"ha": "center", "va": "center", "fontsize": size, "color": colour, "parse_math": False}


def _write_words(axes, catalogue: Catalogue, states: Tensor, fate: Tensor, cell_width: float) -> None:
    for step, i in torch.cartesian_prod(torch.arange(states.shape[0]), torch.arange(states.shape[1])).tolist():
        masked = bool(fate[step, i] == 2)
        word = "mask" if masked else catalogue.words[int(states[step, i])]
        size = min(8.0, cell_width * 72 / (0.7 * max(len(word), 4)))
        axes.text(i, step, word, **_centred(size, "#9aa3b2" if masked else "black"))


def _finish(axes, length: int, height: int, rows: int, *, first: bool, last: bool) -> None:
    """Cells outlined, positions counted below, steps on the left, every panel of a row equally tall."""
    axes.set_xlim(-0.5, length - 0.5)
    axes.set_ylim(rows - 0.5, -0.5)
    if length <= MAX_LABELLED:
        axes.set_xticks([i - 0.5 for i in range(length + 1)], minor=True)
        axes.set_yticks([i - 0.5 for i in range(height + 1)], minor=True)
        axes.grid(which="minor", color="white", linewidth=1.0)
    axes.tick_params(which="both", length=0, labelsize=8)
    stride = max(1, rows // 12)
    axes.set_yticks(range(0, height, stride))
    axes.set_xticks(range(0, length, max(1, length // 12)))
    if not first:
        axes.set_yticklabels([])
    if last:
        axes.set_xlabel("position", fontsize=10)
    else:
        axes.set_xticklabels([])
    for spine in axes.spines.values():
        spine.set_visible(False)


def load_custom(path: str) -> Custom:
    """A `Custom` schedule from a JSON file that holds its matrix of levels, or an object with the key "levels"."""
    import json

    try:
        with open(path, encoding="utf-8") as file:
            data: Any = json.load(file)
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    levels = data.get("levels") if isinstance(data, dict) else data
    if not isinstance(levels, list):
        raise ValueError(f'{path} is not accepted: it must hold a matrix of levels, or an object with the key "levels"')
    return Custom(levels)
