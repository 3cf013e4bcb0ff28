"""The paper's figures 6 to 9: who attends to whom in one training pass, aligned and shifted, slide and block."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hdlm.theory.entries import Block
from hdlm.theory.layout import BOS, NOTHING, PADDING, SETTLED, Layout, build_layout
from hdlm.viz import style

SLIDE_STARTS = (2, 5, 11)  # of the paper's figures, d = 12, width 4

FORBIDDEN, READS_SETTLED, READS_WINDOW, NEVER_READ = range(4)


@dataclass(frozen=True)
class Picture:
    """One panel: a layout and its title."""

    title: str
    layout: Layout

    def cells(self) -> Tensor:
        """What each cell [slots, slots] of the mask is: FORBIDDEN, READS_SETTLED, READS_WINDOW or NEVER_READ.

        A settled slot that no window reads, directly or through others, could be left out: NEVER_READ.
        """
        layout, mask = self.layout, self.layout.mask()
        settled = layout.window == SETTLED
        needed = ~settled | mask[~settled].any(0)
        kind = torch.where(settled.unsqueeze(0), READS_SETTLED, READS_WINDOW).expand_as(mask)
        kind = torch.where(needed.unsqueeze(1), kind, NEVER_READ)
        return torch.where(mask, kind, FORBIDDEN)

    def holds(self, slot: int) -> str:
        """What a slot is given, for a reader."""
        token = int(self.layout.holds[slot])
        return {BOS: "B", PADDING: "–"}.get(token, str(token))

    def predicts(self, slot: int) -> str:
        """What a slot's output is for, for a reader."""
        token = int(self.layout.predicts[slot])
        return "×" if token == NOTHING else str(token)


def build_pictures(length: int = 12, width: int = 4, starts: Sequence[int] | None = None) -> list[Picture]:
    """The four training masks; `starts` are the windows' first positions for slide (default: the paper's)."""
    block = Block(length, width).training_windows()
    if starts is None:
        starts = SLIDE_STARTS if (length, width) == (12, 4) else range(width // 2, length, width)
    slide = [(start, min(start + width, length)) for start in starts]
    return [
        Picture(f"{alignment}, {name}, ω = {width}", build_layout(length, windows, shifted=alignment == "shifted"))
        for alignment in ("aligned", "shifted")
        for name, windows in (("slide", slide), ("block", block))
    ]


def draw(pictures: Sequence[Picture]):
    """An even number of masks as a matplotlib figure, two to a row."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    rows = len(pictures) // 2
    figure = Figure(figsize=(15, 7.4 * rows + 0.6))
    grid = figure.subplots(rows, 2, squeeze=False, gridspec_kw={"wspace": 0.12, "hspace": 0.14})
    for axes, picture in zip(grid.flat, pictures, strict=True):
        _draw_panel(axes, picture)
    handles = [Patch(facecolor=colour, edgecolor="#888888", label=label) for colour, label in _LEGEND]
    figure.legend(handles=handles, loc="lower center", ncols=4, fontsize=11, frameon=False, bbox_to_anchor=(0.5, 0.035))
    return figure


_LEGEND = (
    (style.INPUT_SETTLED, "input: settled (clean) token"),
    (style.INPUT_ACTIVE, "input: active (noisy) token"),
    (style.OUTPUT_SETTLED, "output for a settled token"),
    (style.OUTPUT_ACTIVE, "output for an active token"),
    (style.SEES_SETTLED, "attends to a settled slot"),
    (style.SEES_ACTIVE, "attends within its window"),
    (style.UNREAD, "read by no window: may be left out"),
    ("white", "may not attend;  × output discarded;  B = BOS"),
)


def _draw_panel(axes, picture: Picture) -> None:
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Rectangle

    slots = len(picture.layout)
    colours = ListedColormap(["white", style.SEES_SETTLED, style.SEES_ACTIVE, style.UNREAD])
    axes.imshow(picture.cells().numpy(), cmap=colours, vmin=0, vmax=3, interpolation="nearest")
    size = min(9.0, 200 / slots)
    for slot in range(slots):
        noisy = bool(picture.layout.noisy[slot])
        active = bool(picture.layout.window[slot] != SETTLED)
        discarded = bool(picture.layout.predicts[slot] == NOTHING)
        input_colour = style.INPUT_ACTIVE if noisy else style.INPUT_SETTLED
        output_colour = "white" if discarded else style.OUTPUT_ACTIVE if active else style.OUTPUT_SETTLED
        for corner, colour, text, light in (
            ((slot - 0.5, -2.0), input_colour, picture.holds(slot), noisy),
            ((-2.0, slot - 0.5), output_colour, picture.predicts(slot), active and not discarded),
        ):
            axes.add_patch(Rectangle(corner, 1, 1, facecolor=colour, edgecolor="white", clip_on=False))
            middle = (corner[0] + 0.5, corner[1] + 0.5)
            axes.text(*middle, text, ha="center", va="center", fontsize=size, color="white" if light else "black")
    edges = [slot + 0.5 for slot in range(slots - 1)]
    for edge, window, after in zip(edges, picture.layout.window, picture.layout.window[1:], strict=False):
        if window != after:
            axes.axhline(edge, color="#555555", linewidth=0.9)
            axes.axvline(edge, color="#555555", linewidth=0.9)
    axes.set(xticks=edges, yticks=edges, xlim=(-2.1, slots - 0.5), ylim=(slots - 0.5, -2.1))
    axes.grid(color="#e4e4e4", linewidth=0.5)
    axes.tick_params(length=0, labelbottom=False, labelleft=False)
    axes.spines[:].set_visible(False)
    axes.set_title(f"{picture.title}: {slots} slots", fontsize=13, fontweight="bold", pad=26)
    axes.text(slots / 2, -2.45, "each slot's input: the token it holds", ha="center", va="bottom", fontsize=10)
    axes.set_ylabel("each slot's output: the token it predicts", fontsize=10)
