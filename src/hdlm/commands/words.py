"""Flags that several commands share."""

import argparse


def seed(word: str) -> int:
    """A seed from the command line."""
    value = int(word)
    if not 0 <= value < 2**63:
        raise argparse.ArgumentTypeError(f"{word} is not accepted: it must be in 0..2^63-1")
    return value
