"""What the networks of the study write by each rule, by the true source's judgement.

    python benchmarks/study/writing.py --models study/models --source SOURCE --out study/writing --workers 12
    python benchmarks/study/writing.py --out study/writing --table

Every model (a folder of --models, or the name of a shipped one) writes --count texts by every way: a rule, its setting
and a rate, at temperature 1 with blocks of 16. Perplexity is per piece of the source, its error that of the texts;
beside it stand the entropy of a text's own tokens and how many texts begin with other words than those before. A cell
is a file of OUT, and is not written again, so that a run that is stopped goes on; with --wait it looks for models that
come later, for so many seconds. Cells are shared out among --workers processes, of one thread each, models side by
side, the first ways first.
"""

import argparse
import json
import math
import multiprocessing
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "stories"))

from source import ROW, Source  # noqa: E402

import hdlm  # noqa: E402
from hdlm.evaluate.diversity import unigram_entropy  # noqa: E402

RATES = (1, 2, 4)
ETAS = (0.02, 0.05, 0.1, 0.2, 0.5)
OPENING = 8  # words


@dataclass(frozen=True)
class Way:
    """How texts are written: a rule with its setting, and tokens per step; none for autoregression."""

    rule: str
    rate: float | None = None
    eta: float | None = None
    precision: str = "float64"

    @property
    def name(self) -> str:
        """Rule, setting and rate in words."""
        eta = "" if self.eta is None else f" {self.eta:g}"
        draws = "" if self.precision == "float64" else f" ({self.precision})"
        return f"{self.rule}{eta}{draws}" + ("" if self.rate is None else f", rate {self.rate:g}")

    @property
    def keywords(self) -> dict[str, Any]:
        """Those of `Bundle.generate`."""
        found: dict[str, Any] = {"sampler": self.rule, "precision": self.precision}
        if self.rule == "ar":
            return found
        return found | {"kind": "block", "width": 16, "rate": self.rate, "eta": self.eta}


def ways() -> list[Way]:
    """All of them, those that most depends on first."""
    return [
        *(Way("posterior", rate) for rate in RATES),
        *(Way("acs", rate, 0.1) for rate in RATES),
        Way("ar"),
        *(Way("certain", rate) for rate in RATES),
        *(Way("acs", rate, eta) for eta in ETAS if eta != 0.1 for rate in RATES),
        *(Way("original", rate) for rate in RATES),
        *(Way("remask", rate, eta) for eta in (0.05, 0.2) for rate in RATES),
        *(Way("confidence", rate) for rate in RATES),
        *(Way("tau-leaping", rate) for rate in RATES),
        *(Way("euler", rate) for rate in RATES),
        *(Way(rule, rate) for rule in ("posterior", "certain") for rate in (0.25, 0.5)),
        *(Way("acs", rate, 0.1) for rate in (0.25, 0.5)),
        *(Way("posterior", rate, precision="float32") for rate in RATES),
    ]


def judged(source: Source, texts: list[str]) -> dict[str, Any]:
    """Perplexity per piece of some texts by the source, all pieces together, and its error over the texts."""
    rows = [source.encode(text)[:ROW] for text in texts]
    rows = [row for row in rows if row]
    longest = max(map(len, rows))
    pieces = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    log_p, _ = source.log_p(pieces, torch.zeros(len(rows), dtype=torch.int64))
    count = torch.tensor([len(row) for row in rows], dtype=torch.float64)
    nats = torch.stack([-own[: len(row)].sum() for own, row in zip(log_p, rows, strict=True)])
    mean = (nats.sum() / count.sum()).item()
    error = ((nats - mean * count).std() * math.sqrt(len(rows)) / count.sum()).item() if len(rows) > 1 else None
    found = {"nats_per_piece": mean, "error_per_piece": error, "perplexity": math.exp(mean), "pieces": int(count.sum())}
    return found | {"openings": len({tuple(text.split()[:OPENING]) for text in texts}), "texts": len(texts)}


_source: Source | None = None


def _start(folder: Path, device: str) -> None:
    global _source
    torch.set_num_threads(1)
    _source = Source(folder, device=device)


