"""`hdlm sample`: texts from a model, to read, to watch, to replay or to count."""

import argparse
import json
import sys
from pathlib import Path

from hdlm.commands.words import add_schedule, check_writable, chosen_schedule, seed


def add(commands) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "sample",
        help="write text with a model: live, as a replay, or as JSON",
        usage="hdlm sample CKPT [options]",
        description="CKPT: stories (shipped), a model folder, or owner/model on the hub.",
    )
    parser.add_argument("model", metavar="CKPT", help=argparse.SUPPRESS)
    parser.add_argument("--prompt", action="append", metavar="TEXT", help="may repeat; [[gap:N]]: N tokens missing")
    parser.add_argument("--num-samples", type=int, default=1, metavar="N", help="for each prompt (1)")
    parser.add_argument("--length", type=int, metavar="N", help="new tokens (what fills the context)")
    add_schedule(parser)
    parser.add_argument("--rate", type=float, help="tokens per step (1)")
    parser.add_argument("--sampler", metavar="S", help="posterior certain confidence acs ... (the model's)")
    parser.add_argument("--eta", type=float, help="strength of acs and remask, in [0, 1] (0.05)")
    parser.add_argument("--threshold", type=float, metavar="P", help="certain: settle all above P (the model's, or 1)")
    parser.add_argument("--temperature", type=float, metavar="T", help="0: always the likeliest (the model's, or 1)")
    parser.add_argument("--top-k", type=int, metavar="K", help="only the K likeliest tokens")
    parser.add_argument("--top-p", type=float, metavar="P", help="only the likeliest of mass P (the model's, or 1)")
    parser.add_argument("--seed", type=seed, help="the same seed, the same text (random)")
    parser.add_argument("--draws", default="float64", metavar="D", help="float64, or float32 as earlier work")
    parser.add_argument("--no-cache", action="store_true", help="feed all settled tokens at every step")
    parser.add_argument("--ignore-eos", action="store_true", help="write on past the end of text")
    parser.add_argument("--device", help="cpu or cuda (cuda where there is one)")
    parser.add_argument("--count", action="store_true", help="say what it would cost, and stop")
    parser.add_argument("--watch", action="store_true", help="show every step here")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="write a page that plays it again")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write samples as JSON lines")
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    parser.set_defaults(run=_sample)


def _sample(args: argparse.Namespace) -> None:
    from hdlm.bundle import choose_device, load
    from hdlm.views.history import History
    from hdlm.views.replay import write_replay
    from hdlm.writing.write import exhaust, write

    _check_paths(args)
    if args.watch and args.json:
        raise ValueError("--watch and --json are not accepted together: both want the screen")
    bundle = load(args.model, device=choose_device(args.device))
    request = _request(bundle, args)
    if args.count:
        _count(bundle, request, as_json=args.json)
        return
    history = History(request) if args.replay is not None else None
    with _audience(bundle, request, args) as (see, progress):
        viewers = [*([see] if see is not None else []), *([history.see] if history is not None else [])]
        samples = exhaust(write(bundle, request, watched=bool(viewers), progress=progress), *viewers)
    if args.out is not None:
        _write_lines(args.out, samples)
    if history is not None and args.replay is not None:
        write_replay(args.replay, samples, history, title=f"{Path(args.model).resolve().name} writes")
    if args.json:
        print(json.dumps({"samples": samples.to_json(), "stats": samples.stats.to_json()}))
        return
    _print(samples, args)


def _check_paths(args: argparse.Namespace) -> None:
    """Refuse what cannot be written before anything is sampled."""
    if args.replay is not None and args.replay.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"--replay {args.replay} is not accepted: a replay's name must end in .html")
    if args.out is not None and args.out == args.replay:
        raise ValueError(f"--out and --replay are both {args.out}: they must differ")
    for path in (args.out, args.replay):
        if path is not None:
            check_writable(path)


