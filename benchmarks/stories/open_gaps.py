"""How well the length of a gap is found: a sentence cut out of each held-out story, and put back in three ways.

    PYTHONPATH=src python benchmarks/stories/open_gaps.py --source ../shared/weights/stories15m --out open_gaps.json

A text is four sentences of a story of `stories-test`, the second of which is missing: its true length is given, or the
mean length of all that are missing, or none (`[[gap]]`). Judged by exact log-likelihoods of the whole filled text, by
the model itself and by the true source of the stories, beside those of the true text.
"""

import argparse
import json
import lzma
import multiprocessing
import re
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from samples import nats_of
from source import END, Source

import hdlm
from hdlm.bundle import Bundle
from hdlm.sampling.open_gaps import MOST_TOKENS
from hdlm.sampling.prompts import encode

_SENTENCES = re.compile(r'[^.!?"\n]+[.!?](?=[ \n])')  # without speech, whose end is no sentence's
_LEFT, _RIGHT = 1, 2


@dataclass(frozen=True)
class Cut:
    """A text without one sentence, which has `length` tokens, and the tokens of all of it."""

    left: str
    right: str
    tokens: list[int]
    length: int


@dataclass(frozen=True)
class Filled:
    """One text as it was filled: nats are -log p of the whole, `pieces` those of the source."""

    length: int
    true_length: int
    recovered: bool
    tokens: int
    nats: float
    pieces: int
    source_nats: float
    network_calls: int


def cut(bundle: Bundle, story: str) -> Cut | None:
    """A story's first sentences, the second of them missing; None where they are not as plain as this needs."""
    ends, place = [], 0
    while (found := _SENTENCES.match(story, place)) is not None and len(ends) < _LEFT + 1 + _RIGHT:
        place = found.end()
        ends.append(place)
    if len(ends) < _LEFT + 1 + _RIGHT:
        return None
    left, middle, right = story[: ends[0]], story[ends[0] : ends[1]], story[ends[1] : ends[-1]]
    parts = [encode(bundle.tokenizer, part) for part in (left, middle, right)]
    whole = encode(bundle.tokenizer, left + middle + right)
    plain = whole == [token for part in parts for token in part] and len(parts[1]) <= MOST_TOKENS
    return Cut(left, right, whole, len(parts[1])) if plain else None


class Worker:
    """Fills texts and judges them; one a process."""

    def __init__(self, model: str, source: Path, *, rate: float, seed: int) -> None:
        self.bundle, self.source = hdlm.load(model), Source(source)
        self._how: dict[str, Any] = {"rate": rate, "seed": seed}

    def __call__(self, one: Cut, average: int) -> dict[str, Filled]:
        """One text in every way."""
        found = {"the true text": self._judged(one.tokens, one, one.length, 0)}
        marks = {"true length": f"[[gap:{one.length}]]", "mean length": f"[[gap:{average}]]", "open": "[[gap]]"}
        for way, mark in marks.items():
            samples = self.bundle.infill(one.left + mark + one.right, **self._how)
            length, calls = len(samples.written[0]), samples.stats.network_calls
            found[way] = self._judged(samples.tokens[0], one, length, calls)
        return found

    def _judged(self, tokens: list[int], one: Cut, length: int, calls: int) -> Filled:
        assert self.bundle.tokenizer is not None
        theirs = nats_of(self.source, self.bundle.tokenizer.decode(tokens))
        nats = -self.bundle.logprobs(tokens).total
        same, total = tokens == one.tokens, theirs.sum().item()
        return Filled(length, one.length, same, len(tokens), nats, len(theirs), total, calls)


_worker: Worker | None = None


def _start(model: str, source: Path, rate: float, seed: int) -> None:
    global _worker
    torch.set_num_threads(1)
    _worker = Worker(model, source, rate=rate, seed=seed)


def _work(one: Cut, average: int) -> dict[str, Filled]:
    assert _worker is not None
    return _worker(one, average)


def mean(values: list[float]) -> tuple[float, float]:
    """And its standard error."""
    x = torch.tensor(values, dtype=torch.float64)
    return x.mean().item(), (x.std() / len(x) ** 0.5).item()


def ratio(nats: list[float], sizes: list[int]) -> tuple[float, float]:
    """A ratio of sums and its standard error, by linearisation."""
    x, n = (torch.tensor(values, dtype=torch.float64) for values in (nats, sizes))
    value = (x.sum() / n.sum()).item()
    return value, ((x - value * n).std() * len(x) ** 0.5 / n.sum()).item()


def summary(rows: list[Filled]) -> dict[str, Any]:
    """Each figure and its standard error."""
    errors = [row.length - row.true_length for row in rows]
    return {
        "texts": len(rows),
        "length_found": mean([float(error == 0) for error in errors]),
        "length_error": mean([float(abs(error)) for error in errors]),
        "length_bias": mean([float(error) for error in errors]),
        "recovered": mean([float(row.recovered) for row in rows]),
        "nats_per_text": mean([row.nats for row in rows]),
        "nats_per_token": ratio([row.nats for row in rows], [row.tokens for row in rows]),
        "source_nats_per_text": mean([row.source_nats for row in rows]),
        "source_nats_per_piece": ratio([row.source_nats for row in rows], [row.pieces for row in rows]),
        "network_calls": mean([float(row.network_calls) for row in rows]),
    }


def main() -> None:
    """Cut, fill, judge, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="stories")
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--rate", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    bundle = hdlm.load(args.model)
    packed = (files("hdlm") / "models" / "stories-test.jsonl.xz").read_bytes()
    lines = lzma.decompress(packed).decode().splitlines()
    stories = [story for line in lines for story in json.loads(line)["text"].split(END)]
    cuts = [found for story in stories if (found := cut(bundle, story)) is not None]
    average = round(sum(one.length for one in cuts) / len(cuts))
    said = {"rate": args.rate, "seed": args.seed, "mean_length": average}
    cuts, rows, found = cuts[: args.count], [], {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(args.workers, context, _start, (args.model, args.source, args.rate, args.seed)) as pool:
        for one in pool.map(_work, cuts, [average] * len(cuts)):
            rows.append(one)
            print(f"{len(rows)} of {len(cuts)}: {one['open'].true_length}, found {one['open'].length}", flush=True)
            if len(rows) > 1:  # written as it goes: it takes long
                ways = {way: [row[way] for row in rows] for way in one}
                found = {way: summary(filled) for way, filled in ways.items()}
                texts = {way: [asdict(row) for row in filled] for way, filled in ways.items()}
                args.out.write_text(json.dumps(said | {"ways": found, "texts": texts}) + "\n")
    for way, figures in found.items():
        print(f"{way}: {figures}")


if __name__ == "__main__":
    main()
