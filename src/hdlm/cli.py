"""The command line: words in, one call into the library, exit code out.

Bad input ends with one line on standard error and exit code 2, never a traceback. Knows no mathematics:
every command is a few lines over functions that a notebook could call as well.
"""

import argparse
import json
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from hdlm import __version__


class _Parser(argparse.ArgumentParser):
    """argparse whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def build_parser() -> argparse.ArgumentParser:
    """All commands and their flags."""
    parser = _Parser(prog="hdlm", description="Language models anywhere between autoregression and diffusion.")
    parser.add_argument("--version", action="version", version=f"hdlm {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    demo = commands.add_parser("demo", help="draw both picture catalogues and show the hyperschedules here")
    demo.add_argument("--out", type=Path, default=Path("demo"), metavar="DIR", help="folder for the pictures (demo)")
    demo.set_defaults(run=_demo)

    plot = commands.add_parser("plot", help="pictures of hyperschedules and attention layouts")
    pictures = plot.add_subparsers(dest="picture", metavar="PICTURE", required=True)
    _add_hyperschedule(pictures)
    _add_layout(pictures)
    _add_train(commands)
    _add_plan(commands)
    return parser


def _add_train(commands) -> None:
    parser = commands.add_parser(
        "train",
        help="train a model from a recipe, or go on with a run",
        description="Train a model. Any field of the recipe is a flag by its dotted name: --optimizer.lr 1e-3.",
    )
    parser.add_argument("recipe", nargs="?", default="laptop", metavar="RECIPE", help="see --list (laptop)")
    parser.add_argument(
        "--resume", type=Path, metavar="DIR", help="go on with the run in this folder; needs nothing else"
    )
    parser.add_argument("--data", help="a corpus by name, or a file or folder of text, or a matrix of tokens")
    parser.add_argument("--steps", type=int, help="optimiser steps")
    parser.add_argument("--seed", type=_seed, help="seed of weights, order and noise")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the run (runs/RECIPE)")
    parser.add_argument("--save-every", type=int, metavar="N", help="steps between checkpoints")
    parser.add_argument("--init-from", metavar="CKPT", help="start from this model folder's weights and tokenizer")
    parser.add_argument("--device", help="cpu or cuda (cuda where there is one)")
    parser.add_argument("--wandb", action="store_true", help="log to Weights & Biases too")
    parser.add_argument("--dry-run", action="store_true", help="build everything at toy size and take one step")
    parser.add_argument("--list", action="store_true", help="show all recipes")
    parser.add_argument("--json", action="store_true", help="print the result as JSON and nothing else")
    parser.set_defaults(run=_train, takes_fields=True)


def _add_plan(commands) -> None:
    parser = commands.add_parser("plan", help="what a recipe will cost: parameters, FLOPs, memory, hours")
    parser.add_argument("recipe", metavar="RECIPE", help="see hdlm train --list")
    parser.add_argument("--gpus", type=int, default=1, help="number of GPUs (1)")
    parser.add_argument("--gpu", default="h200", help="kind of GPU (h200)")
    parser.add_argument("--mfu", type=float, default=0.4, help="share of the peak that is reached (0.4)")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    parser.set_defaults(run=_plan, takes_fields=True)


def _seed(word: str) -> int:
    value = int(word)
    if not 0 <= value < 2**63:
        raise argparse.ArgumentTypeError(f"{word} is not accepted: it must be in 0..2^63-1")
    return value


def _add_output(parser: argparse.ArgumentParser, default: str) -> None:
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--out", metavar="FILE", help=f"PNG, SVG or PDF by its suffix ({default})")
    how.add_argument("--terminal", action="store_true", help="show it here instead of writing a file")
    how.add_argument("--json", action="store_true", help="print the numbers behind it instead")
    parser.set_defaults(default_out=default)


def _add_hyperschedule(pictures) -> None:
    parser = pictures.add_parser(
        "hyperschedule", help="noise levels by step and position, and what they do to a sentence (figure 2)"
    )
    parser.add_argument("--text", help="the sentence, its words being the positions")
    parser.add_argument("--length", type=int, help="number of positions (the words of the sentence)")
    parser.add_argument("--width", type=int, help="width of block and slide (3, or the length if shorter)")
    parser.add_argument("--rate", type=float, default=1.0, help="tokens per step; quench is always 1 (1)")
    parser.add_argument(
        "--custom", metavar="FILE", help="JSON matrix of levels [steps + 1][length], drawn beside the four"
    )
    parser.add_argument("--gamma", type=float, default=0.3, help="share of uniform noise in the hybrid row (0.3)")
    parser.add_argument("--seed", type=_seed, default=0, help="seed of the noise (0)")
    _add_output(parser, "hyperschedule.png")
    parser.set_defaults(run=_plot_hyperschedule)


def _add_layout(pictures) -> None:
    parser = pictures.add_parser("layout", help="who attends to whom in a training pass (figures 6 to 9)")
    parser.add_argument("--length", type=int, default=12, help="number of positions (12)")
    parser.add_argument("--width", type=int, default=4, help="width of the windows (4)")
    parser.add_argument("--starts", type=int, nargs="+", metavar="J", help="where slide's windows start (2 5 11)")
    _add_output(parser, "layout.png")
    parser.set_defaults(run=_plot_layout)


def _plot_hyperschedule(args: argparse.Namespace) -> None:
    from hdlm.plots import hyperschedule, style, terminal
    from hdlm.plots.trajectory import sentence_of

    out = style.check_picture_path(args.out or args.default_out)
    custom = hyperschedule.load_custom(args.custom) if args.custom else None
    if custom is not None and args.length not in (None, custom.length):
        raise ValueError(f"--length {args.length} is not accepted: {args.custom} has {custom.length} positions")
    sentence = sentence_of(args.text, custom.length if custom is not None else args.length)
    width = args.width if args.width is not None else min(3, len(sentence))
    schedules = hyperschedule.build_schedules(len(sentence), width, args.rate)
    if custom is not None:
        schedules.append(custom)
    if args.json:
        fields = ("length", "width", "rate", "max_level", "steps")
        rows = [{"name": type(s).__name__.lower()} | {f: getattr(s, f) for f in fields} for s in schedules]
        print(json.dumps([row | {"levels": s.levels.tolist()} for row, s in zip(rows, schedules, strict=True)]))
        return
    catalogue = hyperschedule.build_catalogue(sentence, schedules, gamma=args.gamma, seed=args.seed)
    if args.terminal:
        _show(terminal.hyperschedules(catalogue))
    else:
        print(f"wrote {style.save(hyperschedule.draw(catalogue), out)}")


def _plot_layout(args: argparse.Namespace) -> None:
    from hdlm.plots import layout, style, terminal

    out = style.check_picture_path(args.out or args.default_out)
    pictures = layout.build_pictures(args.length, args.width, args.starts)
    if args.json:
        names = ("holds", "predicts", "position", "noisy", "window", "limit")
        rows = [{"title": p.title} | {name: getattr(p.layout, name).tolist() for name in names} for p in pictures]
        print(json.dumps([row | {"mask": p.layout.mask().tolist()} for row, p in zip(rows, pictures, strict=True)]))
    elif args.terminal:
        _show(terminal.layouts(pictures))
    else:
        print(f"wrote {style.save(layout.draw(pictures), out)}")


def _chosen_recipe(args: argparse.Namespace):
    """The named recipe with the flags' changes."""
    from hdlm import recipes
    from hdlm.recipe import override

    recipe = recipes.get(args.recipe)
    for name in ("data", "steps", "seed", "save_every", "init_from"):
        value = getattr(args, name, None)
        if value is not None:
            recipe = override(recipe, name, str(value))
    for name, word in args.fields:
        recipe = override(recipe, name, word)
    return recipe


