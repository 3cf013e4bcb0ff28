"""`hdlm bench`: what training and sampling cost on this machine, beside what it could do."""

import argparse
from functools import partial
from pathlib import Path

from hdlm.cli.flags import add_device
from hdlm.errors import Outputs, outputs
from hdlm.files import check_file, is_written_through, json_text


def add(commands) -> None:
    """Declare it."""
    parser = commands.add_parser(
        "bench",
        help="time training and sampling here, beside what the hardware allows",
        description="Times of the real trainer and sampler on random tokens and weights: the paper's size on a GPU, a "
        "small one on a CPU. share = floor / time, floor the larger of operations / matrix rate and bytes / bandwidth, "
        "both rates measured first (docs/performance.md).",
    )
    parser.add_argument(
        "what", choices=("train", "sample", "growth"), help="training steps, samples, or samples of growing length"
    )
    parser.add_argument("--only", action="append", metavar="TEXT", help="cases whose name begins so (repeatable)")
    parser.add_argument("--turns", type=int, metavar="N", help="timed steps or samples a case (10 or 3)")
    parser.add_argument("--samples", type=int, default=8, metavar="N", help="rows sampled together (8)")
    parser.add_argument("--longest", type=int, metavar="N", help="growth: the longest text (16384; 1024 on a CPU)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the figures here as JSON, pictures beside it")
    add_device(parser)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON and nothing else")
    parser.set_defaults(run=_bench)


def _bench(args: argparse.Namespace) -> None:
    from hdlm.backend import choose
    from hdlm.bench import report
    from hdlm.bench.roofline import measure_ceiling
    from hdlm.cli.progress import progress_bar
    from hdlm.device import choose_device

    for name in ("turns", "samples", "longest"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name} {value} is not accepted: it must be an integer >= 1")
    _check_out(args)
    choose(args.backend)  # refused now, not after something was timed
    device = choose_device(args.device)
    cases, time = (_training if args.what == "train" else _sampling)(args, device.type == "cuda")
    chosen = [case for case in cases if not args.only or case.label.startswith(tuple(args.only))]
    if not chosen:
        labels = "; ".join(dict.fromkeys(case.label for case in cases))
        raise ValueError(f"--only {args.only} names no case: they are {labels}")
    ceiling = measure_ceiling(device)
    how = {"device": device, "ceiling": ceiling, "backend": args.backend}
    where = report.setting(device, ceiling, samples=args.samples)
    rows = []
    with outputs() as files:
        with progress_bar(quiet=args.json) as bar:
            for case in bar.track(chosen, description=f"bench {args.what}"):
                rows.append(time(case, **how))
                if args.out is not None and (case is chosen[-1] or not is_written_through(args.out)):
                    with files.writing(args.out):
                        report.write_json(args.out, where, rows)
        if args.json:
            print(json_text(report.to_json(where, rows)))
        else:
            _print(args, where, rows, files, cuda=device.type == "cuda")


def _check_out(args: argparse.Namespace) -> None:
    """Refuse a path that the figures, or the picture beside them, could not be written to."""
    for path in (args.out, _picture(args)):
        if path is not None:
            check_file(path)
    if args.out is not None and args.out == _picture(args):
        raise ValueError(f"--out {args.out} is not accepted: the picture beside it will have that name")


def _picture(args: argparse.Namespace) -> Path | None:
    """Where a picture may go: beside a file of figures, and beside nothing that is no file."""
    if args.out is None or args.json or args.what == "train" or is_written_through(args.out):
        return None
    return args.out.with_suffix(".png")


def _training(args: argparse.Namespace, cuda: bool):
    """Cases of training, and what times one."""
    from hdlm.bench.training import cpu_cases, gpu_cases, time_training

    time = partial(time_training, vocab_size=50_257 if cuda else 1000, steps=args.turns or 10)
    return gpu_cases() if cuda else cpu_cases(), time


def _sampling(args: argparse.Namespace, cuda: bool):
    """Cases of sampling, and what times one."""
    from hdlm.bench.sampling import cases, growth_cases, time_sampling

    time = partial(time_sampling, samples=args.samples, turns=args.turns or 3)
    length = 1024 if cuda else 128
    if args.what == "sample":
        return cases(length, length // 4, 16 if cuda else 4), time
    longest = args.longest or (16_384 if cuda else 1024)
    lengths = [length * 2**k for k in range(20) if length * 2**k <= longest] or [longest]
    return growth_cases(lengths, 16, longest_uncached=2 * length), time


def _print(args: argparse.Namespace, where: dict, rows: list, files: Outputs, *, cuda: bool) -> None:
    """Tables, and beside a file of figures the picture of what can be drawn."""
    from rich.console import Console

    from hdlm.bench import report
    from hdlm.bench.figure import plot_growth, plot_rates

    console = Console(width=None if args.out is None else 140)
    print(f"{where['device']}: {where['matrix_tflops']:.1f} TFLOP/s, {where['copy_tb_per_s']:.2f} TB/s measured")
    plot = None
    if args.what == "train":
        report.print_training(console, rows, 256 if cuda else 16)
    elif args.what == "sample":
        report.print_sampling(console, rows, 256 if cuda else 32)
        plot = plot_rates if any(", rate " in row.label for row in rows) else None
    else:
        report.print_growth(console, rows)
        plot = plot_growth
    picture = _picture(args)
    if picture is not None and plot is not None:
        with files.writing(picture):
            plot(rows, picture)
    for path in (args.out, picture if plot is not None else None):
        if path is not None and files.has(path):
            print(f"wrote {path}")