def _request(bundle, args: argparse.Namespace):
    from hdlm.writing.prompts import GAP
    from hdlm.writing.request import gap_request, prompt_request

    options = {
        "sampler": args.sampler,
        "eta": args.eta,
        "threshold": args.threshold,
        "temperature": args.temperature,
        "top_k": args.top_k,
        "top_p": args.top_p,
        "seed": args.seed,
        "draws": args.draws,
        "cache": not args.no_cache,
        "stop_at_eos": not args.ignore_eos,
    }
    prompts = args.prompt
    gaps = [text for text in prompts or [] if GAP.search(text)]
    if gaps:
        numbers = {name: getattr(args, name) for name in ("length", "block", "slide")}
        chosen = [f"--{name} {value}" for name, value in numbers.items() if value is not None]
        chosen += ["--ar"] if args.ar else []
        if len(prompts) > 1:
            raise ValueError("a prompt with gaps is not accepted with other prompts: one text with gaps at a time")
        if chosen:
            raise ValueError(
                f"a prompt with gaps is not accepted with {' or '.join(chosen)}: gaps have lengths of their own, and "
                "are filled together, in one window"
            )
        return gap_request(
            bundle, gaps[0], num_samples=args.num_samples, rate=1.0 if args.rate is None else args.rate, **options
        )
    kind, width = chosen_schedule(args)
    return prompt_request(
        bundle,
        prompts,
        num_samples=args.num_samples,
        length=args.length,
        kind=kind,
        width=width,
        rate=args.rate,
        **options,
    )


def _audience(bundle, request, args: argparse.Namespace):
    """A context that gives what to call with every frame, and with steps that are done: a view, a bar, or nothing."""
    from contextlib import contextmanager

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from hdlm.views.watch import watching

    @contextmanager
    def watched():
        with watching(bundle, request) as watch:
            yield watch.see, None

    @contextmanager
    def progressing():
        console = Console(stderr=True)
        columns = (TextColumn("sampling"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task("", total=request.steps)
            yield None, lambda steps: progress.advance(task, steps)

    @contextmanager
    def silent():
        yield None, None

    return watched() if args.watch else silent() if args.json else progressing()


def _print(samples, args: argparse.Namespace) -> None:
    texts = samples.text if samples.bundle.tokenizer is not None else [str(row) for row in samples.tokens]
    for number, text in enumerate(texts, start=1):
        if len(texts) > 1:
            print(f"--- {number} of {len(texts)} ---")
        print(text)
    for path in (args.out, args.replay):
        if path is not None:
            print(f"wrote {path}", file=sys.stderr)
    stats = samples.stats
    fed = stats.slots + stats.reused_slots
    print(
        f"{stats.tokens:,} tokens in {stats.seconds:.1f} s, {stats.tokens_per_second:,.0f} tokens/s; "
        f"{stats.network_calls:,} network calls ({stats.skipped_calls:,} spared); {stats.slots:,} slots, cache hits "
        f"{stats.reused_slots / max(fed, 1):.0%}; seed {samples.seed}",
        file=sys.stderr,
    )


def _write_lines(path: Path, samples) -> None:
    from hdlm.files import written_aside

    with written_aside(path) as aside:
        aside.write_text("".join(json.dumps(row) + "\n" for row in samples.to_json()), encoding="utf-8")


def _count(bundle, request, *, as_json: bool) -> None:
    from hdlm.sampling.count import count

    rows = []
    for batch in request.batches:
        for start in batch.starts:
            rows.append(count(batch.schedule, shifted=bundle.config.shifted, prompt=start))
    total = {name: sum(getattr(row, name) for row in rows) for name in vars(rows[0])}
    if as_json:
        print(json.dumps(total | {"samples": len(rows)}))
        return
    print(f"{len(rows)} x {request.batches[0].schedule!r}, if every step calls the network\n")
    print(f"{'':<28}{'counted':>14}{'paper formula':>16}")
    names = {
        "network calls": ("calls", "paper_calls"),
        "slots without cache": ("slots_uncached", "paper_slots_uncached"),
        "slots with cache": ("slots_cached", "paper_slots_cached"),
    }
    for label, (ours, paper) in names.items():
        print(f"{label:<28}{total[ours]:>14,}{total[paper]:>16,.0f}")
