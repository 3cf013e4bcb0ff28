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
