"""`hdlm plan`: what a recipe will cost, before anything is spent."""

import argparse

from hdlm.cli.flags import add_mixture, chosen_recipe
from hdlm.files import json_text


def add(commands) -> None:
    """Declare it."""
    parser = commands.add_parser(
        "plan",
        help="what a recipe will cost: parameters, FLOPs, memory, hours",
        description="Any field of the recipe is a flag by its dotted name: --model.width 512.",
    )
    parser.add_argument("recipe", metavar="RECIPE", help="see hdlm train --list")
    add_mixture(parser)
    parser.add_argument("--gpus", type=int, default=1, help="number of GPUs (1)")
    parser.add_argument("--gpu", default="h200", help="kind of GPU (h200)")
    parser.add_argument("--mfu", type=float, default=0.4, help="share of the peak that is reached (0.4)")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    parser.set_defaults(run=_plan, takes_fields=True)


def _plan(args: argparse.Namespace) -> None:
    from hdlm.bench.plan import plan

    found = plan(chosen_recipe(args), gpus=args.gpus, gpu=args.gpu, mfu=args.mfu)
    if args.json:
        print(json_text(vars(found)))
        return
    time = f"{found.hours:,.0f} hours" if found.hours >= 2 else f"{60 * found.hours:.0f} minutes"
    print(f"{found.recipe} on {found.gpus} x {found.gpu}")
    rows = {
        "parameters": f"{found.parameters / 1e6:,.1f} M, vocabulary {found.vocab_size:,}",
        "tokens": f"{found.tokens / 1e9:.3g} G in {found.steps:,} steps",
        "slots a row": f"{found.slots:,} for {found.active:,} active tokens",
        "FLOPs": f"{found.flops:.2e}",
        "memory": f"about {found.memory_gib:.0f} GiB a GPU",
        "time": f"{time} at {found.mfu:.0%} of the peak",
    }
    for name, value in rows.items():
        print(f"  {name:<12} {value}")
