"""Train the recipe `laptop` with some fields changed for so many seconds, and judge it per byte of held-out text.

    python benchmarks/laptop.py --seconds 300 --out run.json --set optimizer.lr=3e-3 --set tokenizer=bpe-2048

The number of steps is what fits into the time, found by trying on a copy. The bounds by blocks of 16 and flat and the
exact likelihood by autoregression are of all rows of the validation split, in nats per byte, whatever the tokenizer.
"""

import argparse
import json
import time
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import torch

from hdlm.bundle import Bundle
from hdlm.config import recipes
from hdlm.config.parse import overrides
from hdlm.config.recipe import Recipe
from hdlm.data.corpus import open_corpus
from hdlm.data.packed import Rows, load_rows
from hdlm.data.tokenizer import make_tokenizer
from hdlm.evaluate.likelihood import estimate
from hdlm.files import json_text
from hdlm.nn.transformer import Denoiser
from hdlm.processes import World
from hdlm.theory.entries import Block, Flat, Quench
from hdlm.train.batch import Batches
from hdlm.train.setup import config_of
from hdlm.train.step import Stepper

WAYS = {"block 16": Block(16, 16), "autoregression": Quench(1), "flat": Flat(1)}
SLACK = 1.05  # of the time, after which a run that was measured too fast is stopped


def stepper_of(recipe: Recipe, model: Denoiser, rows: Rows, bos_id: int | None) -> Stepper:
    """The trainer's step on the CPU."""
    process, world = recipe.process.build(model.config.vocab_size), World(0, 1, torch.device("cpu"))
    return Stepper(recipe, model, process, Batches(recipe, rows, process, bos_id=bos_id, device=world.device), world)


def seconds_a_step(recipe: Recipe, model: Denoiser, rows: Rows, bos_id: int | None, tries: int) -> float:
    """What a step takes, on average over those that are autoregressive and those that are not."""
    total = 0.0
    for first, share in ((1.0, recipe.autoregressive_first), (0.0, 1 - recipe.autoregressive_first)):
        if share:
            alone = replace(recipe, steps=10**6, autoregressive_first=first)
            stepper = stepper_of(alone, deepcopy(model), rows, bos_id)
            stepper.step()
            began = time.perf_counter()
            for _ in range(tries):
                stepper.step()
            total += share * (time.perf_counter() - began) / tries
    return total


def judged(bundle: Bundle, held_out: Rows) -> dict[str, dict[str, float]]:
    """Nats per byte and their error, and nats per token, by each way of decoding."""
    rows = held_out.take(torch.arange(len(held_out))).tolist()
    assert bundle.tokenizer is not None
    size = sum(len(text.encode()) for text in bundle.tokenizer.decode_batch(rows, skip_special_tokens=False))
    found = {}
    for name, schedule in WAYS.items():
        if schedule.autoregressive and not bundle.config.shifted:
            continue
        bound = estimate(bundle, rows, draws=1, hyperschedule=schedule, batch_size=64)
        error = (bound.error or 0.0) * bound.tokens / size
        found[name] = {"per_byte": bound.nats / size, "error": error, "per_token": bound.value}
    return found


def main() -> None:
    """Train, judge, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file of what came of it")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tries", type=int, default=12, help="steps by which a step's time is found")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    changes = [(name, value) for name, _, value in (setting.partition("=") for setting in args.set)]
    recipe = overrides(recipes.get("laptop"), changes)
    text = make_tokenizer(recipe.tokenizer, open_corpus(recipe.data).documents("train"))
    rows, held_out = (load_rows(recipe.data, split, text, recipe.length) for split in ("train", "valid"))
    config = config_of(recipe, text)
    torch.manual_seed(recipe.seed)
    model = Denoiser(config.model)
    each = seconds_a_step(recipe, model, rows, config.bos_id, args.tries)
    recipe = replace(recipe, steps=max(2, int(args.seconds / each)))
    stepper = stepper_of(recipe, model, rows, config.bos_id)
    began = time.perf_counter()
    while stepper.state.step < recipe.steps and time.perf_counter() - began < SLACK * args.seconds:
        stepper.step()
    seconds = time.perf_counter() - began
    stepper.state.average.swap(model)
    found = {
        "set": args.set,
        "parameters": model.num_parameters,
        "steps": stepper.state.step,
        "seconds": seconds,
        "ways": judged(Bundle(model.eval(), config, text.tokenizer), held_out),
        "recipe": recipe.to_json(),
    }
    args.out.write_text(json_text(found) + "\n")
    print(json.dumps({name: value for name, value in found.items() if name != "recipe"}))


if __name__ == "__main__":
    main()
