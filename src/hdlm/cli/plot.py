"""`hdlm plot`: pictures of hyperschedules, attention layouts and results."""

import argparse
from pathlib import Path
from typing import Any

from hdlm.cli.flags import seed
from hdlm.files import check_file, json_text
from hdlm.theory import numbers


def add(commands) -> None:
    """Declare it."""
    plot = commands.add_parser("plot", help="pictures of hyperschedules, attention layouts and results")
    pictures = plot.add_subparsers(dest="picture", metavar="PICTURE", required=True)
    _add_hyperschedule(pictures)
    _add_layout(pictures)
    _add_results(pictures)


def _add_output(parser: argparse.ArgumentParser, default: str) -> None:
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--out", default=default, metavar="FILE", help=f"PNG, SVG or PDF by its suffix ({default})")
    how.add_argument("--terminal", action="store_true", help="show it here instead of writing a file")
    how.add_argument("--json", action="store_true", help="print the numbers behind it instead")


def _add_hyperschedule(pictures) -> None:
    parser = pictures.add_parser(
        "hyperschedule", help="noise levels by step and position, and what they do to a sentence (figure 2)"
    )
    parser.add_argument("--text", help="the sentence, its words being the positions")
    parser.add_argument("--length", type=int, help="number of positions (the words of the sentence)")
    parser.add_argument("--width", type=int, help="width of block and slide (3, or the length if shorter)")
    parser.add_argument("--rate", type=float, default=1.0, help="tokens per step; quench is always 1 (1)")
    parser.add_argument(
        "--custom", metavar="FILE", help="JSON matrix of levels [steps + 1][length], drawn beside the four"
    )
    parser.add_argument("--gamma", type=float, default=0.3, help="share of uniform noise in the hybrid row (0.3)")
    parser.add_argument("--seed", type=seed, default=0, help="seed of the noise (0)")
    _add_output(parser, "hyperschedule.png")
    parser.set_defaults(run=_plot_hyperschedule)


def _add_layout(pictures) -> None:
    parser = pictures.add_parser("layout", help="who attends to whom in a training pass (figures 6 to 9)")
    parser.add_argument("--length", type=int, default=12, help="number of positions (12)")
    parser.add_argument("--width", type=int, default=4, help="width of the windows (4)")
    parser.add_argument("--starts", type=int, nargs="+", metavar="J", help="where slide's windows start (2 5 11)")
    _add_output(parser, "layout.png")
    parser.set_defaults(run=_plot_layout)


def _add_results(pictures) -> None:
    for name, what, run in (
        ("front", "quality against diversity of several evaluations (figure 3)", _plot_front),
        ("gamma", "perplexity by gamma, of a model each (the gamma figure)", _plot_gamma),
    ):
        parser = pictures.add_parser(name, help=what)
        parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="what hdlm evaluate --out wrote")
        how = parser.add_mutually_exclusive_group()
        how.add_argument("--out", default=f"{name}.png", metavar="FILE", help=f"PNG, SVG or PDF ({name}.png)")
        how.add_argument("--json", action="store_true", help="print the numbers behind it instead")
        parser.set_defaults(run=run, terminal=False)


def _checked(args: argparse.Namespace) -> Path:
    """Where the picture is to go, refused before it is drawn."""
    from hdlm.viz.style import check_picture_path

    out = check_picture_path(args.out)
    if not args.terminal and not args.json:
        check_file(out)
    return out


