"""`hdlm bench`: what training and sampling cost on this machine, beside what it could do."""

import argparse
import json
from pathlib import Path

from hdlm.commands.words import check_writable

WHAT = ("train", "sample", "growth")


def add(commands) -> None:
    """Declare it."""
    parser = commands.add_parser(
        "bench",
        help="time training and sampling here, beside what the hardware allows",
        description="Times of the real trainer and sampler on random tokens and weights: the paper's size on a GPU, a "
        "small one on a CPU. share = floor / time, floor the larger of operations / matrix rate and bytes / bandwidth, "
        "both rates measured first (docs/performance.md).",
    )
    parser.add_argument("what", choices=WHAT, help="training steps, samples, or samples of growing length")
    parser.add_argument("--only", action="append", metavar="TEXT", help="cases whose name begins so (repeatable)")
    parser.add_argument("--turns", type=int, metavar="N", help="timed steps or samples a case (10 or 3)")
    parser.add_argument("--samples", type=int, default=8, metavar="N", help="rows sampled together (8)")
    parser.add_argument("--longest", type=int, metavar="N", help="growth: the longest text (16384; 1024 on a CPU)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the figures here as JSON, pictures beside it")
    parser.add_argument("--device", help="cpu or cuda (cuda where there is one)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON and nothing else")
    parser.set_defaults(run=_bench)


def _bench(args: argparse.Namespace) -> None:
    from rich.console import Console

    from hdlm.bench import report
    from hdlm.bench.roofline import measure_ceiling
    from hdlm.bundle import choose_device

    for name in ("turns", "samples", "longest"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name} {value} is not accepted: it must be an integer >= 1")
    if args.out is not None:
        check_writable(args.out)
    device = choose_device(args.device)
    cuda = device.type == "cuda"
    width = 256 if cuda else 16 if args.what == "train" else 32  # a quarter of the context
    console = Console(width=None if args.out is None else 140)
    ceiling = measure_ceiling(device)
    where = report.setting(device, ceiling, samples=args.samples)
    run = _train_rows if args.what == "train" else _sample_rows
    rows = []
    for row in run(args, device, ceiling):
        rows.append(row)
        if args.out is not None:
            report.write_json(args.out, where, rows)
    if args.json:
        print(json.dumps({"setting": where, "rows": [row.to_json() for row in rows]}))
        return
    print(f"{where['device']}: {where['matrix_tflops']:.1f} TFLOP/s, {where['copy_tb_per_s']:.2f} TB/s measured")
    if args.what == "train":
        report.print_training(console, rows, width)
    elif args.what == "sample":
        report.print_sampling(console, rows, width)
    else:
        report.print_growth(console, rows)
    _draw(args, rows)


def _chosen(cases: list, only: list[str] | None) -> list:
    found = [case for case in cases if not only or any(case.label.startswith(text) for text in only)]
    if not found:
        raise ValueError(f"--only {only} names no case: they are {'; '.join(dict.fromkeys(c.label for c in cases))}")
    return found


def _watched(rows, total: int, args: argparse.Namespace):
    """The rows, with a progress bar while they come."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    silent = args.json or not console.is_terminal
    yield from track(
        rows, total=total, description=f"bench {args.what}", console=console, disable=silent, transient=True
    )


def _train_rows(args: argparse.Namespace, device, ceiling):
    from hdlm.bench.training import cpu_cases, gpu_cases, time_training

    cuda = device.type == "cuda"
    cases = _chosen(gpu_cases() if cuda else cpu_cases(), args.only)
    vocab_size = 50_257 if cuda else 1000
    rows = time_training(cases, vocab_size=vocab_size, steps=args.turns or 10, device=device, ceiling=ceiling)
    return _watched(rows, len(cases), args)


def _sample_rows(args: argparse.Namespace, device, ceiling):
    from hdlm.bench.sampling import Bench, cases, growth_cases, time_sampling

    cuda = device.type == "cuda"
    length = 1024 if cuda else 128
    if args.what == "sample":
        found = cases(length, length // 4, 16 if cuda else 4)
    else:
        first, longest = (1024, args.longest or 16_384) if cuda else (128, args.longest or 1024)
        lengths = [first * 2**k for k in range(20) if first * 2**k <= longest] or [longest]
        found = growth_cases(lengths, 16, longest_uncached=2 * first)
    chosen = _chosen(found, args.only)
    bench = Bench("small" if cuda else "tiny", 50_257 if cuda else 1000, length, device)
    rows = time_sampling(bench, chosen, samples=args.samples, turns=args.turns or 3, ceiling=ceiling)
    return _watched(rows, len(chosen), args)


def _draw(args: argparse.Namespace, rows: list) -> None:
    from hdlm.bench.figure import plot_growth, plot_rates

    if args.out is None:
        return
    print(f"wrote {args.out}")
    picture = args.out.with_suffix(".png")
    if args.what == "growth":
        plot_growth(rows, picture)
    elif args.what == "sample" and any(", rate " in row.label for row in rows):
        plot_rates(rows, picture)
    else:
        return
    print(f"wrote {picture}")
