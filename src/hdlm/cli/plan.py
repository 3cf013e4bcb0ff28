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
    parser.add_argument("--gpus", type=int, default=1, help="GPUs of a machine (1)")
    parser.add_argument("--nodes", type=int, default=1, help="machines (1)")
    parser.add_argument("--gpu", default="h200", help="kind of GPU (h200)")
    parser.add_argument("--mfu", type=float, default=0.4, help="share of the peak that is reached (0.4)")
    parser.add_argument("--link", type=float, default=450.0, help="GB/s that a GPU sends inside of its machine (450)")
    parser.add_argument("--network", type=float, default=50.0, help="GB/s that a GPU sends to other machines (50)")
    parser.add_argument("--price", type=float, help="of a GPU for an hour, for the cost of 1G tokens")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    parser.set_defaults(run=_plan, takes_fields=True)


def _plan(args: argparse.Namespace) -> None:
    from hdlm.bench.plan import plan

    where = {"gpus": args.gpus, "nodes": args.nodes, "gpu": args.gpu, "link": args.link, "network": args.network}
    found = plan(chosen_recipe(args), **where, mfu=args.mfu, price=args.price)
    if args.json:
        print(json_text(vars(found)))
        return
    time = f"{found.hours:,.0f} hours" if found.hours >= 2 else f"{60 * found.hours:.0f} minutes"
    print(f"{found.recipe} on {f'{found.nodes} x ' if found.nodes > 1 else ''}{found.gpus} x {found.gpu}")
    rows = {
        "parameters": f"{found.parameters / 1e6:,.1f} M, vocabulary {found.vocab_size:,}",
        "tokens": f"{found.tokens / 1e9:.3g} G in {found.steps:,} steps",
        "slots a row": f"{found.slots:,} for {found.active:,} active tokens",
        "FLOPs": f"{found.flops:.2e}",
        "memory": f"about {found.memory_gib:.0f} GiB a GPU",
        "time": f"{time} at {found.mfu:.0%} of the peak",
    }
    if found.gpus * found.nodes > 1:
        sent = f"{found.sent_inside / 1e9:.2f} GB inside of a machine, {found.sent_between / 1e9:.2f} GB between them"
        rows["traffic"] = f"{sent}, of each GPU in a step"
        rows["at most"] = f"{found.hours_at_most / found.hours:.2f} x that time, if none of it is hidden"
    rows["tokens/s"] = f"{found.tokens_per_s:,.0f}"
    if found.price_per_billion is not None:
        rows["price"] = f"{found.price_per_billion:,.2f} for 1 G tokens"
    for name, value in rows.items():
        print(f"  {name:<12} {value}")
