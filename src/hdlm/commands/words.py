"""Flags that several commands share."""

import argparse
import os
from pathlib import Path


def seed(word: str) -> int:
    """A seed from the command line."""
    value = int(word)
    if not 0 <= value < 2**63:
        raise argparse.ArgumentTypeError(f"{word} is not accepted: it must be in 0..2^63-1")
    return value


def check_writable(path: Path) -> None:
    """Refuse a file that could not be written: a folder, or in a place where nothing can be made."""
    if path.is_dir():
        raise ValueError(f"{path} is not accepted: it is a folder, and a file is to be written")
    place = path.parent
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK) or place == Path("/proc"):
        raise ValueError(f"{path} is not accepted: nothing can be written in {place}")


def add_schedule(parser: argparse.ArgumentParser) -> None:
    """Flags that choose another hyperschedule than a model's own."""
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--block", type=int, metavar="W", help="by blocks of W tokens")
    how.add_argument("--slide", type=int, metavar="W", help="by a sliding window of W tokens")
    how.add_argument("--flat", action="store_true", help="all tokens together")
    how.add_argument("--ar", action="store_true", help="one token after the other")


def chosen_schedule(args: argparse.Namespace) -> tuple[str | None, int | None]:
    """Kind and width that those flags choose; None where they leave the model's own."""
    given = {"block": args.block, "slide": args.slide, "flat": args.flat or None, "quench": args.ar or None}
    kind = next((name for name, value in given.items() if value is not None), None)
    return kind, given[kind] if kind in ("block", "slide") else None
