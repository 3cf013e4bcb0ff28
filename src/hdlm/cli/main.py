"""The command line: words in, one call into the library, exit code out.

Bad input ends with one line on standard error and exit code 2, never a traceback. What cannot be written after all is
one line too, after the result, and exit code 1. Knows no mathematics: every command (a file beside this one) is a few
lines over functions that a notebook could call as well.
"""

import argparse
import errno
import io
import os
import sys
import warnings
from collections.abc import Sequence
from typing import NoReturn

from hdlm.cli import bench, compare, data, demo, evaluate, export, infill, plan, plot, sample, score, serve, train
from hdlm.cli.flags import note
from hdlm.cli.together import check_alone
from hdlm.errors import UnwrittenError, first_line

_LONGEST = 500  # characters of a message
_OF_WRITING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


class _Parser(argparse.ArgumentParser):
    """argparse whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{_one_line(f'{self.prog}: {message}')} (see {self.prog} --help)\n")

    def parse_known_args(self, args=None, namespace=None):  # pyright: ignore[reportIncompatibleMethodOverride]
        """As of argparse, which would take `--flag=--` for a flag without its value."""
        for word in sys.argv[1:] if args is None else args:
            if word.startswith("--") and word.endswith("=--"):
                self.error(f"argument {word.removesuffix('=--')}: expected one argument")
        return super().parse_known_args(args, namespace)


class _Version(argparse.Action):
    """Say the version: asked of git in a checkout, so not before somebody wants to know."""

    def __call__(self, parser, namespace, values, option_string=None):
        from hdlm.version import version

        print(f"hdlm {version()}")
        parser.exit()


def build_parser() -> argparse.ArgumentParser:
    """All commands and their flags."""
    parser = _Parser(prog="hdlm", description="Language models anywhere between autoregression and diffusion.")
    parser.add_argument("--version", action=_Version, nargs=0, help="show which version this is and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in (demo, plot, data, train, plan, sample, infill, score, evaluate, compare, bench, export, serve):
        command.add(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    The exit code is 0; 1 when the result was shown but not all of it could be written; 2 on bad input or where the
    machine refuses; 130 when interrupted. A reader who leaves early, as in `hdlm ... | head`, is no error.
    """
    warnings.showwarning = _note
    _prepare_streams()
    code = _run(argv)
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left is not tried again at the exit
        if code == 0 and not isinstance(error, BrokenPipeError):
            return _say(f"standard output: {error.strerror}", 1)
    return code


def _run(argv: Sequence[str] | None) -> int:
    """One command, and the exit code of how it ended."""
    try:
        parser = build_parser()
        args, rest = parser.parse_known_args(argv)
        args.fields = _fields(parser, args, rest)
        check_alone(args)
        args.words = list(sys.argv[1:] if argv is None else argv)
        args.run(args)
    except SystemExit as stop:  # of argparse, which has said why
        return stop.code if isinstance(stop.code, int) else 0
    except BrokenPipeError:
        return 0
    except KeyboardInterrupt:
        return _say("interrupted", 130)
    except UnwrittenError as error:
        return _say(str(error), 1)
    except OSError as error:
        if error.filename is None and error.errno in _OF_WRITING:  # all but standard output has a name
            return _say(f"standard output: {error.strerror}", 1)
        return _say(f"{error.filename}: {error.strerror}" if error.filename else str(error), 2)
    except ValueError as error:
        return _say(str(error), 2)
    except (MemoryError, RuntimeError) as error:
        if not _is_about_memory(error):
            raise
        return _say(f"not enough memory: {first_line(error)}", 2)
    return 0


def _prepare_streams() -> None:
    """Lead standard streams that were closed (`>&-`) nowhere: else the next file that is opened would become one.

    What standard output has no letters for is spelled out, since no text should be lost for it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115, open to the end
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _is_about_memory(error: Exception) -> bool:
    """Whether an allocation failed: Python has a kind of error for that, torch only words."""
    return isinstance(error, MemoryError) or "allocate memory" in str(error) or "out of memory" in str(error)


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
    note(str(message))


def _say(message: str, code: int) -> int:
    """Tell a person why the exit code is what it is."""
    print(_one_line(f"hdlm: {message}"), file=sys.stderr)
    return code


def _one_line(message: str) -> str:
    """A message on one line, without the middle of one so long that nobody would find its end."""
    line = " ".join(message.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST // 2]} ... {line[-_LONGEST // 2 :]}"