def cell(model: str, way: Way, count: int, seed: int, device: str) -> dict[str, Any]:
    """Texts of a model by one way, and what they come to; or why it does not fit the model."""
    assert _source is not None
    bundle = hdlm.load(model, device=device, dtype="float32" if device == "cpu" else None)
    how = {"temperature": 1.0, "top_p": 1.0, "num_samples": count, "seed": seed, "batch_size": min(count, 128)}
    named = {"model": Path(model).name, "way": way.name, "seed": seed}
    began = time.perf_counter()
    try:
        samples = bundle.generate(**how, **way.keywords)
    except ValueError as error:
        return named | {"refused": str(error)}
    seconds = time.perf_counter() - began
    entropy, error = unigram_entropy(samples.tokens)
    stats = {"seconds": seconds, "network_calls": samples.stats.network_calls}
    stats |= {"entropy": entropy, "entropy_error": error}
    return named | judged(_source, samples.text) | stats | {"first": samples.text[0]}


def _file(folder: Path, model: str, way: Way, seed: int) -> Path:
    name = way.name.replace(",", "").replace(" ", "-").replace("(", "").replace(")", "")
    return folder / f"{Path(model).name}--{name}-{seed}.json"


def _undone(args: argparse.Namespace, begun: set[Path]) -> Iterator[tuple[str, Way, Path]]:
    """Cells that are neither there nor being written, of the models that there are now."""
    models = list(args.shipped)
    if args.models is not None and args.models.is_dir():
        models += sorted(str(path.parent) for path in args.models.glob("*/config.json"))
    for way in ways():
        for model in models:
            file = _file(args.out, model, way, args.seed)
            if file not in begun and not file.exists() and args.only in way.name:
                yield model, way, file


def table(folder: Path) -> str:
    """Every cell that is there: perplexity of models by ways."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    models = sorted({one["model"] for one in found})
    lines = ["| way | " + " | ".join(models) + " |", "| --- |" + " --- |" * len(models)]
    for way in ways():
        cells = []
        for model in models:
            own = [one for one in found if one["model"] == model and one["way"] == way.name and "perplexity" in one]
            cells.append("; ".join(_shown(one) for one in own))
        if any(cells):
            lines.append(f"| {way.name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _shown(one: dict[str, Any]) -> str:
    error = one["perplexity"] * (one["error_per_piece"] or 0.0)
    return f"{one['perplexity']:.3g} ± {error:.2g} ({one['entropy']:.2f}, {one['openings']})"


def main() -> None:
    """Write what is not written, in order."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", type=Path)
    parser.add_argument("--shipped", nargs="*", default=[], help="names of shipped models")
    parser.add_argument("--source", type=Path)
    parser.add_argument("--count", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="ways whose name has this in it")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--wait", type=float, default=0.0, help="seconds in which models may still come")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds after which no cell is begun")
    parser.add_argument("--table", action="store_true", help="print what is there, and write nothing")
    args = parser.parse_args()
    if args.table:
        print(table(args.out))
        return
    if args.source is None:
        parser.error("say where the --source is")
    args.out.mkdir(parents=True, exist_ok=True)
    began, begun, running = time.perf_counter(), set[Path](), dict[Future, Path]()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(args.workers, context, _start, (args.source, args.device)) as pool:
        while True:
            passed = time.perf_counter() - began
            if len(running) < args.workers and passed < args.limit:
                for model, way, file in _undone(args, begun):
                    begun.add(file)
                    running[pool.submit(cell, model, way, args.count, args.seed, args.device)] = file
                    if len(running) == args.workers:
                        break
            if not running and passed > min(args.wait, args.limit):
                break
            done = wait(running, timeout=5.0, return_when=FIRST_COMPLETED).done if running else set()
            if not running:
                time.sleep(5.0)
            for future in done:
                file, found = running.pop(future), future.result()
                file.with_suffix(".part").write_text(json.dumps(found, indent=1) + "\n")
                file.with_suffix(".part").rename(file)
                shown = _shown(found) if "perplexity" in found else found["refused"][:80]
                print(f"{time.perf_counter() - began:.0f} s, {found['model']}, {found['way']}: {shown}", flush=True)


if __name__ == "__main__":
    main()