def _train(args: argparse.Namespace) -> None:
    if args.list:
        _list_recipes(args.json)
        return
    if args.resume is not None:
        from hdlm.train.loop import resume

        given = [
            name
            for name in ("data", "steps", "seed", "out", "save_every", "init_from")
            if getattr(args, name) is not None
        ]
        given += [name for name, _ in args.fields]
        if given:
            raise ValueError(f"--resume takes no {', '.join(given)}: a run goes on with the recipe that it began with")
        result = resume(args.resume, device=args.device, wandb=args.wandb, quiet=args.json)
    elif args.dry_run:
        from hdlm.train.dry_run import dry_run

        recipe, done = _chosen_recipe(args), dry_run(_chosen_recipe(args))
        losses = ", ".join(f"{loss:.3f}" for loss in done.losses)
        print(
            json.dumps(vars(done)) if args.json else f"{recipe.name}: one toy step, {done.slots} slots, loss {losses}"
        )
        return
    else:
        from hdlm.train.loop import train

        recipe = _chosen_recipe(args)
        out = args.out if args.out is not None else Path("runs") / recipe.name
        result = train(recipe, out, device=args.device, wandb=args.wandb, quiet=args.json)
    if args.json:
        bound = vars(result.bound) if result.bound is not None else None
        print(json.dumps({"out": str(result.folder), "step": result.step, "finished": result.finished, "bound": bound}))


