"""What each step rule writes, by the true source's judgement.

    PYTHONPATH=src python benchmarks/stories/samplers.py --source ../shared/weights/stories15m --out samplers.json

Perplexity is per piece of the source. Low perplexity alone is no praise: beside it stand the entropy of a sample's own
tokens, and how many of the texts begin with other words than those before. `faultless` texts have no piece among their
first that the source would write less than once in a thousand times (exp -7). `any order` tells apart what `certain`
owes to settling one place a step and what to choosing it.
"""

import argparse
import json
from pathlib import Path

import torch
from samples import nats_of, perplexity_of
from source import Source
from torch import Tensor

import hdlm
from hdlm.evaluate.diversity import unigram_entropy
from hdlm.sampling.rule import Prediction
from hdlm.sampling.rules import Bounded, Certain


class AnyOrder(Certain):
    """As many positions a step as `Certain` settles, but by lot."""

    name = "any order"

    def __init__(self) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(0)

    def certainty(self, prediction: Prediction, drawn: Tensor) -> Tensor:
        return torch.rand(drawn.shape, generator=self._generator, dtype=torch.float64)


ALL_RULES = (1.0, 0.8)  # temperatures; at others autoregression and `certain` alone
WAYS = [
    ("ar", {"kind": "quench"}),
    ("any order", {"sampler": AnyOrder()}),
    *((rule, {"rate": rate, "sampler": rule}) for rule in ("posterior", "certain", "confidence") for rate in (1, 2, 4)),
    # One text at a time, so that its calls are its own.
    *((f"bounded {bound:g}", {"sampler": Bounded(bound), "batch_size": 1}) for bound in (0.0, 0.1, 0.3, 1.0, 3.0)),
]
OPENING = 8  # words
BEGINNING, FAULT = 125, 7.0  # pieces, about a hundred words; nats


def main() -> None:
    """Draw, judge, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="stories")
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--count", type=int, default=32)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[1.0, 0.8, 0.7, 0.6])
    parser.add_argument("--only", default="", help="rules whose name begins so")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    bundle, source = hdlm.load(args.model), Source(args.source)
    rows = []
    for temperature in args.temperatures:
        for rule, how in WAYS:
            rate = how.get("rate", 1)
            if not rule.startswith(args.only):
                continue
            if temperature not in ALL_RULES and (rule not in ("ar", "certain") or rate > 1):
                continue
            samples = bundle.generate(num_samples=args.count, seed=args.seed, temperature=temperature, **how)
            judged = [nats_of(source, text) for text in samples.text]
            rows.append(
                {
                    "rule": rule,
                    "rate": rate,
                    "temperature": temperature,
                    "perplexity": perplexity_of(judged),
                    "faultless": sum(bool((nats[:BEGINNING] < FAULT).all()) for nats in judged),
                    "entropy": unigram_entropy(samples.tokens)[0],
                    "openings": len({tuple(text.split()[:OPENING]) for text in samples.text}),
                    "samples": args.count,
                    "network_calls": samples.stats.network_calls,
                    "tokens_per_call": samples.stats.tokens / samples.stats.network_calls,
                }
            )
            print(", ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
    args.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
