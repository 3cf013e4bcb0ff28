"""`hdlm demo`: a model at work for a minute, or, where there is none, the pictures of what it would do."""

import argparse
import time
from pathlib import Path

from hdlm.cli.flags import seed
from hdlm.errors import outputs
from hdlm.files import check_folder, entries

REPLAY, PICTURES = "replay.html", ("hyperschedule.png", "layout.png")  # what a demo writes
PROMPT = "Once upon a time, there was a little girl named Lily."
GAPS = "Tom had a red ball. He [[gap:12]]. He was very sad.[[gap:16]] Tom was happy again."
RACE = 112  # tokens that every way of decoding writes
PARAGRAPH = (
    "One day, a little dog named Max went to the park. He saw a big ball and wanted to play with it. "
    "A kind boy threw the ball, and Max ran after it. They played all day and became good friends."
)


def add(commands) -> None:
    """Declare it."""
    parser = commands.add_parser(
        "demo",
        help="a model at work: text out of noise, a gap filled, corrections, speeds, a bound, a replay",
        description="A minute on a CPU, nothing to download. Without a model: pictures of the hyperschedules.",
    )
    parser.add_argument("--model", metavar="CKPT", help="model folder, name or owner/model (the one that is shipped)")
    parser.add_argument(
        "--out", type=Path, default=Path("demo"), metavar="DIR", help="folder for what is written (demo)"
    )
    parser.add_argument("--prompt", default=PROMPT, metavar="TEXT", help="what the story begins with")
    parser.add_argument("--length", type=int, default=200, metavar="N", help="tokens of the story at most (200)")
    parser.add_argument("--seed", type=seed, default=0, help="the same seed, the same show (0)")
    parser.add_argument("--device", help="cpu or cuda (cpu)")
    parser.set_defaults(run=_demo)


def _demo(args: argparse.Namespace) -> None:
    from hdlm.bundle import shipped_models

    _check_folder(args.out)
    name = args.model or next(iter(shipped_models()), None)
    if name is None:
        _pictures(args.out)
    else:
        _show(args, name)


def _check_folder(out: Path) -> None:
    """Refuse a folder that cannot be written, or that holds more than what a demo left there."""
    check_folder(out)
    if others := entries(out) - {*PICTURES, REPLAY}:
        raise ValueError(f"--out {out} is not accepted: it holds {min(others)}, which is not the demo's; name another")


def _show(args: argparse.Namespace, name: str) -> None:
    from rich.console import Console

    from hdlm.bundle import load
    from hdlm.viz import scenes
    from hdlm.viz.replay import write_replay

    if args.length < 1:
        raise ValueError(f"--length {args.length} is not accepted: it must be an integer >= 1")
    began = time.perf_counter()
    bundle = load(name, device=args.device or "cpu")
    if bundle.tokenizer is None or not bundle.config.shifted:
        raise ValueError(f"{name} is not accepted: the demo needs a shifted model that has a tokenizer")
    console = Console(highlight=False)
    texts = {"prompt": args.prompt, "gaps": GAPS, "paragraph": PARAGRAPH}
    stage = scenes.Stage(bundle, console, **texts, width=bundle.config.widest_window or 16, seed=args.seed)
    console.print(f"[bold]{name}[/]: {bundle.model.num_parameters:,} parameters, `{bundle.process!r}`")
    room = bundle.config.default_length(len(bundle.tokenizer.encode(args.prompt).ids))
    samples, history = scenes.story(stage, min(args.length, room))
    scenes.gap(stage)
    scenes.corrections(stage, max(1, min(args.length, RACE) // 2), eta=0.2)
    scenes.race(stage, min(args.length, RACE))
    scenes.likelihood(stage)
    mask_id, title = bundle.process.mask_id, f"{name} writes"
    path = args.out / REPLAY
    with outputs() as files, files.writing(path):
        write_replay(path, samples, history, mask_id=mask_id, title=title)
    console.print(f"\nwrote {path}: open it to play the first scene again ({time.perf_counter() - began:.0f} s in all)")


def _pictures(out: Path) -> None:
    from hdlm.viz import hyperschedule, layout, style, terminal

    print("One sentence, four hyperschedules, three kinds of noise:\n")
    sentence = hyperschedule.sentence_of(None, None)
    catalogue = hyperschedule.build_catalogue(sentence, hyperschedule.build_schedules(len(sentence), 3, 1))
    terminal.show(terminal.hyperschedules(catalogue))
    print("\ndrawing the same as pictures ...", flush=True)
    figures = (hyperschedule.draw(catalogue), layout.draw(layout.build_pictures()))
    with outputs() as files:
        for name, figure in zip(PICTURES, figures, strict=True):
            with files.writing(out / name):
                style.save(figure, out / name)
            if files.has(out / name):
                print(f"wrote {out / name}")
