"""`hdlm evaluate`: what bound, how sure, at what diversity, at what cost."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from hdlm.cli.flags import add_judging, add_schedule, chosen_hyperschedule, command_line, note
from hdlm.files import json_text


def add(commands) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "evaluate",
        help="likelihood bounds, generative perplexity, entropy, MAUVE; sweeps and reports",
        usage="hdlm evaluate CKPT [options]",
    )
    parser.add_argument("model", metavar="CKPT", help="stories, a folder, GGUF file, package or owner/model")
    parser.add_argument("--data", nargs="+", default=[], metavar="D", help="named sets or your own text files")
    parser.add_argument("--encoding", default="utf-8", metavar="E", help="of your files, or E:replace (utf-8)")
    parser.add_argument("--metrics", metavar="M", help="bound,gen-ppl,entropy,mauve (the first 3 if possible)")
    parser.add_argument("--samples", type=int, default=32, metavar="N", help="samples to judge (32)")
    parser.add_argument("--length", type=int, metavar="N", help="tokens of a sample (the context)")
    add_schedule(parser)
    parser.add_argument("--rate", type=float, help="tokens per step when sampling (1)")
    parser.add_argument("--sampler", metavar="S", help="as of hdlm sample")
    parser.add_argument("--eta", type=float, help="strength of acs and remask")
    parser.add_argument("--sweep", nargs="+", default=[], metavar="K=V", help="rate=8,4,2,1 eta=0,0.01,0.05 ...")
    parser.add_argument("--draws", type=int, default=4, metavar="K", help="noise draws per row of text (4)")
    parser.add_argument("--order", metavar="O", help="exact likelihood by certain or left-to-right, no bound")
    parser.add_argument("--tokens", type=int, metavar="N", help="score evenly spaced rows of N tokens only")
    add_judging(parser, texts="rows", files="report, figures, results")
    parser.set_defaults(run=_evaluate)


def _evaluate(args: argparse.Namespace) -> None:
    from hdlm.bundle import load
    from hdlm.cli.progress import told
    from hdlm.device import choose_device
    from hdlm.evaluate.judge import NO_JUDGE
    from hdlm.evaluate.run import evaluate
    from hdlm.evaluate.sweep import check_folder
    from hdlm.evaluate.texts import files_of

    wanted = _evaluation(args)
    if args.out is not None:
        check_folder(args.out)
    for files in filter(None, (files_of(data, args.encoding) for data in args.data)):
        note(str(files))
    bundle = load(args.model, device=choose_device(args.device))
    if bundle.tokenizer is None and args.metrics is None:
        wanted = replace(wanted, metrics=tuple(metric for metric in wanted.metrics if metric != "gen-ppl"))
    name = Path(args.model).resolve().name if Path(args.model).exists() else args.model
    cells, unwritten = told(
        lambda tell: evaluate(bundle, wanted, name=name, command=command_line(), folder=args.out, progress=tell),
        quiet=args.json,
    )
    if args.json:
        print(json_text({"model": name, "cells": cells}))
    else:
        _print(cells)
    if args.metrics is None and not _judged(args) and bundle.tokenizer is not None:
        note(NO_JUDGE)
    if unwritten is not None:
        raise unwritten
    if args.out is not None and not args.json:
        print(f"wrote {args.out / 'report.md'}, report.html, results.json", file=sys.stderr)


def _evaluation(args: argparse.Namespace):
    """What the flags ask for."""
    from hdlm.evaluate.run import Evaluation
    from hdlm.evaluate.sweep import parse_sweep

    metrics = args.metrics.split(",") if args.metrics is not None else _default_metrics(args)
    if args.metrics is not None and "bound" in metrics and not args.data:
        raise ValueError("the bound is a bound on some text: say which (--data)")
    settings = {"rate": args.rate, "sampler": args.sampler, "eta": args.eta}
    sweep = parse_sweep(args.sweep)
    for swept, sampler in (("eta", "acs"), ("threshold", "certain")):
        if swept in sweep[0] and args.sampler is None and "sampler" not in sweep[0]:
            settings["sampler"] = sampler
    same = ("samples", "length", "draws", "order", "judge", "seed", "batch_size", "backend", "encoding")
    return Evaluation(
        data=tuple(args.data),
        metrics=tuple(metrics),
        sweep=tuple(sweep),
        settings={name: value for name, value in settings.items() if value is not None},
        hyperschedule=chosen_hyperschedule(args),
        max_tokens=args.tokens,
        **{name: getattr(args, name) for name in same},
    )


def _default_metrics(args: argparse.Namespace) -> list[str]:
    """The bound where there is text, entropy, and generative perplexity where there is a judge."""
    return [*(["bound"] if args.data else []), *(["gen-ppl"] if _judged(args) else []), "entropy"]


def _judged(args: argparse.Namespace) -> bool:
    from hdlm.evaluate.judge import has_judge

    return args.judge is not None or has_judge()


def _print(cells) -> None:
    from rich import box
    from rich.console import Console

    from hdlm.evaluate.figure import bound_name, cell_name, data_name
    from hdlm.evaluate.report import above_words, named_bounds, number, quality_numbers
    from hdlm.viz.table import table

    console = Console()
    bounds = [cell for cell in cells if cell["spec"]["kind"] == "bound"]
    if bounds:
        rows = [
            (
                name,
                bound_name(found),
                number(found["value"], found["error"], 4),
                *(number(found.get(unit), digits=digits) for unit, digits in (("perplexity", 2), ("bits_per_byte", 4))),
            )
            for name, found in named_bounds(bounds)
        ]
        names = ("text", "bound", "nats/token", "perplexity", "bits/byte")
        console.print(table(names, rows, words=2, box=box.SIMPLE_HEAD))
        for cell in bounds:
            if "source" in cell["result"]:
                console.print(above_words(cell))
            if cell["result"].get("share", 1.0) < 1:
                console.print(f"Evenly spaced rows only: {cell['result']['share']:.0%} of {data_name(cell)}.")
    drawn = [cell for cell in cells if cell["spec"]["kind"] == "samples"]
    if not drawn:
        return
    rows = []
    for cell in drawn:
        found = cell["result"]
        numbers = (f"{found['repetition']['value']:.3f}", f"{found['stats']['tokens_per_second']:,.0f}")
        rows.append((cell_name(cell), *quality_numbers(found), *numbers))
    names = ("samples", "gen. ppl", "entropy", "MAUVE", "rep-4", "tokens/s")
    console.print(table(names, rows, box=box.SIMPLE_HEAD))
    first = drawn[0]["result"]
    judge = f"judge: {first['gen_ppl']['judge']}; " if "gen_ppl" in first else ""
    features = f"features: {first['mauve']['featuriser']}; " if "mauve" in first else ""
    console.print(f"{judge}{features}{first['samples']} samples a row, seed {first['seed']}", style="dim")
