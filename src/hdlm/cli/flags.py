"""Flags that several commands share, and what they choose."""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hdlm.config.recipe import Recipe


def seed(word: str) -> int:
    """A seed from the command line."""
    value = int(word)
    if not 0 <= value < 2**63:
        raise argparse.ArgumentTypeError(f"{word} is not accepted: it must be in 0..2^63-1")
    return value


def check_writable(path: Path) -> None:
    """Refuse a file that could not be written: a folder, or in a folder where nothing can be made."""
    if path.is_dir():
        raise ValueError(f"{path} is not accepted: it is a folder, and a file is to be written")
    folder = path.parent
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK) or folder == Path("/proc"):
        raise ValueError(f"{path} is not accepted: nothing can be written in {folder}")


def add_device(parser: argparse.ArgumentParser) -> None:
    """Flags that choose where to compute, and whether by the fast code or the plain one that it is held to."""
    parser.add_argument("--device", help="cpu or cuda (cuda where there is one)")
    parser.add_argument("--backend", metavar="B", help="fast, or reference: slower, in plain code (fast)")


def add_schedule(parser: argparse.ArgumentParser) -> None:
    """Flags that choose another hyperschedule than a model's own."""
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--block", type=int, metavar="W", help="by blocks of W tokens")
    how.add_argument("--slide", type=int, metavar="W", help="by a sliding window of W tokens")
    how.add_argument("--flat", action="store_true", help="all tokens together")
    how.add_argument("--ar", action="store_true", help="one token after the other")


def chosen_schedule(args: argparse.Namespace) -> dict[str, Any]:
    """Kind and width that those flags choose; nothing where they leave the model's own."""
    for kind, width in (("block", args.block), ("slide", args.slide)):
        if width is not None:
            return {"kind": kind, "width": width}
    return {"kind": "flat"} if args.flat else {"kind": "quench"} if args.ar else {}


def chosen_recipe(args: argparse.Namespace) -> "Recipe":
    """The named recipe, changed by the flags that are fields of it: named ones, and any by its dotted name."""
    from hdlm.config import recipes
    from hdlm.config.parse import override

    recipe = recipes.get(args.recipe)
    for name in ("data", "steps", "seed", "save_every", "init_from"):
        value = getattr(args, name, None)
        if value is not None:
            recipe = override(recipe, name, str(value))
    for name, word in args.fields:
        recipe = override(recipe, name, word)
    return recipe
