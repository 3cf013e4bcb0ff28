"""How far a reader must walk to follow one step: files entered, calls from one file into another, lines of those files.

    PYTHONPATH=src python benchmarks/trace.py [--out benchmarks/results/trace.json]

One sampling step of the shipped model, between two passes of the network, and one training step of the recipe
`laptop`'s network, on either floor. `--out` adds the figures to a file under this tree's commit, beside those of other
commits, and all of them are printed. The script runs on older trees too: set PYTHONPATH to their src.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hdlm

ROOT = Path(hdlm.__file__).parent
NEW = (ROOT / "backend.py").exists()
MARK = "embed"  # every pass of the network begins with it


def followed(work: Callable[[], object], begins: Callable[[str, str], bool]) -> list[tuple[str, str]]:
    """The calls (from file, into file) within hdlm, between the last two times that `begins(file, function)`."""
    calls: list[list[tuple[str, str]]] = [[]]

    def note(frame: Any, event: str, argument: Any) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(str(ROOT)):
            return
        into = str(Path(frame.f_code.co_filename).relative_to(ROOT))
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(str(ROOT)):
            caller = caller.f_back
        origin = into if caller is None else str(Path(caller.f_code.co_filename).relative_to(ROOT))
        if begins(into, frame.f_code.co_name):
            calls.append([])
        calls[-1].append((origin, into))

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls[-2]


def summary(calls: list[tuple[str, str]]) -> dict[str, Any]:
    """Files, jumps between files, and lines, in all and without the mathematics and the network."""
    files = sorted({file for call in calls for file in call})
    outside = [file for file in files if not file.startswith(("theory", "nn"))]
    lines = {file: len((ROOT / file).read_text().splitlines()) for file in files}
    return {
        "files": len(files),
        "jumps": sum(origin != into for origin, into in calls),
        "lines": sum(lines.values()),
        "files_outside": len(outside),
        "jumps_outside": sum(origin != into and into in outside for origin, into in calls),
        "lines_outside": sum(lines[file] for file in outside),
        "outside": outside,
    }


def sampling_step(**how: Any) -> dict[str, Any]:
    """One step of `hdlm sample stories`, from pass to pass."""
    bundle = hdlm.load("stories")
    bundle.generate(length=16, seed=0, **how)  # what is made once is made
    work = lambda: bundle.generate("One day, a dragon", length=12, seed=0, stop_at_eos=False, **how)  # noqa: E731
    return summary(followed(work, lambda file, function: function == MARK))


def training_step(**how: Any) -> dict[str, Any]:
    """One optimiser step of the recipe laptop, on random tokens."""
    if NEW:
        from hdlm.config import recipes
        from hdlm.config.model import DenoiserConfig
    else:
        from hdlm.nn.config import DenoiserConfig

        from hdlm import recipes
    from hdlm.data.packed import Rows
    from hdlm.nn.transformer import Denoiser
    from hdlm.processes import World
    from hdlm.train.batch import Batches
    from hdlm.train.step import Stepper

    recipe = recipes.get("laptop")
    process = recipe.process.build(97)
    rows = Rows(np.random.default_rng(0).integers(0, 97, (64, recipe.length)))
    batches = Batches(recipe, rows, process, bos_id=0, device=torch.device("cpu"))
    model = Denoiser(DenoiserConfig(vocab_size=97, **vars(recipe.model)))
    stepper = Stepper(recipe, model, process, batches, World(0, 1, torch.device("cpu")), **how)
    steps = lambda: [stepper.step() for _ in range(3)]  # noqa: E731
    return summary(followed(steps, lambda file, function: file == "train/step.py" and function == "step"))


def main() -> None:
    """Trace, write, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file of all trees; this one is added")
    args = parser.parse_args()
    floors = {", reference": {"backend": "reference"}, ", fast": {"backend": "fast"}} if NEW else {"": {}}
    found = {f"sampling step{name}": sampling_step(**how) for name, how in floors.items()}
    found |= {f"training step{name}": training_step(**how) for name, how in floors.items()}
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    commit = subprocess.run(git, capture_output=True, text=True).stdout.strip() or "unknown"
    trees = json.loads(args.out.read_text()) if args.out is not None and args.out.exists() else {}
    trees[commit] = found
    if args.out is not None:
        args.out.write_text(json.dumps(trees, indent=1) + "\n")
    print(f"{'':44}{'all: files  jumps   lines':>28}{'without theory, nn':>28}")
    for tree, steps in trees.items():
        for name, one in steps.items():
            here = f"{one['files']:>9}{one['jumps']:>7}{one['lines']:>8,}"
            outside = f"{one['files_outside']:>14}{one['jumps_outside']:>7}{one['lines_outside']:>8,}"
            print(f"{tree + ': ' + name:<44}{here:>28}{outside:>28}")


if __name__ == "__main__":
    main()