def _list_recipes(as_json: bool) -> None:
    from hdlm.recipes import all_recipes

    recipes = all_recipes().values()
    if as_json:
        print(json.dumps([recipe.to_json() for recipe in recipes]))
        return
    for recipe in recipes:
        print(f"{recipe.name:<28} {recipe.about}")


def _plan(args: argparse.Namespace) -> None:
    from hdlm.plan import plan

    found = plan(_chosen_recipe(args), gpus=args.gpus, gpu=args.gpu, mfu=args.mfu)
    if args.json:
        print(json.dumps(found.to_json()))
        return
    print(f"{found.recipe} on {found.gpus} x {found.gpu}")
    rows = {
        "parameters": f"{found.parameters / 1e6:,.1f} M, vocabulary {found.vocab_size:,}",
        "tokens": f"{found.tokens / 1e9:,.1f} G in {found.steps:,} steps",
        "slots a row": f"{found.slots:,} for {found.active:,} active tokens",
        "FLOPs": f"{found.flops:.2e}",
        "memory": f"about {found.memory_gib:.0f} GiB a GPU",
        "time": f"{found.hours:,.0f} hours at {found.mfu:.0%} of the peak",
    }
    for name, value in rows.items():
        print(f"  {name:<12} {value}")


def _demo(args: argparse.Namespace) -> None:
    from hdlm.plots import hyperschedule, layout, style, terminal
    from hdlm.plots.trajectory import sentence_of

    print("One sentence, four hyperschedules, three kinds of noise:\n")
    sentence = sentence_of(None, None)
    catalogue = hyperschedule.build_catalogue(sentence, hyperschedule.build_schedules(len(sentence), 3, 1))
    _show(terminal.hyperschedules(catalogue))
    print("\ndrawing the same as pictures ...", flush=True)
    print(f"wrote {style.save(hyperschedule.draw(catalogue), args.out / 'hyperschedule.png')}")
    print(f"wrote {style.save(layout.draw(layout.build_pictures()), args.out / 'layout.png')}")


def _show(renderable) -> None:
    from rich.console import Console

    Console(highlight=False).print(renderable, crop=True, no_wrap=True, overflow="crop")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, 2 on bad input, 130 when interrupted."""
    warnings.showwarning = _note
    try:
        parser = build_parser()
        args, rest = parser.parse_known_args(argv)
        args.fields = _fields(parser, args, rest)
        args.run(args)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough, as in `hdlm ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        print("hdlm: interrupted", file=sys.stderr)
        return 130
    except OSError as error:
        return _refuse(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except ValueError as error:
        return _refuse(str(error))
    return 0


def _fields(parser: argparse.ArgumentParser, args: argparse.Namespace, rest: list[str]) -> list[tuple[str, str]]:
    """Flags that no command knows, as a recipe's fields: --optimizer.lr 1e-3 or --optimizer.lr=1e-3."""
    words = [part for word in rest for part in (word.split("=", 1) if word.startswith("--") else [word])]
    names, values = words[::2], words[1::2]
    fields = list(zip((name.removeprefix("--").replace("-", "_") for name in names), values, strict=False))
    good = len(names) == len(values) and all(name.startswith("--") for name in names)
    if rest and not (good and getattr(args, "takes_fields", False)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return fields


def _note(message, category, filename, lineno, file=None, line=None) -> None:
    """A warning of the library as one line for a person."""
    print(f"hdlm: note: {' '.join(str(message).split())}", file=sys.stderr)


def _refuse(message: str) -> int:
    print(f"hdlm: {' '.join(message.split())}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
