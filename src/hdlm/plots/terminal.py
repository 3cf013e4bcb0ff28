"""The same pictures in a terminal, through rich: colour where there is colour, signs that differ where not."""

from collections.abc import Callable, Sequence

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.text import Text
from torch import Tensor

from hdlm.plots import layout as layout_plot
from hdlm.plots import style
from hdlm.plots.hyperschedule import Catalogue
from hdlm.theory.layout import SETTLED

_FATES = (
    ("··", f"black on {style.ORIGINAL}"),
    ("~~", f"black on {style.ALTERED}"),
    ("▒▒", f"#9aa3b2 on {style.MASKED}"),
)
_CELLS = {
    layout_plot.FORBIDDEN: ("  ", "default"),
    layout_plot.READS_SETTLED: ("░░", f"black on {style.SEES_SETTLED}"),
    layout_plot.READS_WINDOW: ("██", f"{style.SEES_ACTIVE} on {style.SEES_ACTIVE}"),
    layout_plot.NEVER_READ: ("··", f"black on {style.UNREAD}"),
}


def hyperschedules(catalogue: Catalogue, *, words: bool = True) -> RenderableType:
    """Heat maps side by side, then one row of panels per process, then what the signs mean."""
    parts: list[RenderableType] = [_row("noise level", catalogue, lambda column: _heat(catalogue, column))]
    for name, states in catalogue.states.items():
        parts.append(_row(name, catalogue, lambda column, states=states: _fates(catalogue, states[column])))
    if words:
        parts.append(Text("the sentence, position by position: " + " ".join(catalogue.sentence), style="dim"))
    legend = Text()
    for (sign, colours), label in zip(_FATES, ("original", "altered", "MASK"), strict=True):
        legend.append(sign, colours).append(f" {label}   ")
    parts.append(legend.append("rows: steps, noise above, text below", "dim"))
    return Group(*parts)


def _row(name: str, catalogue: Catalogue, panel: Callable[[int], Text]) -> RenderableType:
    panels = [
        Group(Text(title, style="bold", overflow="ellipsis", no_wrap=True), panel(column))
        for column, title in enumerate(_short_titles(catalogue))
    ]
    width = max(2 * len(catalogue.sentence), max(len(title) for title in _short_titles(catalogue)))
    fits = width + 2 <= Console().width
    arranged = Columns(panels, width=width, padding=(0, 2)) if fits else Group(*panels)
    return Group(Text(name, style="bold underline"), arranged, Text())


def _short_titles(catalogue: Catalogue) -> list[str]:
    return [title.split(",")[0].split(" (")[0] for title in catalogue.schedules]


def _heat(catalogue: Catalogue, column: int) -> Text:
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    schedule = list(catalogue.schedules.values())[column]
    heat = colormaps[style.LEVEL_MAP]
    lines = Text()
    for row in schedule.levels.tolist():
        for level in row:
            share = level / schedule.max_level
            ink = "white" if share > 0.85 or share < 0.12 else "black"
            lines.append(f"{level:>2}" if level < 100 else "##", f"{ink} on {to_hex(heat(share))}")
        lines.append("\n")
    return lines


def _fates(catalogue: Catalogue, states: Tensor) -> Text:
    lines = Text()
    for row in catalogue.fate(states).tolist():
        for fate in row:
            lines.append(*_FATES[fate])
        lines.append("\n")
    return lines


def layouts(pictures: Sequence[layout_plot.Picture]) -> RenderableType:
    """Every mask as a block of two-character cells: rows outputs, columns inputs."""
    parts: list[RenderableType] = []
    for picture in pictures:
        lines = Text()
        lines.append(f"{picture.title}: {len(picture.layout)} slots\n", "bold")
        lines.append("     ")
        for slot in range(len(picture.layout)):
            noisy = bool(picture.layout.noisy[slot])
            colour = f"white on {style.INPUT_ACTIVE}" if noisy else f"black on {style.INPUT_SETTLED}"
            lines.append(f"{picture.holds(slot):>2}", colour)
        lines.append("\n")
        for slot, row in enumerate(picture.cells().tolist()):
            active = bool(picture.layout.window[slot] != SETTLED)
            colour = f"white on {style.OUTPUT_ACTIVE}" if active else f"black on {style.OUTPUT_SETTLED}"
            lines.append(f" {picture.predicts(slot):>2} ", colour).append(" ")
            for cell in row:
                lines.append(*_CELLS[cell])
            lines.append("\n")
        parts.append(lines)
    legend = Text()
    for kind, label in (
        (layout_plot.READS_SETTLED, "attends to a settled slot"),
        (layout_plot.READS_WINDOW, "within its window"),
        (layout_plot.NEVER_READ, "read by no window"),
    ):
        legend.append(*_CELLS[kind]).append(f" {label}   ")
    parts.append(legend)
    parts.append(Text("top: token held (dark: noisy); left: token predicted (× discarded); B: BOS", "dim"))
    return Group(*parts)


def show(picture: RenderableType) -> None:
    """Print it here, cropped and never wrapped."""
    Console(highlight=False).print(picture, crop=True, no_wrap=True, overflow="crop")