def _plot_hyperschedule(args: argparse.Namespace) -> None:
    from hdlm.viz import hyperschedule, style, terminal

    out = _checked(args)
    custom = hyperschedule.load_custom(args.custom) if args.custom else None
    if custom is not None and args.length not in (None, custom.length):
        raise ValueError(f"--length {args.length} is not accepted: {args.custom} has {custom.length} positions")
    length = custom.length if custom is not None else args.length
    if length is not None:
        steps = numbers.integer("length", length, low=1) * max(1, 1 / numbers.positive("--rate", args.rate))
        numbers.fits_memory(f"a picture of {length:,} positions by {steps:,.0f} steps", 160 * length * steps)
    sentence = hyperschedule.sentence_of(args.text, length)
    width = args.width if args.width is not None else min(3, len(sentence))
    schedules = hyperschedule.build_schedules(len(sentence), width, args.rate)
    if custom is not None:
        schedules.append(custom)
    if args.json:
        fields = ("length", "width", "rate", "max_level", "steps")
        rows = [{"name": s.kind} | {f: getattr(s, f) for f in fields} for s in schedules]
        print(json_text([row | {"levels": s.levels.tolist()} for row, s in zip(rows, schedules, strict=True)]))
        return
    catalogue = hyperschedule.build_catalogue(sentence, schedules, gamma=args.gamma, seed=args.seed)
    if args.terminal:
        terminal.show(terminal.hyperschedules(catalogue))
    else:
        print(f"wrote {style.save(hyperschedule.draw(catalogue), out)}")


def _plot_layout(args: argparse.Namespace) -> None:
    from hdlm.viz import layout, style, terminal

    out = _checked(args)
    numbers.fits_memory(f"a picture of {args.length:,} positions by themselves", 128 * args.length**2)
    pictures = layout.build_pictures(args.length, args.width, args.starts)
    if args.json:
        names = ("holds", "predicts", "position", "noisy", "window", "limit")
        rows = [{"title": p.title} | {name: getattr(p.layout, name).tolist() for name in names} for p in pictures]
        print(json_text([row | {"mask": p.layout.mask().tolist()} for row, p in zip(rows, pictures, strict=True)]))
    elif args.terminal:
        terminal.show(terminal.layouts(pictures))
    else:
        print(f"wrote {style.save(layout.draw(pictures), out)}")


def _plot_front(args: argparse.Namespace) -> None:
    from hdlm.evaluate.figure import cell_name, draw_front
    from hdlm.evaluate.sweep import read_results

    out, groups = _checked(args), dict[str, list[dict[str, Any]]]()
    for folder in args.folders:
        about, cells = read_results(folder)
        shown = [cell for cell in cells if {"gen_ppl", "entropy"} <= set(cell["result"])]
        if not shown:
            raise ValueError(f"{folder} is not accepted: it has no judged samples (--metrics gen-ppl,entropy)")
        name = str(about.get("model", folder))
        groups[name if name not in groups else str(folder)] = shown
    if args.json:
        found = ((name, cell) for name, group in groups.items() for cell in group)
        print(json_text([{"model": name, "settings": cell_name(cell)} | cell["result"] for name, cell in found]))
    else:
        print(f"wrote {draw_front(groups, out)}")


def _plot_gamma(args: argparse.Namespace) -> None:
    from hdlm.evaluate.figure import data_name, draw_gammas
    from hdlm.evaluate.sweep import read_results

    out, found = _checked(args), dict[str, list[tuple[float, float, float]]]()
    for folder in args.folders:
        about, cells = read_results(folder)
        gamma = _gamma_of(about.get("process", {}))
        bounds = [cell for cell in cells if cell["spec"].get("kind") == "bound"]
        if gamma is None:
            raise ValueError(f"{folder} is not accepted: its model is neither absorbing, uniform nor gamma-hybrid")
        if not bounds:
            raise ValueError(f"{folder} is not accepted: it has no bound (--metrics bound)")
        for cell in bounds:
            for bound in (cell["result"], *cell["result"].get("beside", ())):
                point = gamma, bound["value"], bound["error"] or 0.0
                found.setdefault(f"{data_name(cell)}, {bound['name']}", []).append(point)
    if args.json:
        points = ((name, *point) for name in found for point in sorted(found[name]))
        names = ("bound", "gamma", "nats_per_token", "error")
        print(json_text([dict(zip(names, point, strict=True)) for point in points]))
    else:
        print(f"wrote {draw_gammas(found, out)}")


def _gamma_of(process: dict[str, Any]) -> float | None:
    """The share of uniform noise of a process as config.json has it; None for one that has none by that name."""
    return {"absorbing": 0.0, "uniform": 1.0, "gamma": process.get("gamma")}.get(process.get("kind", ""))
