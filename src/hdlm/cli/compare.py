"""`hdlm compare`: several models, or ways of decoding of one, on the same text, with paired differences."""

import argparse
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from hdlm.cli.flags import add_judging, command_line, note
from hdlm.files import json_text

_NAME = 18  # characters of a name that stays on one line
_WORDS = {"text": 13, "samples": 10}  # characters of words in a column of numbers: all fit a terminal of 80


def add(commands) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "compare",
        help="several models or ways of decoding on one text, with paired differences",
        usage="hdlm compare MODEL[@WAY] MODEL[@WAY] ... [options]",
    )
    parser.add_argument(
        "models",
        nargs="+",
        metavar="MODEL@WAY",
        help="a model as of hdlm evaluate, and ar, flat, block:16 ... ,sampler=S,rate=R ...",
    )
    parser.add_argument("--data", metavar="D", help="a named set or your own text file to score")
    parser.add_argument("--encoding", default="utf-8", metavar="E", help="of your file; E:replace never refuses")
    parser.add_argument("--draws", type=int, default=4, metavar="K", help="noise draws per piece of text (4)")
    parser.add_argument("--tokens", type=int, metavar="N", help="score evenly spaced pieces of N tokens only")
    parser.add_argument("--samples", type=int, default=0, metavar="N", help="also write and judge N samples each (0)")
    parser.add_argument("--length", type=int, metavar="N", help="tokens of a sample (the smallest context)")
    add_judging(parser, texts="pieces", files="report, picture, results")
    parser.set_defaults(run=_compare)


def _compare(args: argparse.Namespace) -> None:
    from hdlm.cli.progress import told
    from hdlm.evaluate.compare import compare
    from hdlm.evaluate.judge import NO_JUDGE, has_judge
    from hdlm.evaluate.sweep import check_folder
    from hdlm.evaluate.texts import files_of

    if args.out is not None:
        check_folder(args.out)
    files = None if args.data is None else files_of(args.data, args.encoding)
    if files is not None:
        note(str(files))
    models = _models(args)
    same = ("draws", "samples", "length", "judge", "seed", "batch_size", "backend", "encoding")
    found, unwritten = told(
        lambda tell: compare(
            models,
            None if args.data is None else Path(args.data),
            max_tokens=args.tokens,
            folder=args.out,
            command=command_line(),
            progress=tell,
            **{name: getattr(args, name) for name in same},
        ),
        quiet=args.json,
    )
    if args.json:
        print(json_text(found.to_json()))
    else:
        _print(found)
    if args.samples and args.judge is None and not has_judge():
        note(NO_JUDGE)
    if unwritten is not None:
        raise unwritten
    if args.out is not None and not args.json:
        print(f"wrote {args.out / 'report.md'}, differences.png, comparison.json, results.json", file=sys.stderr)


def _models(args: argparse.Namespace) -> dict:
    """Bundles with their ways by the words of the command; a model that is there in several ways is loaded once."""
    from hdlm.bundle import load
    from hdlm.config.way import parse_way
    from hdlm.device import choose_device

    device, loaded, models = choose_device(args.device), {}, {}
    for word in args.models:
        if word in models:
            raise ValueError(f"{word} is there twice: what is compared must differ")
        models[word] = _parted(word)
        if models[word][1] is not None:
            parse_way(models[word][1])
    for word, (place, way) in models.items():
        if place not in loaded:
            loaded[place] = load(place, device=device)
        models[word] = loaded[place] if way is None else (loaded[place], way)
    return models


def _parted(word: str) -> tuple[str, str | None]:
    """A model and its way, None where there is none; a path that exists is a model as it is, whatever is in it."""
    place, mark, way = word.rpartition("@")
    if not mark or Path(word).exists():
        return word, None
    if not place:
        raise ValueError(f"{word} is not accepted: it names a way and no model")
    return place, way


def _print(found) -> None:
    from rich import box
    from rich.console import Console
    from rich.markup import escape

    from hdlm.viz.table import table

    console = Console()
    for part in found.parts:
        head, rows = found.cells(part)
        if head[1] == "bound":  # below the name, to leave room
            head, rows = [head[0], *head[2:]], [[(*name, *bound), *rest] for name, bound, *rest in rows]
        names = [_folded(name.replace("/", " /"), 8) for name in head]
        lines = [
            [escape("\n".join([_broken(name), *below])), *(_narrow(cell, _WORDS[part]) for cell in rest)]
            for (name, *below), *rest in rows
        ]
        shown = table(names, lines, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, leading=1)
        shown.columns[0].overflow = "fold"
        for column in shown.columns[1:]:
            column.no_wrap = True
        console.print(shown)
    for words in found.notes:
        console.print(escape(words), style="dim", highlight=False)


def _broken(name: str) -> str:
    """A name, if it is long, with its way and each setting on a line of its own."""
    return name if len(name) <= _NAME else name.replace("@", "\n@").replace(",", ",\n")


def _narrow(cell: Sequence[str], width: int) -> str:
    """A number, its error and words on it, one below the other."""
    return "\n".join(_folded(part.replace("± ", "±"), width) for part in cell if part)


def _folded(words: str, width: int) -> str:
    return textwrap.fill(words, width, break_long_words=False)
