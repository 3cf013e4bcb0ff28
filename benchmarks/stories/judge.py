"""How far a model of the stories is from the truth, by each way of decoding.

    PYTHONPATH=src python benchmarks/stories/judge.py --model stories --held-out stories/valid.npz --out judged.json

Bounds above what the source itself needs for the same rows, per piece of the source and per byte. The errors are of
that difference, row by row, which is known far better than either side of it.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

import hdlm
from hdlm.bundle import Bundle
from hdlm.config.schedule import ScheduleConfig
from hdlm.evaluate.likelihood import estimate

NOTHING = np.iinfo(np.uint16).max  # after a row's end
WAYS = {
    "AR": ("quench", None),
    "block 4": ("block", 4),
    "block 16": ("block", 16),
    "slide 16": ("slide", 16),
    "flat": ("flat", None),
}


def judge(
    bundle: Bundle, held_out: dict[str, np.ndarray], *, rows: int, draws: int, batch: int
) -> dict[str, dict[str, Any]]:
    """What the first rows of a held-out file come to, by way of decoding."""
    found = {}
    tokens = [row[row < NOTHING].tolist() for row in held_out["tokens"][:rows]]
    pieces, size = (held_out[name][:rows].sum() for name in ("pieces", "bytes"))
    source = held_out["nats"][:rows].tolist()
    for way, (kind, width) in WAYS.items():
        if kind == "quench" and not bundle.config.shifted:
            continue  # such a network predicts no next token
        began = time.perf_counter()
        schedule = ScheduleConfig(kind, bundle.config.context, width=width).build()
        bound = estimate(bundle, tokens, draws=draws, hyperschedule=schedule, batch_size=batch)
        for one in (bound, *bound.beside):
            above, error = one.above(source, pieces)
            found[way if one is bound else f"{way} ({one.name})"] = {
                "above_per_piece": above,
                "error_per_piece": error,
                "above_per_byte": above * pieces / size,
                "error_per_byte": None if error is None else error * pieces / size,
                "nats_per_byte": one.nats / size,
                "rows": len(tokens),
                "draws": draws,
                "seconds": time.perf_counter() - began,
            }
    return found


def in_words(found: dict[str, dict[str, Any]]) -> str:
    """One line of it."""
    words = (f"{way} {one['above_per_piece']:.3f} ± {one['error_per_piece'] or 0:.3f}" for way, one in found.items())
    return f"above the source per piece: {', '.join(words)}"


def main() -> None:
    """Judge, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="stories")
    parser.add_argument("--held-out", type=Path, required=True, metavar="NPZ")
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--draws", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    bundle = hdlm.load(args.model, device=args.device)
    held_out = dict(np.load(args.held_out))
    found = judge(bundle, held_out, rows=args.rows, draws=args.draws, batch=args.batch)
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(in_words(found))


if __name__ == "__main__":
    main()
