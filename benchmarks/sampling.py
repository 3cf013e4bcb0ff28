"""Time of whole samples: with and without the cache, by block, slide and autoregression, on one network.

    python benchmarks/sampling.py [--size mini] [--length 512] [--width 16] [--out results.json]

All rows are measured side by side in one run, turn by turn, and printed as ratios to the autoregressive row; the median
of several turns, with their spread. The network is random: what is timed does not depend on what it has learned.
"""

import argparse
import json
import statistics
import warnings
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import hdlm
from hdlm.bundle import Bundle, choose_device
from hdlm.config import PRESETS, BundleConfig, NoiseConfig, ProcessConfig, ScheduleConfig, preset
from hdlm.files import written_aside
from hdlm.nn.transformer import Denoiser

VOCAB = 4096
PROCESSES = {
    "absorbing": ProcessConfig("absorbing"),
    "gamma 0.01": ProcessConfig("gamma", NoiseConfig("loglinear"), gamma=0.01),
}


def make_bundle(process: ProcessConfig, size: str, length: int, width: int, device: torch.device) -> Bundle:
    """A shifted network with a random head."""
    model = preset(size, VOCAB, conditioned=process.kind == "gamma", weighted_embedding=process.kind == "gamma")
    torch.manual_seed(0)
    network = Denoiser(model)
    torch.nn.init.normal_(network.head.weight, std=0.05)
    config = BundleConfig(
        model, process, ScheduleConfig("block", length, width=width), shifted=True, bos_id=0, next_token=True
    )
    return Bundle(network.to(device).eval(), config)


def cases(length: int, width: int) -> list[tuple[str, hdlm.Quench | hdlm.Block | hdlm.Slide, bool]]:
    """Name, schedule, and whether there is a cache."""
    return [
        ("autoregressive", hdlm.Quench(length), True),
        (f"block {width}", hdlm.Block(length, width), True),
        (f"block {width}, no cache", hdlm.Block(length, width), False),
        (f"block {width}, rate 4", hdlm.Block(length, width, 4), True),
        (f"block {width}, rate 4, no cache", hdlm.Block(length, width, 4), False),
        (f"slide {width}", hdlm.Slide(length, width), True),
        (f"slide {width}, no cache", hdlm.Slide(length, width), False),
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="mini", choices=PRESETS)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--device")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    device = choose_device(args.device)
    console, results = Console(width=110), []
    for name, process in PROCESSES.items():
        bundle = make_bundle(process, args.size, args.length, args.width, device)
        bundle.generate(length=2 * args.width, seed=0)
        times: dict[str, list] = {label: [] for label, _, _ in cases(args.length, args.width)}
        for turn in range(args.turns):
            for label, schedule, cache in cases(args.length, args.width):
                samples = bundle.generate(hyperschedule=schedule, cache=cache, seed=turn, num_samples=args.samples)
                times[label].append(samples.stats)
        table = Table(title=f"{args.size}, {name}, {args.samples} x {args.length} tokens, {device}")
        for column in ("", "s", "spread", "tokens/s", "calls", "slots", "time / AR", "no cache / cache"):
            table.add_column(column, justify="left" if not column else "right")
        medians = {label: statistics.median(s.seconds for s in runs) for label, runs in times.items()}
        for label, runs in times.items():
            seconds, stats = medians[label], runs[-1]
            gain = medians.get(f"{label}, no cache")
            row = {"process": name, "case": label, "seconds": seconds, "turns": [s.seconds for s in runs]}
            row |= {"network_calls": stats.network_calls, "slots": stats.slots, "tokens": stats.tokens}
            row["to_autoregression"] = seconds / medians["autoregressive"]
            row["saved_by_cache"] = gain / seconds if gain else None
            results.append(row)
            table.add_row(
                label,
                f"{seconds:.2f}",
                f"{min(row['turns']):.2f}-{max(row['turns']):.2f}",
                f"{stats.tokens / seconds:,.0f}",
                f"{stats.network_calls:,}",
                f"{stats.slots:,}",
                f"{row['to_autoregression']:.2f}",
                f"{gain / seconds:.1f}" if gain else "",
            )
        console.print(table)
    if args.out:
        with written_aside(args.out) as aside:
            aside.write_text(json.dumps({"settings": vars(args) | {"out": None}, "rows": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
