"""What weights in oneDNN's layout buy on a CPU: whole texts by a network of 11M parameters.

    PYTHONPATH=src python benchmarks/onednn.py [--threads 2] [--out results.json]

Plain and laid out take turns in one run; times are medians, ratios plain / laid out.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

import hdlm
from hdlm.config import recipes
from hdlm.config.bundle import BundleConfig
from hdlm.config.model import DenoiserConfig
from hdlm.fast import onednn
from hdlm.nn.transformer import Denoiser

WAYS = {
    "autoregressive": {"kind": "quench"},
    "block 16, rate 4": {"kind": "block", "width": 16, "rate": 4.0},
    "block 16, rate 4, no cache": {"kind": "block", "width": 16, "rate": 4.0, "cache": False},
    "slide 16, rate 1": {"kind": "slide", "width": 16, "rate": 1.0},
}
LENGTH, VOCAB = 256, 2047


def taking_turns(work: Callable[[], object], turns: int) -> tuple[float, float]:
    """Median seconds of the work, plain and laid out."""
    fits = onednn.fits
    found: dict[bool, list[float]] = {False: [], True: []}
    try:
        for turn in range(2 * (turns + 1)):
            fast = bool(turn % 2)
            onednn.fits = fits if fast else (lambda model: False)
            began = time.perf_counter()
            work()
            if turn > 1:
                found[fast].append(time.perf_counter() - began)
    finally:
        onednn.fits = fits
    return statistics.median(found[False]), statistics.median(found[True])


def main() -> None:
    """Time, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    rows = []

    def tell(name: str, plain: float, fast: float, tokens: int | None = None) -> None:
        speed = "" if tokens is None else f"  {tokens / plain:6.0f} -> {tokens / fast:6.0f} tokens/s"
        print(f"{name:36} {1e3 * plain:9.2f} -> {1e3 * fast:9.2f} ms  x {plain / fast:.2f}{speed}", flush=True)
        rows.append({"name": name, "plain_s": plain, "laid_out_s": fast, "tokens": tokens})

    recipe = recipes.get("stories")
    torch.manual_seed(0)
    model = Denoiser(DenoiserConfig(vocab_size=VOCAB, **vars(recipe.model))).eval()
    schedules = [member.schedule(LENGTH) for member in recipe.schedules]
    config = BundleConfig(
        model.config, recipe.process, schedules[0], True, mixture=tuple(schedules[1:]), bos_id=0, next_token=True
    )
    bundle = hdlm.Bundle(model, config)
    for name, settings in WAYS.items():
        plain, fast = taking_turns(
            lambda settings=settings: bundle.generate(length=LENGTH, seed=0, **settings), args.turns
        )
        tell(f"{LENGTH} tokens, {name}", plain, fast, LENGTH)
    if args.out is not None:
        setting = {"torch": torch.__version__, "threads": args.threads, "parameters": model.num_parameters}
        args.out.write_text(json.dumps({"setting": setting, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
