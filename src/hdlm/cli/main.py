"""The command line: words in, one call into the library, exit code out.

Bad input ends with one line on standard error and exit code 2, never a traceback. Knows no mathematics:
every command (a file beside this one) is a few lines over functions that a notebook could call as well.
"""

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from typing import NoReturn

from hdlm import __version__
from hdlm.cli import bench, demo, evaluate, plan, plot, sample, train


class _Parser(argparse.ArgumentParser):
    """argparse whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def build_parser() -> argparse.ArgumentParser:
    """All commands and their flags."""
    parser = _Parser(prog="hdlm", description="Language models anywhere between autoregression and diffusion.")
    parser.add_argument("--version", action="version", version=f"hdlm {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in (demo, plot, train, plan, sample, evaluate, bench):
        command.add(commands)
    return parser


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
