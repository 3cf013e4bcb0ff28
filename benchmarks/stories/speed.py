"""How fast the shipped model writes on this machine, with and without its cache.

    PYTHONPATH=src python benchmarks/stories/speed.py --out speed.json

One text of 256 tokens by each way of decoding, all ways taking turns in one run; medians.
"""

import argparse
import json
import statistics
from pathlib import Path

import torch

import hdlm

LENGTH = 256
WAYS = {
    "autoregressive": {"kind": "quench"},
    "block 16": {"kind": "block", "width": 16, "rate": 1.0},
    "block 16, rate 4": {"kind": "block", "width": 16, "rate": 4.0},
    "slide 16": {"kind": "slide", "width": 16, "rate": 1.0},
}


def main() -> None:
    """Time, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="stories")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--sampler", help="of blocks and slides (the model's own)")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    bundle = hdlm.load(args.model)
    seconds: dict[tuple[str, bool], list[float]] = {}
    for turn in range(args.turns + 1):
        for way, how in WAYS.items():
            for cache in (True, False):
                rule = None if how["kind"] == "quench" else args.sampler
                found = bundle.generate(
                    length=LENGTH, seed=turn, stop_at_eos=False, cache=cache, sampler=rule, **how
                ).stats
                if turn > 0:
                    seconds.setdefault((way, cache), []).append(found.seconds)
    rows = []
    for way in WAYS:
        cached, plain = (LENGTH / statistics.median(seconds[way, cache]) for cache in (True, False))
        rows.append({"way": way, "tokens_per_s": cached, "without_cache": plain, "ratio": cached / plain})
        print(f"{way:20} {cached:6.0f} tokens/s, {plain:6.0f} without cache: x {cached / plain:.2f}")
    about = {"threads": args.threads, "turns": args.turns, "length": LENGTH, "sampler": args.sampler, "rows": rows}
    args.out.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
