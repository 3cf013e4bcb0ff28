"""Train the draft head of a model, for speculation; the rest of the model stays as it is, bit for bit.

    python benchmarks/stories/draft.py --model stories --out runs/stories-draft

The shipped `stories` has one that was trained so. Half an hour on one busy core of a CPU; needs no data.
"""

import argparse
import json
import time
from pathlib import Path

import torch

import hdlm
from hdlm.train.draft import train_draft


def main() -> None:
    """Train and save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="stories")
    parser.add_argument("--texts", type=int, default=1440)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    began, seconds = time.perf_counter(), {}

    def tell(what: str, done: int, of: int) -> None:
        seconds[what] = round(time.perf_counter() - began, 1)
        if done == of or done % 96 == 0:
            print(f"{what} {done} of {of}, {seconds[what]:.0f} s", flush=True)

    bundle = hdlm.load(args.model)
    trained = train_draft(bundle, texts=args.texts, epochs=args.epochs, width=args.width, seed=args.seed, progress=tell)
    trained.save(args.out)
    print(json.dumps({"seconds": seconds, "parameters": trained.model.num_parameters}))


if __name__ == "__main__":
    main()
