"""The same pictures in a terminal, through rich: colour where there is colour, signs that differ where not."""

from collections.abc import Iterable, Sequence

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.text import Text
from torch import Tensor

from hdlm.theory.hyperschedule import Hyperschedule
from hdlm.theory.layout import SETTLED
from hdlm.viz import style
from hdlm.viz.hyperschedule import Catalogue
from hdlm.viz.layout import Picture

_FATES = (
    ("··", f"black on {style.ORIGINAL}"),
    ("~~", f"black on {style.ALTERED}"),
    ("▒▒", f"#9aa3b2 on {style.MASKED}"),
)
_CELLS = (  # FORBIDDEN, READS_SETTLED, READS_WINDOW, NEVER_READ
    ("  ", "default"),
    ("░░", f"black on {style.SEES_SETTLED}"),
    ("██", f"{style.SEES_ACTIVE} on {style.SEES_ACTIVE}"),
    ("··", f"black on {style.UNREAD}"),
)


def hyperschedules(catalogue: Catalogue) -> RenderableType:
    """Heat maps side by side, then one row of panels per process, then what the signs mean."""
    parts = [_row("noise level", catalogue, [_heat(schedule) for schedule in catalogue.schedules.values()])]
    for name, states in catalogue.states.items():
        parts.append(_row(name, catalogue, [_grid(_FATES, catalogue.fate(state)) for state in states]))
    sentence = Text("the sentence, position by position: " + " ".join(catalogue.sentence), style="dim")
    legend = _legend(zip(_FATES, ("original", "altered", "MASK"), strict=True))
    return Group(*parts, sentence, legend.append("rows: steps, noise above, text below", "dim"))


def _row(name: str, catalogue: Catalogue, pictures: Sequence[Text]) -> RenderableType:
    titles = [title.split(",")[0].split(" (")[0] for title in catalogue.schedules]
    panels = [
        Group(Text(title, style="bold", overflow="ellipsis", no_wrap=True), picture)
        for title, picture in zip(titles, pictures, strict=True)
    ]
    width = max(2 * len(catalogue.sentence), *map(len, titles))
    fits = width + 2 <= Console().width
    arranged = Columns(panels, width=width, padding=(0, 2)) if fits else Group(*panels)
    return Group(Text(name, style="bold underline"), arranged, Text())


def _heat(schedule: Hyperschedule) -> Text:
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    shares = [level / schedule.max_level for level in range(schedule.max_level + 1)]
    colours = [f"{style.ink(share)} on {to_hex(colormaps[style.LEVEL_MAP](share))}" for share in shares]
    signs = [(f"{level:>2}" if level < 100 else "##", colour) for level, colour in enumerate(colours)]
    return _grid(signs, schedule.levels)


def _grid(signs: Sequence[tuple[str, str]], numbers: Tensor) -> Text:
    """A matrix of numbers, a sign for each."""
    return Text.assemble(*(part for row in numbers.tolist() for part in (*(signs[n] for n in row), "\n")))


def _legend(meanings: Iterable[tuple[tuple[str, str], str]]) -> Text:
    return Text.assemble(*(part for sign, label in meanings for part in (sign, f" {label}   ")))


def layouts(pictures: Sequence[Picture]) -> RenderableType:
    """Every mask as a block of two-character cells: rows outputs, columns inputs."""
    parts: list[RenderableType] = []
    for picture in pictures:
        lines = Text()
        lines.append(f"{picture.title}: {len(picture.layout)} slots\n", "bold")
        lines.append("     ")
        for slot, noisy in enumerate(picture.layout.noisy.tolist()):
            colour = f"white on {style.INPUT_ACTIVE}" if noisy else f"black on {style.INPUT_SETTLED}"
            lines.append(f"{picture.holds(slot):>2}", colour)
        lines.append("\n")
        for slot, row in enumerate(picture.cells()):
            active = bool(picture.layout.window[slot] != SETTLED)
            colour = f"white on {style.OUTPUT_ACTIVE}" if active else f"black on {style.OUTPUT_SETTLED}"
            lines.append(f" {picture.predicts(slot):>2} ", colour).append(" ")
            lines.append_text(_grid(_CELLS, row.unsqueeze(0)))
        parts.append(lines)
    labels = ("attends to a settled slot", "within its window", "read by no window")
    notes = Text("top: token held (dark: noisy); left: token predicted (× discarded); B: BOS", "dim")
    return Group(*parts, _legend(zip(_CELLS[1:], labels, strict=True)), notes)


def show(picture: RenderableType) -> None:
    """Print it here, cropped and never wrapped."""
    Console(highlight=False).print(picture, crop=True, no_wrap=True, overflow="crop")
