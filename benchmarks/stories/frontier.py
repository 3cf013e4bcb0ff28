"""Quality against speed: what each way of decoding writes, by the true source, and how many tokens a call and a second.

    PYTHONPATH=src python benchmarks/stories/frontier.py --source SOURCE --out frontier.json --picture frontier.png

One text at a time, temperature 1; perplexity and nats are per piece of the source, and errors those of the mean over
texts, each of which counts alike.
"""

import argparse
import json
import math
import statistics
from pathlib import Path

import torch
from matplotlib.figure import Figure
from samples import nats_of
from source import Source

import hdlm
from hdlm.viz.style import save

LENGTH = 160
WAYS: dict[str, dict] = {
    "autoregression": {"sampler": "ar"},
    "speculation": {"sampler": "speculative"},
    **{f"certain, {rate} a step": {"sampler": "certain", "rate": rate} for rate in (1, 2, 4)},
    **{f"posterior, {rate} a step": {"sampler": "posterior", "rate": rate} for rate in (1, 2, 4)},
    **{f"confidence, {rate} a step": {"sampler": "confidence", "rate": rate} for rate in (2, 4)},
    **{f"bounded, {bound:g} nats": {"sampler": "bounded", "threshold": bound} for bound in (0.1, 0.3, 1.0, 3.0)},
    "left to right": {"sampler": "left-to-right"},
}
CORPUS = Path(__file__).parents[1] / "results" / "stories" / "corpus.json"  # what the source needs for its own texts
CROWDED = 7  # perplexity below which many ways are
FAMILIES = {"a": "black", "s": "tab:red", "c": "tab:blue", "p": "tab:orange", "b": "tab:green", "l": "tab:purple"}


def measure(bundle: hdlm.Bundle, source: Source, count: int) -> list[dict]:
    """One row a way: quality with its error, tokens a call and a second."""
    rows = []
    for name, how in WAYS.items():
        texts, stats = [], []
        for seed in range(count + 1):
            found = bundle.generate(length=LENGTH, temperature=1.0, seed=seed, **how)
            if seed:  # the first is for what is done once
                texts.append(found.text[0])
                stats.append(found.stats)
        nats = [nats_of(source, text).mean().item() for text in texts]
        tokens = sum(one.tokens for one in stats)
        row = {
            "way": name,
            "texts": count,
            "nats_per_piece": statistics.mean(nats),
            "error": statistics.stdev(nats) / math.sqrt(count),
            "tokens_per_call": tokens / sum(one.network_calls for one in stats),
            "tokens_per_s": tokens / sum(one.seconds for one in stats),
        }
        rows.append(row | {"perplexity": math.exp(row["nats_per_piece"])})
        print(rows[-1], flush=True)
    return rows


def draw(rows: list[dict], path: Path) -> None:
    """Perplexity by the source against tokens a call, and against tokens a second."""
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    for axes, name, words in zip(
        figure.subplots(1, 2, sharey=True),
        ("tokens_per_call", "tokens_per_s"),
        ("tokens a network call", "tokens a second, one text, two cores"),
        strict=True,
    ):
        below = 0
        for row in sorted(rows, key=lambda row: row[name]):
            low, high = (math.exp(row["nats_per_piece"] + sign * row["error"]) for sign in (-1, 1))
            colour, place = FAMILIES[row["way"][0]], (row[name], row["perplexity"])
            axes.plot([row[name]] * 2, [low, high], color=colour, linewidth=1.5)
            axes.plot(*place, "o", color=colour)
            how = {"textcoords": "offset points", "size": 8}
            if row["perplexity"] < CROWDED:  # many are as good: their names go below, one under the other
                below += 1
                how["arrowprops"] = {"arrowstyle": "-", "linewidth": 0.5, "color": "grey"}
                axes.annotate(row["way"], place, xytext=(6, -14 - 11 * below), color=colour, **how)
            else:
                axes.annotate(row["way"], place, xytext=(5, 3), color=colour, **how)
        axes.set_ylim(bottom=0.5)
        axes.set(yscale="log", xlabel=words)
        axes.margins(x=0.18)
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("perplexity by the true source (temperature 1)")
    own = math.exp(json.loads(CORPUS.read_text())["test"]["entropy_per_piece"])
    for axes in figure.axes:
        axes.axhline(own, color="grey", linestyle=":", label="the source's own texts")
    figure.axes[1].legend(loc="lower right", fontsize=8)
    save(figure, path)


def main() -> None:
    """Measure, draw, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="stories")
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--count", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--redraw", action="store_true", help="the picture alone, from what was written before")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.redraw:
        rows = json.loads(args.out.read_text())
    else:
        rows = measure(hdlm.load(args.model), Source(args.source), args.count)
        args.out.write_text(json.dumps(rows, indent=1) + "\n")
    if args.picture is not None:
        draw(rows, args.picture)


if __name__ == "__main__":
    main()
