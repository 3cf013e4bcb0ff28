"""`hdlm data`: text made into tokens once, by several processes, and what there is of it."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hdlm.files import json_text

if TYPE_CHECKING:
    from hdlm.data.prepare import Progress
    from hdlm.data.prepared import Prepared

_FIRST = 80  # characters of a first row that are shown


def add(commands) -> None:
    """Declare it."""
    data = commands.add_parser("data", help="prepare text for training, list, inspect and verify it")
    actions = data.add_subparsers(dest="action", metavar="ACTION", required=True)
    _add_prepare(actions)
    _add_list(actions)
    for name, what, run in (
        ("inspect", "what prepared data holds: splits, tokens, documents, first rows", _inspect),
        ("verify", "read all of prepared data, and compare it with its index", _verify),
    ):
        parser = actions.add_parser(name, help=what)
        parser.add_argument("folder", metavar="DIR", help="what hdlm data prepare made, or its URL")
        parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
        parser.set_defaults(run=run)


def _add_prepare(actions) -> None:
    parser = actions.add_parser(
        "prepare",
        help="tokenise a corpus into shards; stopped at any moment, it goes on when it is called again",
        usage="hdlm data prepare NAME|PATH --tokenizer T --out DIR [options]",
    )
    parser.add_argument("data", metavar="NAME|PATH", help="a set by name (hdlm data list), or a file or folder of text")
    parser.add_argument("--tokenizer", required=True, metavar="T", help="bpe-SIZE, bytes, chars, a name or a file")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder of the tokens")
    parser.add_argument("--workers", type=int, metavar="N", help="processes that encode (one a core)")
    parser.add_argument("--encoding", default="utf-8", metavar="E", help="of text files, or E:replace (utf-8)")
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    parser.set_defaults(run=_prepare)


def _add_list(actions) -> None:
    parser = actions.add_parser("list", help="sets by name, where they are or how to have them; prepared data")
    parser.add_argument(
        "folders", nargs="*", type=Path, metavar="DIR", help="where to look for prepared data (here, and in $HDLM_DATA)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    parser.set_defaults(run=_list)


def _prepare(args: argparse.Namespace) -> None:
    from hdlm.data.prepare import prepare
    from hdlm.train.log import Console

    console = Console(quiet=args.json)
    made = prepare(
        args.data,
        args.out,
        tokenizer=args.tokenizer,
        workers=args.workers,
        encoding=args.encoding,
        tell=lambda progress: console.line(_words(progress)),
    )
    console.close_line()
    if args.json:
        print(json_text(_facts(made)))
        return
    _print_splits(made)
    print(f"\ntrain with: hdlm train --data {args.out}")


def _words(progress: "Progress") -> str:
    """How far preparing is, in a line."""
    words = f"{progress.doing}: {progress.documents:,} documents"
    if progress.tokens:
        words += f", {progress.tokens:,} tokens"
    if progress.share is not None:
        words += f" ({progress.share:.0%})"
    if progress.tokens_per_second:
        words += f"  {progress.tokens_per_second:,.0f} tokens/s"
    if progress.seconds_left is not None:
        left = int(progress.seconds_left)
        words += f"  {left // 3600}:{left // 60 % 60:02d}:{left % 60:02d} left"
    return words


def _facts(made: "Prepared") -> dict[str, Any]:
    """Prepared data for a script."""
    counts = ("tokens", "documents", "text_bytes", "replaced")
    return {
        "folder": str(made.folder),
        "source": made.source.name,
        "encoding": made.source.encoding,
        "tokenizer": made.source.tokenizer,
        "vocab_size": made.vocab_size,
        "splits": {
            split: {"shards": len(shards)} | {name: made.total(split, name) for name in counts}
            for split, shards in made.splits.items()
        },
    }


def _print_splits(made: "Prepared") -> None:
    from rich import box
    from rich.console import Console

    from hdlm.viz.table import table

    rows = []
    for split, found in _facts(made)["splits"].items():
        each = found["text_bytes"] / found["tokens"] if found["tokens"] else 0.0
        counts = (f"{found[name]:,}" for name in ("shards", "documents", "tokens", "text_bytes"))
        rows.append((split, *counts, f"{each:.2f}"))
    console = Console(highlight=False)
    console.print(f"{made.folder}: {made}, vocabulary {made.vocab_size:,}", soft_wrap=True, markup=False)
    console.print(table(("split", "shards", "documents", "tokens", "bytes", "bytes/token"), rows, box=box.SIMPLE_HEAD))


def _inspect(args: argparse.Namespace) -> None:
    from hdlm.data.listed import first_texts

    made = _opened(args)
    firsts = first_texts(made)
    if args.json:
        print(json_text(_facts(made) | {"first": firsts}))
        return
    _print_splits(made)
    for split, text in firsts.items():
        print(f"{split}: {' '.join(text.split())[:_FIRST]}")


def _verify(args: argparse.Namespace) -> None:
    from hdlm.cli.progress import told
    from hdlm.data.prepared import verify

    made = _opened(args)
    size, _ = told(lambda tell: verify(made, tell), quiet=args.json)
    if args.json:
        print(json_text(_facts(made) | {"bytes": size, "whole": True}))
        return
    print(f"{args.folder} is whole: {made}, {size:,} bytes of tokens")


def _opened(args: argparse.Namespace) -> "Prepared":
    from hdlm.cli.progress import told
    from hdlm.data.remote import open_prepared

    return told(lambda tell: open_prepared(args.folder, tell), quiet=args.json)[0]


def _list(args: argparse.Namespace) -> None:
    from hdlm.data.listed import prepared_in, sets

    named, made = sets(), prepared_in(args.folders)
    if args.json:
        print(json_text({"sets": named, "prepared": [_facts(each) for each in made]}))
        return
    widest = max(len(each["name"]) for each in named)
    for each in named:
        print(f"{each['name']:<{widest}}  {each['state']:<8}  {each['about']}")
        print(f"{'':<{widest}}  {'':<8}  {each['place']}")
    for each in made:
        print(f"\nprepared: {each.folder}: {each}")
