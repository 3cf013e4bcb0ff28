"""What happens beyond the trained context: the bound by position on real text in rows several contexts long.

    python benchmarks/long_context.py CKPT [--data stdlib] [--times 4] [--rows 64] [--out results.json]

Block, slide and autoregressive decoding go on past the context that a network was trained on. This scores rows of
`--times` contexts of held-out text and prints the mean bound in each context's worth of positions, by the network's own
schedule and, for shifted networks, by its next-token predictions.
"""

import argparse
import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

import hdlm
from hdlm.evaluate.likelihood import estimate
from hdlm.evaluate.texts import rows_of_set
from hdlm.files import written_aside
from hdlm.theory.entries import Quench


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--data", default="stdlib")
    parser.add_argument("--times", type=int, default=4)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--draws", type=int, default=4)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    bundle = hdlm.load(args.model)
    context = bundle.config.context
    length = args.times * context
    rows = rows_of_set(bundle, args.data, length=length, max_tokens=args.rows * length).tokens
    rows = [row for row in rows if len(row) == length]
    table = Table(title=f"{args.model}: {len(rows)} rows of {length} tokens of {args.data}, context {context}")
    schedules = [bundle.hyperschedule]
    if bundle.config.shifted and not schedules[0].autoregressive:
        schedules.append(Quench(length))
    for column in ("positions", *(f"{s.kind}, nats per token" for s in schedules)):
        table.add_column(column, justify="right")
    found = []
    for part in range(args.times):
        # Scored in one pass with what comes before it, as generation would see it.
        upto = [row[: (part + 1) * context] for row in rows]
        span = f"{part * context}..{(part + 1) * context - 1}"
        shown = []
        for schedule in schedules:
            bound = estimate(
                bundle, upto, prefix=part * context, draws=args.draws, batch_size=4, hyperschedule=schedule
            )
            row = {"positions": span, "schedule": schedule.kind, "name": bound.name}
            found.append(row | {"value": bound.value, "error": bound.error})
            shown.append(f"{bound.value:.3f} ± {bound.error:.3f}")
        table.add_row(span, *shown)
    Console().print(table)
    if args.out:
        with written_aside(args.out) as aside:
            settings = {name: str(value) for name, value in vars(args).items() if name not in ("model", "out")}
            settings["model"] = Path(args.model).name
            aside.write_text(json.dumps({"settings": settings, "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
