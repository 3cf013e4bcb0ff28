"""Train the draft head of a model, for speculation; the rest of the model stays as it is, bit for bit.

    PYTHONPATH=src python benchmarks/stories/draft.py --model stories --out runs/stories-draft

The shipped `stories` has one that was trained so, on one busy core of a CPU in 22 minutes, and was put into the package
with `--bfloat16`, which rounds the draft head as the rest was rounded before. Needs no data.
"""

import argparse
import time
from pathlib import Path

import torch

import hdlm
from hdlm.folders import model_place
from hdlm.train.draft import train_draft

ABOUT = "## What it is"  # where the part of a card begins that saving does not write


def notes(model: str, about: str) -> str:
    """The rest of a model's card, and what was done to it here."""
    card = (model_place(model) / "README.md").read_text(encoding="utf-8")
    kept = f"\n{ABOUT}{card.partition(ABOUT)[2].partition('## Drafts')[0].rstrip()}\n" if ABOUT in card else ""
    return f"{kept}\n## Drafts\n\n{about}\n"


def main() -> None:
    """Train and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="stories")
    parser.add_argument("--texts", type=int, default=1440)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--bfloat16", action="store_true", help="save weights in 16 bits")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    began, last = time.perf_counter(), 0.0

    def tell(what: str, done: int, of: int) -> None:
        nonlocal last
        if done == of or time.perf_counter() - last > 10:
            last = time.perf_counter()
            print(f"{what} {done} of {of}, {last - began:.0f} s", flush=True)

    how = {"texts": args.texts, "epochs": args.epochs, "width": args.width, "seed": args.seed}
    trained = train_draft(hdlm.load(args.model, device=args.device, dtype=torch.float32), **how, progress=tell)
    if args.bfloat16:
        trained.model.to(torch.bfloat16)
    about = (
        f"The draft head ({args.width} wide) was trained on {args.texts:,} texts of the model's own, {args.epochs} "
        f"times over (`benchmarks/stories/draft.py`). It serves speculation alone, and changes no text."
    )
    trained.save(args.out, notes=notes(args.model, about))
    print(f"{trained.model.num_parameters:,} parameters in {args.out}")


if __name__ == "__main__":
    main()
