"""The paper's claims on a corpus whose truth is known: train a list of rows, judge each, keep what is done.

    PYTHONPATH=src python benchmarks/study/run.py --corpus stories --out study --seconds 60 --warm 15 --limit 570
    PYTHONPATH=src python benchmarks/study/run.py --corpus stories --out study --steps 1500 --only "process" --seeds 0 1
    PYTHONPATH=src python benchmarks/study/run.py --out study --table

Rows are in rows.toml. Each is trained by the phases of `benchmarks/stories/train.py`, for equal seconds (`--seconds`,
of which `--warm` are autoregression first, for shifted networks) or equal steps (`--steps`), judged by every way of
decoding (nats per piece above the source), and written to OUT/BUDGET/ROW-SEED.json. What is there is not run again, so
that a study that is stopped goes on; `--limit` stops before a row that would not end in so many seconds. `--models DIR`
keeps the networks.
"""

import argparse
import json
import re
import sys
import time
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "stories"))

from judge import in_words, judge  # noqa: E402
from train import Phase, changed  # noqa: E402

from hdlm.bundle import Bundle  # noqa: E402
from hdlm.config import recipes  # noqa: E402
from hdlm.config.mixture import MixtureMember  # noqa: E402
from hdlm.config.recipe import Recipe  # noqa: E402
from hdlm.data.packed import Rows  # noqa: E402
from hdlm.data.tokenizer import make_tokenizer  # noqa: E402
from hdlm.device import choose_device  # noqa: E402
from hdlm.nn.transformer import Denoiser  # noqa: E402
from hdlm.train.setup import config_of  # noqa: E402


@dataclass(frozen=True)
class Row:
    """One network of the study."""

    group: str
    name: str
    settings: tuple[str, ...]

    def recipe(self, seed: int, extra: list[str]) -> Recipe:
        """The recipe `stories` with this row's fields, all set together: some are refused without others."""
        return changed(recipes.get("stories"), [*self.settings, *extra, f"seed={seed}"])

    @property
    def title(self) -> str:
        """Group and name."""
        return f"{self.group} {self.name}"

    def among(self, words: list[str]) -> bool:
        """Whether it is asked for by its whole title, or by a part of it that is no row's whole title."""
        titles = {row.title for row in all_rows()}
        return any(word == self.title or (word in self.title and word not in titles) for word in words)

    def file(self, folder: Path, seed: int) -> Path:
        """Where its report is."""
        return folder / f"{re.sub(r'[^a-z0-9.]+', '-', self.title.lower()).strip('-')}-{seed}.json"


def all_rows() -> list[Row]:
    """Those of rows.toml, in order."""
    groups = tomllib.loads((HERE / "rows.toml").read_text(encoding="utf-8"))["group"]
    return [
        Row(group["name"], row["name"], (*group["set"], *row.get("set", ())))
        for group in groups
        for row in group["rows"]
    ]


def run(row: Row, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Train and judge one row."""
    device, recipe = choose_device(args.device), row.recipe(seed, args.set)
    text = make_tokenizer(str(args.corpus / "tokenizer.json"), [])
    rows = Rows(np.load(args.corpus / "train.npy", mmap_mode="r")[:, : recipe.length])
    config = config_of(recipe, text)
    torch.manual_seed(seed)
    model = Denoiser(config.model).to(device)
    phases = [Phase(recipe, args.seconds or 1e9)]
    if args.warm and recipe.shifted:
        first = replace(recipe, schedules=(MixtureMember("quench"),), loss=replace(recipe.loss, averaged=False))
        phases = [Phase(first, args.warm), Phase(recipe, (args.seconds or 1e9) - args.warm)]
    done = []
    for phase in phases:
        if args.steps:
            phase.recipe = replace(phase.recipe, steps=args.steps)
        else:
            phase.measure(model, rows, config.bos_id, device, args.tries)
        done.append(phase.run(model, rows, config.bos_id, device))
    bundle = Bundle(model.eval(), config, text.tokenizer)
    if args.models is not None:
        bundle.save(args.models / row.file(Path(), seed).stem)
    held_out = dict(np.load(args.corpus / "valid.npz"))
    ways = judge(bundle, held_out, rows=args.held_out, draws=args.draws, batch=args.batch)
    named = {"group": row.group, "row": row.name, "seed": seed, "set": list(row.settings) + args.set}
    return named | {"parameters": model.num_parameters, "phases": done, "ways": ways}


def table(folder: Path) -> str:
    """Every row that is there: means over seeds, with the larger of the spread between seeds and the texts' error."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for file in sorted(folder.glob("*.json")):
        report = json.loads(file.read_text())
        found.setdefault((report["group"], report["row"]), []).append(report)
    lines = []
    for row in all_rows():
        reports = found.get((row.group, row.name))
        if not reports:
            continue
        steps = "/".join(str(sum(phase["steps"] for phase in one["phases"])) for one in reports)
        cells = []
        for way in reports[0]["ways"]:
            values = [one["ways"][way]["above_per_piece"] for one in reports]
            text = max(one["ways"][way]["error_per_piece"] or 0.0 for one in reports) / len(values) ** 0.5
            spread = float(np.std(values, ddof=1)) / len(values) ** 0.5 if len(values) > 1 else 0.0
            cells.append(f"{way} {np.mean(values):.3f} ± {max(text, spread):.3f}")
        lines.append(f"{row.group} | {row.name} | {steps} steps | {', '.join(cells)}")
    return "\n".join(lines)


def main() -> None:
    """Run what is not done, in order, while there is time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--corpus", type=Path)
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument("--seconds", type=float, default=0.0)
    budget.add_argument("--steps", type=int, default=0, help="of each phase")
    parser.add_argument("--warm", type=float, default=0.0, help="seconds of autoregression first (shifted networks)")
    parser.add_argument("--only", nargs="+", default=[""], help="rows by title, whole or in part")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="for every row")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds, all in all")
    parser.add_argument("--held-out", type=int, default=512)
    parser.add_argument("--draws", type=int, default=4)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--tries", type=int, default=20)
    parser.add_argument("--models", type=Path)
    parser.add_argument("--device")
    parser.add_argument("--table", action="store_true", help="print what is done, and run nothing")
    args = parser.parse_args()
    if args.table:
        for folder in sorted(path for path in args.out.iterdir() if path.is_dir()):
            print(f"{folder.name}\n{table(folder)}\n")
        return
    if args.corpus is None or not (args.seconds or args.steps):
        parser.error("say which --corpus, and how long (--seconds or --steps)")
    folder = args.out / (f"steps-{args.steps}" if args.steps else f"seconds-{args.seconds:g}-warm-{args.warm:g}")
    folder.mkdir(parents=True, exist_ok=True)
    began, longest = time.perf_counter(), args.seconds
    for row in all_rows():
        for seed in args.seeds:
            file = row.file(folder, seed)
            if not row.among(args.only) or file.exists():
                continue
            if time.perf_counter() - began + longest > args.limit:
                print("no time for another row", flush=True)
                return
            started = time.perf_counter()
            report = run(row, seed, args)
            file.with_suffix(".part").write_text(json.dumps(report, indent=1) + "\n")
            file.with_suffix(".part").rename(file)
            longest = max(longest, time.perf_counter() - started)
            print(f"{row.group}, {row.name}, seed {seed}: {in_words(report['ways'])}", flush=True)


if __name__ == "__main__":
    main()
