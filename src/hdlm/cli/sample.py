"""`hdlm sample`: texts from a model, to read, to watch, to replay or to count."""

import argparse
import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hdlm.cli.flags import add_device, add_sampler, add_schedule, chosen_schedule, seed
from hdlm.cli.together import writers
from hdlm.errors import outputs
from hdlm.files import check_file, json_text, written_aside

if TYPE_CHECKING:
    from hdlm.processes import World


def add(commands) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "sample",
        help="write text with a model: live, as a replay, or as JSON",
        usage="hdlm sample CKPT [options]  (CKPT: stories, folder, GGUF file, package, owner/model)",
    )
    parser.add_argument("model", metavar="CKPT", help=argparse.SUPPRESS)
    words = 'may repeat; [[gap:N]], [[gap]]; or --prompt-ids "12 7"'
    parser.add_argument("--prompt", action="append", metavar="TEXT", help=words)
    parser.add_argument("--prompt-ids", action="extend", type=token_ids, help=argparse.SUPPRESS)
    parser.add_argument("--num-samples", type=int, default=1, metavar="N", help="for each prompt (1)")
    parser.add_argument("--length", type=int, metavar="N", help="new tokens (what fills the context)")
    add_schedule(parser)
    words = "the text of --ar in fewer calls: drafted, verified"
    parser.add_argument("--speculate", action="store_true", help=words)
    parser.add_argument("--draft", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--ahead", help=argparse.SUPPRESS)
    add_draws(parser)
    parser.add_argument("--ignore-eos", dest="stop_at_eos", action="store_false", help="write on past the end of text")
    add_device(parser)
    parser.add_argument("--count", action="store_true", help="say what it would cost, and stop")
    add_views(parser)
    parser.set_defaults(run=_sample, together=True)


def add_draws(parser: argparse.ArgumentParser) -> None:
    """Flags of how to draw."""
    parser.add_argument("--rate", type=float, help="tokens per step (1)")
    add_sampler(parser)
    parser.add_argument("--eta", type=float, help="strength of acs and remask, in [0, 1] (0.05)")
    parser.add_argument("--threshold", type=float, metavar="P", help="certain: settle all above P; bounded: nats")
    parser.add_argument("--temperature", type=float, metavar="T", help="0: always the likeliest (the model's, or 1)")
    words = "only the K likeliest tokens; --top-p P: those of mass P"
    parser.add_argument("--top-k", type=int, metavar="K", help=words)
    parser.add_argument("--top-p", type=float, metavar="P", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=seed, help="the same seed, the same text (random)")
    parser.add_argument("--precision", default="float64", metavar="P", help="of draws: float32 as in earlier work")
    parser.add_argument("--no-cache", dest="cache", action="store_false", help="feed all settled tokens at every step")


def add_views(parser: argparse.ArgumentParser) -> None:
    """Flags of what becomes of samples; `write` does it."""
    parser.add_argument("--watch", action="store_true", help="show every step here")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="write a page that plays it again")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write samples as JSON lines")
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else (--logprobs: with those)")
    parser.add_argument("--logprobs", action="store_true", help=argparse.SUPPRESS)


def token_ids(word: str) -> list[Any]:
    """Prompts of token ids from the command line, as they are: "12 7 99" or a JSON list; lists in it are several."""
    try:
        found = json.loads(word if word.lstrip().startswith("[") else f"[{','.join(word.replace(',', ' ').split())}]")
    except ValueError:
        found = []
    if not found:
        raise argparse.ArgumentTypeError(f"{word!r} is not accepted: write token ids as 12 7 99 or as [12, 7, 99]")
    return found if isinstance(found[0], list) else [found]


def _sample(args: argparse.Namespace) -> None:
    from hdlm.bundle import load

    check_views(args)
    _choose_speculation(args)
    with writers(args) as world:
        bundle = load(args.model, device=world.device)
        request = _request(bundle, args)
        if not args.count:
            write(bundle, request, args, world)
        elif world.is_main:
            _count(bundle, request, as_json=args.json, speculate=args.speculate)


def _choose_speculation(args: argparse.Namespace) -> None:
    """`--speculate` is `--ar` with a sampler of its own; refuse it beside another way to write."""
    if not args.speculate:
        return
    names = ("block", "slide", "custom", "flat", "sampler")
    if (other := next((name for name in names if getattr(args, name) not in (None, False)), None)) is not None:
        raise ValueError(f"--speculate and --{other} are not accepted together: it writes the text of --ar")
    args.ar, args.sampler = True, "speculative"


