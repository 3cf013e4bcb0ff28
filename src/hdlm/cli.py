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
    return parser


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
        args = build_parser().parse_args(argv)
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


def _note(message, category, filename, lineno, file=None, line=None) -> None:
    """A warning of the library as one line for a person."""
    print(f"hdlm: note: {' '.join(str(message).split())}", file=sys.stderr)


def _refuse(message: str) -> int:
    print(f"hdlm: {' '.join(message.split())}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
