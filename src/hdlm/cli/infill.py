"""`hdlm infill`: the gaps of a text filled, once or in several ways."""

import argparse

from hdlm.cli.flags import add_device
from hdlm.cli.sample import add_draws, add_views, check_views, gaps_asked, write
from hdlm.cli.text import add_text, the_text
from hdlm.cli.together import writers


def add(commands) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "infill",
        help="fill the gaps of a text: live, as a replay, or as JSON",
        usage='hdlm infill CKPT "Tom had a [[gap:4]]. He was sad." [options]',
    )
    add_text(parser, "text with gaps: [[gap:N]] of N tokens, [[gap:4-20]], or [[gap]] of any length")
    parser.add_argument("--num-samples", type=int, default=1, metavar="N", help="ways to fill them (1)")
    add_draws(parser)
    add_device(parser)
    add_views(parser)
    parser.set_defaults(run=_infill, together=True)


def _infill(args: argparse.Namespace) -> None:
    from hdlm.bundle import load

    check_views(args)
    text = the_text(args)
    with writers(args) as world:
        bundle = load(args.model, device=world.device)
        if bundle.tokenizer is None:
            raise ValueError(f"{args.model} has no tokenizer: it cannot read the text around a gap")
        write(bundle, gaps_asked(bundle, text, args), args, world)
