"""`hdlm export`: a model as a folder that others load, here or on the Hugging Face hub."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from hdlm.cli.flags import note
from hdlm.errors import UnwrittenError
from hdlm.files import json_text

if TYPE_CHECKING:
    from hdlm.bundle import Bundle
    from hdlm.interop.export import Exported


def add(commands) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "export",
        help="a model as a folder that transformers loads, here or on the hub",
        usage="hdlm export CKPT --out DIR [options]  (CKPT: stories, a folder, a run, or owner/model)",
    )
    parser.add_argument("model", metavar="CKPT", help=argparse.SUPPRESS)
    layouts = ("huggingface", "hdlm")
    words = "huggingface: for transformers, with its code; hdlm: a folder of ours (huggingface)"
    parser.add_argument("--to", choices=layouts, default=layouts[0], metavar="LAYOUT", help=words)
    parser.add_argument("--out", type=Path, metavar="DIR", help="the folder: new, empty, or an older export")
    parser.add_argument("--push", metavar="OWNER/NAME", help="send it to the hub, with the token in $HF_TOKEN")
    parser.add_argument("--private", action="store_true", help="of a model that --push makes: for its owner alone")
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    parser.set_defaults(run=_export)


def _export(args: argparse.Namespace) -> None:
    from hdlm.cli.progress import progress_bar
    from hdlm.interop.export import export

    if args.out is None and args.push is None:
        raise ValueError("--out is missing: say which folder to write, or --push owner/name")
    error = None
    with progress_bar(quiet=args.json) as bar:
        bar.add_task("exporting", total=None)
        try:
            done = export(_model(args.model), args.out, to=args.to, push=args.push, private=args.private)
        except UnwrittenError as unsent:  # the folder is there all the same, if one was asked for
            error, done = unsent, unsent.result
    if done is not None:
        _tell(done, args)
    if error is not None:
        raise error


def _model(name: str) -> "Bundle | str":
    """What is exported: of a run that has no model yet, that of its last checkpoint."""
    run = Path(name)
    if (run / "config.json").exists() or not (run / "trainer" / "recipe.json").is_file():
        return name
    from hdlm.train.consolidate import bundle_of

    note(f"the run in {name} is not finished: this is its last checkpoint")
    return bundle_of(run)


def _tell(done: "Exported", args: argparse.Namespace) -> None:
    if args.json:
        print(json_text({"to": args.to, "out": done.folder and str(done.folder), "pushed": done.address}))
        return
    if done.folder is not None:
        print(f"wrote {done.folder}")
    if done.address is not None:
        print(f"pushed {done.address}")
