"""Flags that several commands share, and what they choose."""

import argparse
import ast
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hdlm.config.recipe import Recipe
    from hdlm.theory.hyperschedule import Hyperschedule


def seed(word: str) -> int:
    """A seed from the command line."""
    value = int(word)
    if not 0 <= value < 2**63:
        raise argparse.ArgumentTypeError(f"{word} is not accepted: it must be in 0..2^63-1")
    return value


def note(text: str) -> None:
    """Say something that a person should know, and that changes no exit code."""
    print(f"hdlm: note: {' '.join(text.split())}", file=sys.stderr)


def command_line() -> str:
    """The command as it was given, for a report; bytes of it that are no text are spelled out."""
    return shlex.join(["hdlm", *sys.argv[1:]]).encode("utf-8", "backslashreplace").decode()


def add_device(parser: argparse.ArgumentParser) -> None:
    """Flags that choose where to compute, and whether by the fast code or the plain one that it is held to."""
    parser.add_argument("--device", help="cpu or cuda (cuda where there is one)")
    parser.add_argument("--backend", metavar="B", help="fast, or reference: slower, in plain code (fast)")


def add_judging(parser: argparse.ArgumentParser, *, texts: str, files: str) -> None:
    """Flags of commands that score texts and judge samples: by whom, how, and where `files` go."""
    parser.add_argument("--judge", metavar="NAME", help="causal language model (gpt2-large, else SmolLM2)")
    parser.add_argument("--batch-size", type=int, default=8, metavar="B", help=f"{texts} of text at once (8)")
    parser.add_argument("--seed", type=seed, default=0, help="of noise and samples (0)")
    add_device(parser)
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"{files}; finished cells are kept")
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")


def add_schedule(parser: argparse.ArgumentParser) -> None:
    """Flags that choose another hyperschedule than a model's own."""
    how = parser.add_mutually_exclusive_group()  # two to a line, or the help would not fit on a screen
    how.add_argument("--block", type=int, metavar="W", help="by blocks of W tokens; --slide W: by a sliding window")
    how.add_argument("--slide", type=int, metavar="W", help=argparse.SUPPRESS)
    how.add_argument("--flat", action="store_true", help="all tokens together; --ar: one after the other")
    how.add_argument("--ar", action="store_true", help=argparse.SUPPRESS)
    how.add_argument("--custom", metavar="FILE", help="by levels of your own (JSON)")


def chosen_schedule(args: argparse.Namespace) -> dict[str, Any]:
    """Kind and width that those flags choose, or a whole hyperschedule; nothing where they leave the model's own."""
    if args.custom is not None:
        from hdlm.config.levels import read_levels
        from hdlm.theory.custom import Custom

        return {"hyperschedule": Custom(read_levels(args.custom))}
    for kind, width in (("block", args.block), ("slide", args.slide)):
        if width is not None:
            return {"kind": kind, "width": width}
    return {"kind": "flat"} if args.flat else {"kind": "quench"} if args.ar else {}


def chosen_hyperschedule(args: argparse.Namespace) -> "Hyperschedule | None":
    """The one that those flags choose, of any length where it has none of its own; None for the model's."""
    from hdlm.config.schedule import ScheduleConfig

    chosen = chosen_schedule(args)
    if not chosen or "hyperschedule" in chosen:
        return chosen.get("hyperschedule")
    return ScheduleConfig(length=chosen.get("width", 1), **chosen).build()


class _Samplers:
    """The names of all step rules, read from their source when somebody asks.

    To import the rules is to load torch, more than a second: too long for a help, or to refuse a misspelled name.
    """

    def __iter__(self) -> Iterator[str]:
        source = Path(__file__).parents[1] / "sampling" / "rules.py"
        for rule in ast.parse(source.read_text(encoding="utf-8")).body:
            for line in rule.body if isinstance(rule, ast.ClassDef) else ():
                if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "name":
                    yield ast.literal_eval(line.value)

    def __contains__(self, name: object) -> bool:
        return name in list(self)


def add_sampler(parser: argparse.ArgumentParser) -> None:
    """The flag that chooses a step rule."""
    parser.add_argument("--sampler", metavar="S", choices=_Samplers(), help="%(choices)s (the model's)")


def add_mixture(parser: argparse.ArgumentParser) -> None:
    """The flag that replaces a recipe's mixture of hyperschedules."""
    parser.add_argument("--schedules", metavar="M", help="the mixture: KIND[:WIDTH][:SHARE],... as block:16:6,flat:2")


def changed_recipe(args: argparse.Namespace) -> "Recipe":
    """The named recipe, changed by the flags that are fields of it: named ones, and any by its dotted name."""
    from hdlm.config import recipes
    from hdlm.config.parse import overrides

    names = ("data", "encoding", "steps", "seed", "save_every", "init_from", "schedules")
    named = [(name, str(getattr(args, name))) for name in names if getattr(args, name, None) is not None]
    return overrides(recipes.get(args.recipe), [*named, *args.fields])


def chosen_recipe(args: argparse.Namespace) -> "Recipe":
    """The same, refused where it cannot be built."""
    from hdlm.config.build import check_recipe

    recipe = changed_recipe(args)
    check_recipe(recipe)
    return recipe
