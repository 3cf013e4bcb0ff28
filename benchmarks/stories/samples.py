"""Twenty samples, unselected, with what the true source thinks of them: docs/samples.md.

PYTHONPATH=src python benchmarks/stories/samples.py --source ../shared/weights/stories15m --out docs/samples.md
"""

import argparse
from pathlib import Path

import torch
from source import Source
from torch import Tensor

import hdlm
from hdlm.evaluate.diversity import unigram_entropy


def nats_of(source: Source, text: str) -> Tensor:
    """-log p of a text's pieces by the source, [pieces]; as far as its context goes."""
    row = torch.tensor([source.encode(text)[:255]])
    log_p, _ = source.log_p(row, torch.zeros(1, dtype=torch.int64))
    return -log_p[0]


def perplexity_of(judged: list[Tensor]) -> float:
    """Per piece, all texts together."""
    return torch.cat(judged).mean().exp().item()


def main() -> None:
    """Draw, judge, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="stories")
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    bundle, source = hdlm.load(args.model), Source(args.source)
    samples = bundle.generate(num_samples=args.count, seed=args.seed)
    judged = [nats_of(source, text) for text in samples.text]
    entropy, _ = unigram_entropy(samples.tokens)
    truth = source.bundle.generate(num_samples=args.count, length=255, seed=args.seed)
    own = [nats_of(source, source.text(row).split("<|eos|>")[0]) for row in truth.tokens]
    theirs = perplexity_of(own)
    own = bundle.config.sampling
    flags = f"--count {args.count} --seed {args.seed}"
    parts = [
        f"# {args.count} samples, unselected\n",
        f"`hdlm sample {args.model} --num-samples {args.count} --seed {args.seed}`: default settings, which are",
        f"`{bundle.hyperschedule!r}`, rule `{own.sampler}`, temperature {own.temperature:g}. Written by",
        f"`python benchmarks/stories/samples.py --source SOURCE {flags} --out FILE`.\n",
        f"Perplexity under the true source: {perplexity_of(judged):.2f} per piece; the source's own samples, at",
        f"temperature 1, have {theirs:.2f}, which a lower temperature undercuts. Unigram entropy of their tokens:",
        f"{entropy:.2f} nats. Behind each number: its own perplexity.\n",
    ]
    for number, (text, nats) in enumerate(zip(samples.text, judged, strict=True), start=1):
        parts.append(f"## {number}. {perplexity_of([nats]):.2f}\n\n{text.strip()}\n")
    args.out.write_text("\n".join(parts))
    print("\n".join(parts[:7]))


if __name__ == "__main__":
    main()
