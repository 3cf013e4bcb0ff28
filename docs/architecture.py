"""Draw the house from its own imports: `python docs/architecture.py` writes docs/images/architecture.png.

Every box is a room of src/hdlm, with its files and lines; every arrow is an import that is really there, from the room
that imports to the one that is imported. An arrow that follows from two others is left out, and imports for type
checkers alone do not count. Reads the files as text and imports none of them.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

HERE = Path(__file__).parent
SOURCE = HERE.parent / "src" / "hdlm"

# Storeys from the ground up; the fast floor stands apart, since nothing rests on it.
STOREYS = [
    ["theory"],
    ["config", "nn", "objectives"],
    ["sampling", "data"],
    ["bundle", "interop", "backend"],
    ["evaluate", "train"],
    ["viz", "bench"],
    ["serve"],
    ["cli"],
]
ABOUT = {
    "theory": "noise, processes, hyperschedules,\nlayouts, readings; torch alone",
    "config": "plain data and what its\nwords stand for",
    "nn": "the denoiser, attention,\nthe cache",
    "objectives": "losses and which bound\nis whose",
    "sampling": "the reference loop, the rules,\nprompts and gaps",
    "data": "corpora, tokenizers,\nrows of tokens",
    "bundle": "a model with all\nthat it needs",
    "interop": "other people's\ncheckpoints",
    "backend": "the one chooser\nbetween the floors",
    "evaluate": "bounds, judges,\nsweeps, reports",
    "train": "the loop, optimisers,\ncheckpoints",
    "serve": "models over HTTP, and\nthe playground",
    "viz": "pictures, live view,\nreplay, demo",
    "bench": "times, the roofline,\nthe cost model",
    "cli": "one file a command",
    "fast": "planning ahead, CUDA graphs,\nkernels; equal to the ground floor",
}


def room(path: Path) -> str:
    """The room that a file belongs to."""
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those that only type checkers read."""
    for child in ast.iter_child_nodes(tree):
        if not (isinstance(child, ast.If) and getattr(child.test, "id", "") == "TYPE_CHECKING"):
            yield child
            yield from statements(child)


def arrows() -> Counter[tuple[str, str]]:
    """How many import statements of one room name another."""
    found: Counter[tuple[str, str]] = Counter()
    for path in SOURCE.rglob("*.py"):
        for node in statements(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("hdlm"):
                names = [node.module] if "." in node.module else [f"hdlm.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "import_module":
                names = [part.value for part in node.args if isinstance(part, ast.Constant)]
            for name in names:
                target = str(name).split(".")[1] if "." in str(name) else ""
                if target and target != room(path):
                    found[room(path), target] += 1
    return found


def needed(rooms: set[str]) -> list[tuple[str, str]]:
    """The arrows between these rooms that do not follow from two or more others pointing down."""
    found = {pair for pair in arrows() if set(pair) <= rooms}
    level = {name: number for number, names in enumerate(STOREYS) for name in names} | {"fast": len(STOREYS)}
    down = {pair for pair in found if level[pair[0]] > level[pair[1]]}

    def reaches(origin: str, target: str) -> bool:
        return (origin, target) in down or any(a == origin and reaches(b, target) for a, b in down)

    implied = {(a, c) for a, c in found for x, b in down if x == a and b != c and reaches(b, c)}
    return sorted(found - implied)


def draw() -> Figure:
    """The picture."""
    figure = Figure(figsize=(13, 1.3 * len(STOREYS) + 1.4))
    axes = figure.subplots()
    axes.set_xlim(0, 13)
    axes.set_ylim(0, 1.3 * len(STOREYS) + 1.5)
    axes.axis("off")
    boxes: dict[str, tuple[float, float]] = {}
    for level, names in enumerate(STOREYS):
        for place, name in enumerate(names):
            boxes[name] = (9.6 * (place + 0.5) / len(names), 0.75 + 1.5 * level)
    boxes["fast"] = (11.5, 5.2)
    for origin, target in needed(set(boxes)):
        fast = "fast" in (origin, target)
        up = not fast and boxes[origin][1] < boxes[target][1]
        style = {"color": "#c0392b" if fast else "#5d6b82", "linewidth": 1.1, "linestyle": "--" if up else "-"}
        bend = 0.12 if boxes[origin][1] != boxes[target][1] else 0.35
        axes.add_patch(
            FancyArrowPatch(
                boxes[origin],
                boxes[target],
                arrowstyle="-|>",
                mutation_scale=9,
                shrinkA=34,
                shrinkB=34,
                alpha=0.75,
                connectionstyle=f"arc3,rad={bend}",
                **style,
            )
        )
    for name, (x, y) in boxes.items():
        files = list((SOURCE / name).rglob("*.py")) or [SOURCE / f"{name}.py"]
        lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
        colour = "#fbe3df" if name == "fast" else "#e9f1f8" if name in ("theory", "nn", "sampling") else "#f6f4ef"
        axes.add_patch(
            FancyBboxPatch(
                (x - 1.2, y - 0.48),
                2.4,
                0.96,
                boxstyle="round,pad=0.06",
                facecolor=colour,
                edgecolor="#555f70",
                zorder=3,
            )
        )
        axes.text(x, y + 0.3, name, ha="center", va="center", fontsize=12, fontweight="bold", zorder=4)
        axes.text(x, y - 0.08, ABOUT[name], ha="center", va="center", fontsize=7.5, zorder=4)
        size = f"{len(files)} file{'s' * (len(files) > 1)}, {lines:,} lines"
        axes.text(x, y - 0.4, size, ha="center", va="center", fontsize=6.5, color="#666666", zorder=4)
    legend = [
        "A → B: A imports B; what follows from others is left out",
        "Dashed: upwards, when it is asked for",
        "Red: the fast floor",
    ]
    axes.text(8.6, 10.4, "\n".join(legend), fontsize=9, va="top")
    return figure


if __name__ == "__main__":
    draw().savefig(HERE / "images" / "architecture.png", dpi=110, bbox_inches="tight", facecolor="white")
    print(f"wrote {HERE / 'images' / 'architecture.png'}")
