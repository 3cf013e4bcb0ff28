"""How long the package takes to be there: imports, help, and the first text.

    PYTHONPATH=src python benchmarks/import_time.py [--against OTHER/src] [--turns 9] [--out import_time.json]

Each row is a process of its own, the first a bare Python. `milliseconds`, `least`: median and least of the turns.
`--against`: the source folder of another state of the code, which takes turns with this one; `against` and
`least_against` are its times, `ratio` is the median over turns of its time by this one's.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

SRC = Path(__file__).resolve().parents[1] / "src"
HDLM = [sys.executable, "-m", "hdlm"]
ROWS = {
    "a bare Python": [sys.executable, "-c", "pass"],
    "import torch": [sys.executable, "-c", "import torch"],
    "import hdlm": [sys.executable, "-c", "import hdlm"],
    "hdlm.Block(8, 4)": [sys.executable, "-c", "import hdlm; hdlm.Block(8, 4)"],
    "hdlm.load('stories')": [sys.executable, "-c", "import hdlm; hdlm.load('stories')"],
    "hdlm --help": [*HDLM, "--help"],
    "hdlm --version": [*HDLM, "--version"],
    "hdlm sample --help": [*HDLM, "sample", "--help"],
    "hdlm evaluate --help": [*HDLM, "evaluate", "--help"],
    "hdlm sample stories --length 8": [*HDLM, "sample", "stories", "--length", "8", "--seed", "1"],
}


def milliseconds(command: list[str], source: Path) -> float:
    """Of one process that finds hdlm in `source`."""
    env = os.environ | {"PYTHONPATH": str(source)}
    begun = time.perf_counter()
    subprocess.run(command, env=env, check=True, capture_output=True)
    return 1000 * (time.perf_counter() - begun)


def measured(command: list[str], sources: list[Path], turns: int) -> dict:
    """Medians of `turns` after one that fills the disk's cache, the sources taking turns."""
    times = [[milliseconds(command, source) for source in sources] for _ in range(turns + 1)][1:]
    own = [turn[0] for turn in times]
    found = {"milliseconds": statistics.median(own), "least": min(own)}
    if len(sources) > 1:
        other = [turn[1] for turn in times]
        found |= {"against": statistics.median(other), "least_against": min(other)}
        found["ratio"] = statistics.median(b / a for a, b in zip(own, other, strict=True))
    return found


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, metavar="SRC")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    sources = [SRC, *([args.against.resolve()] if args.against else [])]
    found = {"python": sys.version.split()[0], "turns": args.turns, "rows": {}}
    for name, command in ROWS.items():
        row = found["rows"][name] = measured(command, sources, args.turns)
        print(f"{name:<32}" + "  ".join(f"{word} {value:8.2f}" for word, value in row.items()), flush=True)
    if args.out is not None:
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
