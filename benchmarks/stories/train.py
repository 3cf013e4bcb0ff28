"""Train a model of the stories for so many seconds, and say how far from the truth it is.

    PYTHONPATH=src python benchmarks/stories/train.py --corpus stories --seconds 70 --out run \\
        --set schedules=block:16 --set optimizer.lr=3e-3

`--set` changes a field of the recipe `stories`; `schedules` takes kind:width:share, joined by commas. The number of
steps is what fits into the time, found by trying; compilation is not part of it. `--warm` of those seconds go into
autoregression, which costs half as much a row and teaches most of the language. The table gives the bound by each way
of decoding, in nats per piece of the source and per byte above what the source itself needs.
"""

import argparse
import json
import time
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from judge import in_words, judge

from hdlm.bundle import Bundle
from hdlm.config import recipes
from hdlm.config.parse import overrides
from hdlm.config.recipe import MixtureMember, Recipe
from hdlm.data.packed import Rows
from hdlm.data.tokenizer import make_tokenizer
from hdlm.device import choose_device
from hdlm.nn.transformer import Denoiser
from hdlm.processes import World
from hdlm.train.batch import Batches
from hdlm.train.setup import config_of
from hdlm.train.step import Stepper


def changed(recipe: Recipe, settings: list[str]) -> Recipe:
    """The recipe with fields set, by FIELD=VALUE."""
    return overrides(recipe, [(name, value) for name, _, value in (setting.partition("=") for setting in settings)])


@dataclass
class Phase:
    """A stretch of training: so many seconds of a recipe."""

    recipe: Recipe
    seconds: float

    def begin(self, model: Denoiser, rows: Rows, bos_id: int | None, device: torch.device) -> Stepper:
        """The trainer's step."""
        process = self.recipe.process.build(model.config.vocab_size)
        batches = Batches(self.recipe, rows, process, bos_id=bos_id, device=device)
        return Stepper(self.recipe, model, process, batches, World(0, 1, device))

    def measure(self, model: Denoiser, rows: Rows, bos_id: int | None, device: torch.device, tries: int) -> None:
        """Set the number of steps by what one takes, on a copy, once everything is compiled."""
        stepper = replace(self, recipe=replace(self.recipe, steps=10**6)).begin(deepcopy(model), rows, bos_id, device)
        for _ in range(tries):
            stepper.step()
        began = time.perf_counter()
        for _ in range(tries):
            stepper.step()
        each = (time.perf_counter() - began) / tries
        self.recipe = replace(self.recipe, steps=max(1, int(self.seconds / each)))
        print(f"{self.recipe.steps} steps of {1e3 * each:.1f} ms", flush=True)

    def run(self, model: Denoiser, rows: Rows, bos_id: int | None, device: torch.device) -> dict[str, Any]:
        """Train, never past the time; the model is left with its averaged weights."""
        stepper = self.begin(model, rows, bos_id, device)
        began, losses, slots = time.perf_counter(), [], 0
        for number in range(self.recipe.steps):
            done = stepper.step()
            losses.append(done.loss)
            slots += done.slots
            if time.perf_counter() - began > self.seconds:
                break
            if (number + 1) % max(1, self.recipe.steps // 10) == 0:
                passed = time.perf_counter() - began
                print(f"step {number + 1}: loss {np.mean(losses[-50:]):.4f}, {passed:.0f} s", flush=True)
        seconds = time.perf_counter() - began
        stepper.state.average.swap(model)
        return {
            "steps": len(losses),
            "seconds": seconds,
            "slots_per_ms": slots / seconds / 1e3,
            "epochs": len(losses) * self.recipe.global_batch / len(rows),
            "loss": float(np.mean(losses[-100:])),
            "recipe": self.recipe.to_json(),
        }


def main() -> None:
    """Train, judge, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=70)
    parser.add_argument("--warm", type=float, default=0.0, help="seconds of autoregression, before the rest")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--held-out", type=int, default=512)
    parser.add_argument("--draws", type=int, default=4)
    parser.add_argument("--tries", type=int, default=60)
    parser.add_argument("--device")
    args = parser.parse_args()
    device = choose_device(args.device)
    args.out.mkdir(parents=True, exist_ok=True)
    recipe = changed(recipes.get("stories"), args.set)
    text = make_tokenizer(str(args.corpus / "tokenizer.json"), [])
    rows = Rows(np.load(args.corpus / "train.npy", mmap_mode="r")[:, : recipe.length])
    config = config_of(recipe, text)

    torch.manual_seed(recipe.seed)
    model = Denoiser(config.model).to(device)
    print(f"{model.num_parameters:,} parameters", flush=True)
    phases = [Phase(recipe, args.seconds - args.warm)]
    if args.warm:
        phases.insert(0, Phase(replace(recipe, schedules=(MixtureMember("quench"),)), args.warm))
    done = []
    for phase in phases:
        phase.measure(model, rows, config.bos_id, device, args.tries)
        done.append(phase.run(model, rows, config.bos_id, device))
    bundle = Bundle(model.eval(), config, text.tokenizer)
    bundle.save(args.out)
    held_out = dict(np.load(args.corpus / "valid.npz"))
    found = judge(bundle, held_out, rows=args.held_out, draws=args.draws, batch=128)
    report = {"set": args.set, "parameters": model.num_parameters, "phases": done, "ways": found}
    (args.out / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    print(f"{' '.join(args.set)}: {in_words(found)}", flush=True)


if __name__ == "__main__":
    main()