def write(bundle, request, args: argparse.Namespace, world: "World") -> None:
    """Draw what is requested, and show or write it as the flags of `add_views` say.

    `world`: this process among others; the first one shows and writes what all have drawn.
    """
    from hdlm.cli.progress import progress_bar
    from hdlm.sampling.generate import exhaust, generate
    from hdlm.viz.history import History
    from hdlm.viz.replay import write_replay
    from hdlm.viz.watch import watching

    history = History(request)
    viewers = [history.see] if args.replay is not None else []
    with ExitStack() as stack:
        if args.watch:
            viewers.append(stack.enter_context(watching(bundle, request)).see)
        bar = stack.enter_context(progress_bar(quiet=args.json or args.watch or not world.is_main))
        task = bar.add_task("sampling", total=request.share(world.rank, world.size).steps)
        generation = generate(
            bundle,
            request,
            watched=bool(viewers),
            logprobs=args.logprobs,
            progress=lambda steps: bar.advance(task, steps),
            world=world,
        )
        samples = exhaust(generation, *viewers)
    if not world.is_main:
        return
    with outputs() as files:
        if args.out is not None:
            with files.writing(args.out), written_aside(args.out) as aside:
                aside.write_text("".join(json_text(row) + "\n" for row in samples.to_json()), encoding="utf-8")
        if args.replay is not None:
            title = f"{Path(args.model).resolve().name} writes"
            with files.writing(args.replay):
                write_replay(args.replay, samples, history, mask_id=bundle.process.mask_id, title=title)
        if args.json:
            print(json_text({"samples": samples.to_json(), "stats": samples.stats.to_json()}))
        else:
            _print(samples, [path for path in (args.out, args.replay) if path is not None and files.has(path)])


def check_views(args: argparse.Namespace) -> None:
    """Refuse what cannot be shown or written before anything is sampled."""
    if args.watch and args.json:
        raise ValueError("--watch and --json are not accepted together: both want the screen")
    if args.logprobs and not args.json and args.out is None:
        raise ValueError("--logprobs is not accepted without --json or --out: they are part of those")
    if args.replay is not None and args.replay.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"--replay {args.replay} is not accepted: a replay's name must end in .html")
    if args.out is not None and args.replay is not None and args.out.resolve() == args.replay.resolve():
        raise ValueError(f"--out and --replay are both {args.out}: they must differ")
    for path in (args.out, args.replay):
        if path is not None:
            check_file(path)


def _request(bundle, args: argparse.Namespace):
    from hdlm.config.sampling import DrawSettings
    from hdlm.sampling.prompts import MARK
    from hdlm.sampling.request import gap_request, prompt_request

    settings, prompts = DrawSettings.among(vars(args)), [*(args.prompt or []), *(args.prompt_ids or [])] or None
    gaps = [text for text in args.prompt or [] if MARK in text]
    if not gaps:
        how = {"length": args.length, "rate": args.rate} | chosen_schedule(args)
        return prompt_request(bundle, prompts, num_samples=args.num_samples, **how, settings=settings)
    flags = {name: vars(args)[name] for name in ("length", "block", "slide", "custom")}
    chosen = [f"--{name} {value}" for name, value in flags.items() if value is not None]
    chosen += ["--ar"] if args.ar else []
    if prompts is not None and len(prompts) > 1:
        raise ValueError("a prompt with gaps is not accepted with other prompts: one text with gaps at a time")
    if chosen:
        raise ValueError(
            f"a prompt with gaps is not accepted with {' or '.join(chosen)}: gaps have lengths of their own, and "
            "are filled together, in one window"
        )
    if args.count:  # of gaps whose lengths are known: to find others takes the work itself
        rate = 1.0 if args.rate is None else args.rate
        return gap_request(bundle, gaps[0], num_samples=args.num_samples, rate=rate, settings=settings)
    return gaps_asked(bundle, gaps[0], args)


def gaps_asked(bundle, text: str, args: argparse.Namespace):
    """The request to fill a text's gaps; where their lengths are open it takes a while to find them."""
    from hdlm.cli.progress import told
    from hdlm.config.sampling import DrawSettings
    from hdlm.sampling.open_gaps import infill_request

    how = {"num_samples": args.num_samples, "rate": 1.0 if args.rate is None else args.rate}
    settings = DrawSettings.among(vars(args))
    found, _ = told(
        lambda tell: infill_request(
            bundle, text, **how, settings=settings, progress=lambda done, total: tell("gap lengths", done, total)
        ),
        quiet=args.json or args.watch,
    )
    return found


def _print(samples, written: list[Path]) -> None:
    print("\n".join(samples.shown))
    for path in written:
        print(f"wrote {path}", file=sys.stderr)
    print(f"{samples.stats}; seed {samples.seed}", file=sys.stderr)


def _count(bundle, request, *, as_json: bool, speculate: bool) -> None:
    from hdlm.bench.count import count

    rows = [
        count(batch.schedule, shifted=bundle.config.shifted, prompt=start)
        for batch in request.batches
        for start in batch.starts
    ]
    total = {name: sum(getattr(row, name) for row in rows) for name in vars(rows[0])}
    if as_json:
        print(json_text(total | {"samples": len(rows)}))
        return
    if speculate:
        print("speculation takes at most these calls, and feeds more slots in each; what it takes depends on the text")
    print(f"{len(rows)} x {request.batches[0].schedule!r}, if every step calls the network\n")
    print(f"{'':<28}{'counted':>14}{'paper formula':>16}")
    names = {
        "network calls": ("calls", "paper_calls"),
        "slots without cache": ("slots_uncached", "paper_slots_uncached"),
        "slots with cache": ("slots_cached", "paper_slots_cached"),
    }
    for label, (ours, paper) in names.items():
        print(f"{label:<28}{total[ours]:>14,}{total[paper]:>16,.0f}")
