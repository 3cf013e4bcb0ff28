"""`hdlm score`: how likely a text is, token by token, with what surprises the model in colour."""

import argparse
import math
import sys
from pathlib import Path

from hdlm.cli.flags import add_schedule, chosen_hyperschedule, seed
from hdlm.cli.sample import token_ids
from hdlm.cli.text import add_text, the_text
from hdlm.errors import outputs
from hdlm.files import check_file, json_text


def add(commands) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "score",
        help="how likely a text is, token by token, in colour or as a page",
        usage='hdlm score CKPT "Tom had a red ball." [options]',
    )
    add_text(parser, "text to score")
    parser.add_argument("--ids", type=token_ids, metavar="IDS", help='token ids instead of text, as in "12 7 99"')
    add_schedule(parser)
    parser.add_argument(
        "--samples", type=int, default=16, metavar="K", help="noise draws, where it is no exact one (16)"
    )
    parser.add_argument("--seed", type=seed, default=0, help="of the noise (0)")
    parser.add_argument("--device", help="cpu or cuda (cuda where there is one)")
    parser.add_argument("--top", type=int, default=10, metavar="N", help="so many of the most surprising tokens (10)")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the coloured text as a page")
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    parser.set_defaults(run=_score)


def _score(args: argparse.Namespace) -> None:
    from hdlm.bundle import load
    from hdlm.cli.progress import progress_bar
    from hdlm.device import choose_device
    from hdlm.evaluate.score import score
    from hdlm.theory import checks
    from hdlm.viz.surprise import spans, write_page

    checks.integer("--top", args.top, low=1)
    checks.integer("--samples", args.samples, low=1)
    text, schedule = _given(args), chosen_hyperschedule(args)
    if args.html is not None:
        _check_page(args.html)
    bundle = load(args.model, device=choose_device(args.device))
    with progress_bar(quiet=args.json) as bar:
        task = bar.add_task("scoring", total=1)
        found = score(
            bundle,
            text,
            hyperschedule=schedule,
            samples=args.samples,
            seed=args.seed,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    facts, parts = _facts(found), spans(found.pieces, found.logprobs)
    with outputs() as files:
        if args.html is not None:
            title = f"{Path(args.model).resolve().name} reads {'a text' if args.file is None else args.file.name}"
            with files.writing(args.html):
                write_page(args.html, parts, title=title, facts=facts, exact=found.exact, top=args.top)
        if args.json:
            print(json_text(found.to_json()))
            return
        _print(parts, facts, exact=found.exact, top=args.top)
        if args.html is not None and files.has(args.html):
            print(f"wrote {args.html}", file=sys.stderr)


def _given(args: argparse.Namespace) -> str | list[int]:
    """The one text or row of ids that was given."""
    if args.ids is None:
        return the_text(args)
    if args.text is not None or args.file is not None:
        raise ValueError("--ids is not accepted beside a text: give one of them")
    return args.ids


def _check_page(path: Path) -> None:
    if path.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"--html {path} is not accepted: a page's name must end in .html")
    check_file(path)


def _facts(found) -> dict[str, str]:
    """What the whole text comes to, by name."""
    bound = found.bound
    error = "" if found.error is None else f" ± {found.error:.2f}"
    each = "" if found.error is None else f" ± {found.error / len(found):.3f}"
    facts = {
        "likelihood": f"{found.name} ({bound.schedule})",
        "total": f"{bound.nats:.2f}{error} nats, {len(found):,} tokens",
        "per token": f"{bound.value:.3f}{each} nats, perplexity {bound.perplexity:,.2f}",
    }
    if "bytes" in bound.counts:
        nats = bound.per("bytes")
        facts["per byte"] = f"{nats:.3f} nats, {nats / math.log(2):.3f} bits, {bound.counts['bytes']:,} bytes"
    return facts


def _print(parts, facts: dict[str, str], *, exact: bool, top: int) -> None:
    from rich import box
    from rich.console import Console
    from rich.markup import escape

    from hdlm.viz.surprise import coloured, legend, most_surprising, probability
    from hdlm.viz.table import table

    console = Console(highlight=False)
    console.print(coloured(parts), soft_wrap=True)
    if console.color_system is not None:
        console.print(legend(exact=exact))
    console.print()
    for name, fact in facts.items():
        console.print(f"{name:<12}{fact}", soft_wrap=True)
    rows = [
        (escape(repr(span.text)), str(span.position), f"{span.nats:.2f}", *((probability(span.nats),) if exact else ()))
        for span in most_surprising(parts, top)
    ]
    names = ("most surprising", "token", "nats", *(("probability",) if exact else ()))
    console.print(table(names, rows, box=box.SIMPLE_HEAD))
