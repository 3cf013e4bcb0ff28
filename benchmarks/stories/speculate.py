"""What speculation takes, beside plain autoregression with the same seeds: calls, time, and whether the texts agree.

    PYTHONPATH=src python benchmarks/stories/speculate.py --out speculate.json

`drafts`: tokens a verdict, of one text at a time, by temperature and by how far ahead; `without head`: by the windows
alone. `couplings`: how often a token drafted right behind a known one, and those behind it, are what autoregression
draws, for three ways to share a random number. `speed`: tokens per second, ways taking turns in one run, texts
the same. `growth`: the same by the number of texts at once. `agreement`: of texts in float32 that are those of
autoregression, token by token (in float64 all are, which tests hold).
"""

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

import hdlm
from hdlm.bundle import Bundle
from hdlm.nn.transformer import Denoiser
from hdlm.theory.layout import build_layout
from hdlm.theory.random import categorical, keyed_uniform, race

LENGTH = 200
TEMPERATURES = (1.0, 0.6, 0.0)
FIXED = [(3, "every"), (5, "every"), (8, "every"), (4, "full"), (4, "apart"), (6, "apart"), (8, "apart")]
PROMPTS = [  # a text each, so that greedy ones differ
    "Once upon a time, there was a little dog.",
    "One day, a dragon",
    "Tom had a red ball.",
    "Lily and Ben were in the garden.",
    "There was a big tree in the park.",
    'Mum said, "It is time for bed."',
    "The cat was hungry.",
    "Sam liked to sing.",
]
SIZES = (1, 2, 4, 8, 16, 64)


def without_head(bundle: Bundle) -> Bundle:
    """The same model, drafting by its windows alone."""
    config = replace(bundle.config.model, draft_width=0)
    model = Denoiser(config).eval()
    model.load_state_dict({k: v for k, v in bundle.model.state_dict().items() if not k.startswith("draft.")})
    return Bundle(model, replace(bundle.config, model=config), bundle.tokenizer)


def write(bundle: Bundle, seed: int, **how) -> hdlm.Samples:
    """Texts of LENGTH new tokens after the prompt of a seed."""
    return bundle.generate(PROMPTS[seed % len(PROMPTS)], length=LENGTH, stop_at_eos=False, seed=seed, **how)


def drafts(bundle: Bundle, texts: int) -> list[dict]:
    """Tokens a call and a verdict, by temperature and way; the mean over texts, and its error."""
    rows = []
    for name, model in (("draft head", bundle), ("without head", without_head(bundle))):
        for temperature in TEMPERATURES:
            for draft, ahead in FIXED:
                how = {"sampler": "speculative", "draft": draft, "ahead": ahead, "temperature": temperature}
                stats = [write(model, seed=seed, **how).stats for seed in range(texts)]
                calls = [LENGTH / one.network_calls for one in stats]
                verdicts = [LENGTH / (LENGTH - one.accepted) for one in stats]
                rows.append({"by": name, "temperature": temperature, "draft": draft, "ahead": ahead, "texts": texts})
                for word, values in (("tokens_per_call", calls), ("tokens_per_verdict", verdicts)):
                    error = statistics.stdev(values) / texts**0.5
                    rows[-1] |= {word: statistics.mean(values), f"{word}_error": error}
                print(rows[-1], flush=True)
    return rows


def descending(weights: Tensor, u: Tensor) -> Tensor:
    """The inverse CDF over tokens in the order of their probability."""
    ordered, order = weights.sort(dim=-1, descending=True)
    return order.gather(-1, categorical(ordered, u).unsqueeze(-1)).squeeze(-1)


@torch.no_grad()
def couplings(bundle: Bundle, texts: int, window: int = 6) -> list[dict]:
    """Shares of tokens of a window, by depth, that are what autoregression draws there with the same number.

    On texts of the model's own, whose tokens before are known at each depth (by the windows alone).
    """
    ways: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "race": race,
        "inverse CDF, descending": descending,
        "inverse CDF": categorical,
    }
    model, found = bundle.model, []
    x = torch.tensor(write(bundle, kind="quench", num_samples=texts, temperature=1.0, seed=7).tokens)
    length = x.shape[1]
    starts = list(range(8, length - window, window))
    layout = build_layout(length, [(at, at + window) for at in starts], shifted=True)
    masks = torch.full_like(x, bundle.process.mask_id or 0)
    features = model.trunk(layout.fill(x, masks, torch.ones(x.shape), bundle.process, bos_id=bundle.config.bos_id))
    index = torch.tensor(starts).unsqueeze(1) + torch.arange(window)
    own = features[:, length + 1 :].unflatten(1, (len(starts), window + 1))[:, :, :window]
    size = bundle.config.model.vocab_size
    draft, law = (model.head(f)[..., :size].double().softmax(-1).flatten(0, 1) for f in (own, features[:, index]))
    u = keyed_uniform(1, torch.arange(len(draft)).unsqueeze(1), torch.arange(window))
    for name, draw in ways.items():
        agree = (draw(draft, u) == draw(law, u)).double()
        error = (agree.var(0) / len(agree)).sqrt()
        found.append({"by": name, "windows": len(agree), "agree": agree.mean(0).tolist(), "error": error.tolist()})
        print(found[-1], flush=True)
    return found


