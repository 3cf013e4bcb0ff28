"""The text that a command reads: a word of the command line, or a file."""

import argparse
from pathlib import Path


def add_text(parser: argparse.ArgumentParser, words: str) -> None:
    """A model, and a text in either form; `words` say what text."""
    parser.add_argument("model", metavar="CKPT", help="stories, a folder, GGUF file, package or owner/model")
    parser.add_argument("text", nargs="?", metavar="TEXT", help=words)
    parser.add_argument("--file", type=Path, metavar="F", help="read the text from a file, as it is")


def the_text(args: argparse.Namespace) -> str:
    """The one text that was given."""
    if (args.text is None) == (args.file is None):
        given = "no text is given" if args.text is None else f"a text and --file {args.file} are not accepted together"
        raise ValueError(f"{given}: write one text after the model, or --file with a file that holds it")
    if args.text is not None:
        return args.text
    try:
        return args.file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{args.file} is not accepted: it is no text in UTF-8") from None
