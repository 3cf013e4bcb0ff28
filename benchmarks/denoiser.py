"""Time of one denoiser step: cached against uncached as the prefix grows, and adaLN per level against per slot.

    python benchmarks/denoiser.py [--size mini] [--out results.json]

Prints ratios, measured side by side in one run; the median of several runs each.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import hdlm
from hdlm.config import PRESETS, preset
from hdlm.files import written_aside
from hdlm.nn.attention import plan_for
from hdlm.nn.transformer import Denoiser
from hdlm.theory.layout import build_layout, inference_layout

VOCAB = 4096
PREFIXES = (256, 512, 1024, 2048, 4096)


def seconds(work: Callable[[], object], device: torch.device, *, repeats: int) -> float:
    """Median wall time of `work`, after one run to warm up."""

    def once() -> float:
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    once()
    return statistics.median(once() for _ in range(repeats))


def cache_rows(model: Denoiser, device: torch.device, window: int, repeats: int) -> list[dict]:
    """One step on a window after a settled prefix, with and without the cache."""
    process = hdlm.GammaHybrid(VOCAB, 0.01)
    rows = []
    for prefix in PREFIXES:
        x = torch.randint(VOCAB, (1, prefix + window), device=device)
        t = torch.full((1, prefix + window), 0.5, device=device)
        whole = inference_layout(prefix, prefix + window, shifted=False).to(device)
        rest = inference_layout(prefix, prefix + window, shifted=False, cached=prefix).to(device)
        cache = model.new_cache(1, prefix + window)
        slots, few = whole.fill(x, x, t, process), rest.fill(x, x, t, process)
        plain_out = model.trunk(slots)[:, -window:]
        model.trunk(slots, cache=cache)
        cached_out = model.trunk(few, cache=cache)
        error = (plain_out - cached_out).abs().max().item()
        rows.append(
            {
                "prefix": prefix,
                "uncached_s": seconds(lambda s=slots: model.trunk(s), device, repeats=repeats),
                "cached_s": seconds(lambda s=few, c=cache: model.trunk(s, cache=c), device, repeats=3 * repeats),
                "largest_difference": error,
            }
        )
    return rows


def adaln_rows(model: Denoiser, device: torch.device, repeats: int) -> list[dict]:
    """The trunk over a doubled block layout with one row of conditioning a window, and with one a slot."""
    process, length, width = hdlm.GammaHybrid(VOCAB, 0.01), 1024, 256
    windows = hdlm.Block(length, width).windows()
    x = torch.randint(VOCAB, (1, length), device=device)
    t = torch.full((1, length), 0.5, device=device)
    per_level = build_layout(length, windows, shifted=False, one_level_a_window=True).to(device).fill(x, x, t, process)
    layout = per_level.layout
    slots = len(layout)
    inputs = (model.rope(layout.position), ((slots, 1),))
    plan, sigma = plan_for(layout), per_level.slot_sigma()
    return [
        {
            "conditioning": name,
            "rows": sigma_rows,
            "seconds": seconds(work, device, repeats=repeats),
        }
        for name, sigma_rows, work in (
            ("per level", per_level.sigma.shape[1], lambda: model.trunk(per_level)),
            ("per slot", slots, lambda: model.run(per_level.token, sigma, per_level.weight, *inputs, plan)),
        )
    ]


def main() -> None:
    """Run both comparisons and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=PRESETS, default="mini")
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, help="write the numbers here as JSON")
    args = parser.parse_args()
    device = torch.device(args.device)
    torch.manual_seed(0)
    model = Denoiser(preset(args.size, VOCAB)).to(device).eval()
    for parameter in model.parameters():  # gates and modulations open, as in a trained network
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.05)
    with torch.inference_mode():
        cached = cache_rows(model, device, args.window, args.repeats)
        adaln = adaln_rows(model, device, args.repeats)
    console = Console()
    table = Table("prefix", "uncached ms", "growth", "cached ms", "growth", "speed-up", "largest difference")
    for row in cached:
        table.add_row(
            str(row["prefix"]),
            f"{1e3 * row['uncached_s']:.1f}",
            f"{row['uncached_s'] / cached[0]['uncached_s']:.1f} x",
            f"{1e3 * row['cached_s']:.1f}",
            f"{row['cached_s'] / cached[0]['cached_s']:.1f} x",
            f"{row['uncached_s'] / row['cached_s']:.0f} x",
            f"{row['largest_difference']:.0e}",
        )
    console.print(f"{args.size}, {device}, window {args.window}, {torch.get_num_threads()} threads", table)
    table = Table("conditioning", "rows computed", "ms", "ratio")
    for row in adaln:
        share = row["seconds"] / adaln[0]["seconds"]
        table.add_row(row["conditioning"], str(row["rows"]), f"{1e3 * row['seconds']:.0f}", f"{share:.2f}")
    console.print("adaLN over 2,048 slots, block 256", table)
    if args.out:
        with written_aside(args.out) as aside:
            setting = {"size": args.size, "device": str(device), "window": args.window, "torch": torch.__version__}
            aside.write_text(json.dumps({"setting": setting, "cache": cached, "adaln": adaln}, indent=1) + "\n")


if __name__ == "__main__":
    main()