def timed(bundle: Bundle, ways: dict[str, dict], turns: int, **how) -> dict[str, dict]:
    """Medians of seconds by way, all taking turns with the same seeds; the ratio to the first of each turn."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    calls = dict.fromkeys(ways, 0)
    for turn in range(turns + 1):
        for name, way in ways.items():
            samples = write(bundle, seed=turn, **how, **way)
            if turn > 0:  # the first is for what is done once
                seconds[name].append(samples.stats.seconds)
                calls[name] += samples.stats.network_calls
    first = seconds[next(iter(ways))]
    return {
        name: {
            "tokens_per_s": how.get("num_samples", 1) * LENGTH / statistics.median(values),
            "ratio": statistics.median(a / b for a, b in zip(first, values, strict=True)),
            "calls": calls[name] / turns,
        }
        for name, values in seconds.items()
    }


def speed(bundle: Bundle, turns: int) -> list[dict]:
    """One text at a time: autoregression, fixed ways, and the way that is chosen as it goes."""
    rows = []
    fixed = {
        f"{ahead} {draft}": {"sampler": "speculative", "draft": draft, "ahead": ahead}
        for draft, ahead in FIXED
        if draft != 8 or ahead == "apart"
    }
    ways = {"autoregression": {"sampler": "ar"}, **fixed, "chosen": {"sampler": "speculative"}}
    for temperature in TEMPERATURES:
        for name, found in timed(bundle, ways, turns, temperature=temperature).items():
            rows.append({"temperature": temperature, "way": name} | found)
            print(rows[-1], flush=True)
    return rows


def growth(bundle: Bundle, turns: int) -> list[dict]:
    """By the number of texts at once, temperature 1."""
    ways = {"autoregression": {"sampler": "ar"}, "chosen": {"sampler": "speculative"}}
    ways |= {f"apart {n}": {"sampler": "speculative", "draft": n, "ahead": "apart"} for n in (2, 4)}
    rows = []
    for size in SIZES:
        how = {"num_samples": size, "batch_size": size, "temperature": 1.0}
        for name, found in timed(bundle, ways, turns, **how).items():
            rows.append({"texts": size, "way": name} | found)
            print(rows[-1], flush=True)
    return rows


def agreement(bundle: Bundle, texts: int) -> list[dict]:
    """Texts in float32 that speculation and autoregression write alike, drafting in two ways."""
    rows, seeds = [], range(texts)
    for temperature in TEMPERATURES:
        plain = [write(bundle, seed, sampler="ar", temperature=temperature).tokens for seed in seeds]
        for draft, ahead in ((3, "every"), (6, "apart")):
            how = {"sampler": "speculative", "draft": draft, "ahead": ahead, "temperature": temperature}
            same = [write(bundle, seed, **how).tokens == plain[seed] for seed in seeds]
            rows.append({"temperature": temperature, "draft": draft, "ahead": ahead, "texts": texts, "same": sum(same)})
            print(rows[-1], flush=True)
    return rows


Part = Callable[[Bundle, int], list[dict]]


def measure(described: str | None, by_text: dict[str, Part], by_turn: dict[str, Part], *, threads: int = 2) -> None:
    """A script: measure the parts that are asked for, each on so many texts or in so many turns, and write them."""
    parser = argparse.ArgumentParser(description=described, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="stories")
    parser.add_argument("--only", nargs="+", choices=[*by_text, *by_turn], default=[*by_text, *by_turn])
    parser.add_argument("--texts", type=int, default=16)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--threads", type=int, default=threads)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    bundle = hdlm.load(args.model)
    found = json.loads(args.out.read_text()) if args.out.exists() else {}
    for part in args.only:
        found[part] = by_turn[part](bundle, args.turns) if part in by_turn else by_text[part](bundle, args.texts)
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    by_text = {"drafts": drafts, "couplings": couplings, "agreement": agreement}
    measure(__doc__, by_text, {"speed": speed, "growth": growth})
