"""Colours and saving, shared by all pictures. The colours stay apart for colour-blind readers and in grey."""

from pathlib import Path
from typing import TYPE_CHECKING

from hdlm.files import written_aside

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEVEL_MAP = "RdYlBu_r"  # blue clean, red full noise

# What has become of a token (the paper's figure 2).
MASKED, ALTERED, ORIGINAL = "#3d4451", "#e69f00", "#a8d8f0"

# Attention masks (the paper's figures 6 to 9): inputs red, outputs blue, light settled, dark active.
INPUT_SETTLED, INPUT_ACTIVE = "#f4b6a6", "#c0392b"
OUTPUT_SETTLED, OUTPUT_ACTIVE = "#a9cce3", "#1f5f99"
SEES_SETTLED, SEES_ACTIVE, UNREAD = "#d9d3e8", "#5b4a8a", "#cfe8c9"

SUFFIXES = (".png", ".svg", ".pdf")


def ink(share: float) -> str:
    """What can be read on a share of full noise, both ends of whose colours are dark."""
    return "white" if share > 0.85 or share < 0.12 else "black"


def check_picture_path(path: str | Path) -> Path:
    """`path` as a Path, refused unless its suffix is one that pictures are written in."""
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{str(path)!r} is not accepted: a picture's name must end in one of {', '.join(SUFFIXES)}")
    return path


def save(figure: "Figure", path: str | Path) -> Path:
    """Write the figure; the suffix chooses the format."""
    path = check_picture_path(path)
    with written_aside(path) as aside:
        figure.savefig(aside, dpi=120, bbox_inches="tight", facecolor="white")
    return path
