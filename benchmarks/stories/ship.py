"""Put a trained model of the stories into the package: weights in bfloat16, config, tokenizer, card, a held-out draw.

    PYTHONPATH=src python benchmarks/stories/ship.py --run run --corpus stories --judged judged.json

`--judged` is of `judge.py`, on more rows than training looks at. Writes src/hdlm/models/stories/ and
src/hdlm/models/stories-test.jsonl.xz, whose rows are the first of test.jsonl.
"""

import argparse
import json
import lzma
from dataclasses import replace
from pathlib import Path

import torch

import hdlm
from hdlm.config.sampling import DrawSettings
from hdlm.files import written_aside

MODELS = Path(__file__).parents[2] / "src" / "hdlm" / "models"


def _name(member: dict) -> str:
    return f"{member['kind']} {member['width']}" if member["width"] else member["kind"]


def card(report: dict, corpus: dict, judged: dict) -> str:
    """What the model is, how it was made, how far from the truth it is."""
    truth = corpus["valid"]
    lines = [
        "\n## What it is\n",
        "Little stories for children in simple English, 160 words at a time; nothing else. Its corpus was drawn at",
        "temperature 1 from stories15m, an autoregressive model of 15M parameters of TinyStories by others (MIT",
        "licence). So the probability of every row is known exactly: the source needs",
        f"{truth['entropy_per_piece']:.4f} ± {truth['entropy_error']:.4f} nats for one of its pieces.\n",
        "One checkpoint decodes autoregressively, by blocks, by a sliding window, and fills gaps. Bounds on held-out",
        "rows, above what the source itself needs:\n",
        "| decoding | nats per piece of the source | nats per byte |",
        "| --- | --- | --- |",
    ]
    for way, found in judged.items():
        value = f"{found['above_per_piece']:.3f} ± {found['error_per_piece']:.3f}"
        lines.append(f"| {way} | {value} | {found['above_per_byte']:.4f} |")
    lines += [
        "",
        f"{judged['AR']['rows']} rows, {judged['AR']['draws']} noise draws; errors are of the difference, row by row.",
        "",
        "Training (`benchmarks/stories/train.py`, recipe `stories`), on one H200:",
        "",
        *(
            f"- {', '.join(_name(member) for member in phase['recipe']['schedules'])}: {phase['steps']:,} steps in "
            f"{phase['seconds']:.0f} s, {phase['epochs']:.1f} epochs of {corpus['train']['rows']:,} rows"
            for phase in report["phases"]
        ),
        "\n## What it is not\n",
        "It knows no facts, follows no instructions, and repeats what small stories repeat.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Convert and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--judged", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--sampler", default="certain", help="where nothing is asked for")
    parser.add_argument("--temperature", type=float, default=0.6, help="likewise")
    args = parser.parse_args()
    bundle = hdlm.load(args.run)
    paths = (args.run / "report.json", args.corpus / "corpus.json", args.judged)
    report, corpus, judged = (json.loads(path.read_text()) for path in paths)
    own = DrawSettings(temperature=args.temperature, sampler=args.sampler)
    bundle.config = replace(bundle.config, sampling=own)
    bundle.model.to(torch.bfloat16)
    bundle.save(MODELS / "stories", notes=card(report, corpus, judged))
    lines = (args.corpus / "test.jsonl").read_text().splitlines(keepends=True)[: args.rows]
    with written_aside(MODELS / "stories-test.jsonl.xz") as aside:
        aside.write_bytes(lzma.compress("".join(lines).encode(), preset=9))
    for path in sorted(MODELS.rglob("*")):
        if path.is_file():
            print(f"{path.stat().st_size:>12,}  {path.relative_to(MODELS)}")


if __name__ == "__main__":
    main()
