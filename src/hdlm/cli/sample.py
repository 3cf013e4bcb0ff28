"""`hdlm sample`: texts from a model, to read, to watch, to replay or to count."""

import argparse
import json
import sys
from contextlib import ExitStack
from pathlib import Path

from hdlm.cli.flags import add_device, add_schedule, check_writable, chosen_schedule, seed


def add(commands) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "sample",
        help="write text with a model: live, as a replay, or as JSON",
        usage="hdlm sample CKPT [options]  (CKPT: stories, a folder or owner/model)",
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
    parser.add_argument("--precision", default="float64", metavar="P", help="of draws: float32 as in earlier work")
    parser.add_argument("--no-cache", dest="cache", action="store_false", help="feed all settled tokens at every step")
    parser.add_argument("--ignore-eos", dest="stop_at_eos", action="store_false", help="write on past the end of text")
    add_device(parser)
    parser.add_argument("--count", action="store_true", help="say what it would cost, and stop")
    parser.add_argument("--watch", action="store_true", help="show every step here")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="write a page that plays it again")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write samples as JSON lines")
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    parser.set_defaults(run=_sample)


def _sample(args: argparse.Namespace) -> None:
    from hdlm.bundle import load
    from hdlm.cli.progress import progress_bar
    from hdlm.device import choose_device
    from hdlm.files import written_aside
    from hdlm.sampling.generate import exhaust, generate
    from hdlm.viz.history import History
    from hdlm.viz.replay import write_replay
    from hdlm.viz.watch import watching

    _check_paths(args)
    if args.watch and args.json:
        raise ValueError("--watch and --json are not accepted together: both want the screen")
    bundle = load(args.model, device=choose_device(args.device))
    request = _request(bundle, args)
    if args.count:
        _count(bundle, request, as_json=args.json)
        return
    history = History(request)
    viewers = [history.see] if args.replay is not None else []
    with ExitStack() as stack:
        if args.watch:
            viewers.append(stack.enter_context(watching(bundle, request)).see)
        bar = stack.enter_context(progress_bar(quiet=args.json or args.watch))
        task = bar.add_task("sampling", total=request.steps)
        generation = generate(bundle, request, watched=bool(viewers), progress=lambda steps: bar.advance(task, steps))
        samples = exhaust(generation, *viewers)
    if args.out is not None:
        with written_aside(args.out) as aside:
            aside.write_text("".join(json.dumps(row) + "\n" for row in samples.to_json()), encoding="utf-8")
    if args.replay is not None:
        title = f"{Path(args.model).resolve().name} writes"
        write_replay(args.replay, samples, history, mask_id=bundle.process.mask_id, title=title)
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
    from hdlm.config.sampling import DrawSettings
    from hdlm.sampling.prompts import GAP
    from hdlm.sampling.request import gap_request, prompt_request

    settings, prompts = DrawSettings.among(vars(args)), args.prompt
    gaps = [text for text in prompts or [] if GAP.search(text)]
    if not gaps:
        how = {"length": args.length, "rate": args.rate} | chosen_schedule(args)
        return prompt_request(bundle, prompts, num_samples=args.num_samples, **how, settings=settings)
    chosen = [f"--{name} {vars(args)[name]}" for name in ("length", "block", "slide") if vars(args)[name] is not None]
    chosen += ["--ar"] if args.ar else []
    if len(prompts) > 1:
        raise ValueError("a prompt with gaps is not accepted with other prompts: one text with gaps at a time")
    if chosen:
        raise ValueError(
            f"a prompt with gaps is not accepted with {' or '.join(chosen)}: gaps have lengths of their own, and "
            "are filled together, in one window"
        )
    rate = 1.0 if args.rate is None else args.rate
    return gap_request(bundle, gaps[0], num_samples=args.num_samples, rate=rate, settings=settings)


def _print(samples, args: argparse.Namespace) -> None:
    texts = samples.text if samples.tokenizer is not None else [str(row) for row in samples.tokens]
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


def _count(bundle, request, *, as_json: bool) -> None:
    from hdlm.bench.count import count

    rows = [
        count(batch.schedule, shifted=bundle.config.shifted, prompt=start)
        for batch in request.batches
        for start in batch.starts
    ]
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
