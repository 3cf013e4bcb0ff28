"""How to draw from a small model: texts by several rules and temperatures, read by one that knows the corpus.

    python benchmarks/laptop_decoding.py runs/laptop --judge runs/laptop-ar --samples 48 --out decoding.json

The judge is a model whose likelihoods are exact (autoregression), trained on the same text with the same tokenizer.
Printed are its perplexity of the texts, the entropy of their tokens, both with the standard error over texts, and the
same of held-out text, which is what they should come near to. Two seeds each.
"""

import argparse
import json
import math
import statistics
from pathlib import Path

import hdlm
from hdlm.data.corpus import open_corpus
from hdlm.evaluate.diversity import unigram_entropy

WAYS = {
    "posterior": {},
    "posterior, temperature 0.6": {"temperature": 0.6},
    "certain": {"sampler": "certain"},
    "certain, temperature 0.8": {"sampler": "certain", "temperature": 0.8},
    "certain, temperature 0.6": {"sampler": "certain", "temperature": 0.6},
    "autoregression": {"kind": "quench"},
    "autoregression, temperature 0.8": {"kind": "quench", "temperature": 0.8},
    "autoregression, temperature 0.6": {"kind": "quench", "temperature": 0.6},
}


def judged(judge, rows):
    """Mean and standard error over rows of the judge's nats per token and of the entropy of a row's tokens."""
    nats = [judge.perplexity([row], hyperschedule=hdlm.Quench(len(row))).value for row in rows]
    entropy, entropy_error = unigram_entropy(rows)
    found = {"rows": len(rows), "perplexity": math.exp(statistics.fmean(nats)), "entropy": entropy}
    return found | {"log_error": statistics.stdev(nats) / math.sqrt(len(rows)), "entropy_error": entropy_error}


def main():
    """All ways, both seeds, one line each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--judge", required=True)
    parser.add_argument("--samples", type=int, default=48)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    model, judge = hdlm.load(args.model), hdlm.load(args.judge)
    length, found = model.config.context, {}
    held_out = [model.tokenizer.encode(text).ids for text in open_corpus("stdlib").documents("valid")]
    rows = [row[start : start + length] for row in held_out for start in range(0, len(row) - length, length)]
    found["held-out text"] = [judged(judge, rows[:: max(1, len(rows) // args.samples)])]
    for name, how in WAYS.items():
        found[name] = []
        for seed in (0, 1):
            drawn = model.generate(num_samples=args.samples, length=length, seed=seed, stop_at_eos=False, **how)
            found[name].append(judged(judge, drawn.tokens))
    for name, each in found.items():
        words = "; ".join(
            f"{one['perplexity']:8.1f} (log ± {one['log_error']:.2f}), entropy {one['entropy']:.2f} ± "
            f"{one['entropy_error']:.2f}"
            for one in each
        )
        print(f"{name:<34}{words}")
    if args.out is not None:
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
