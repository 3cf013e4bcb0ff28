"""Runs gone on with after something has happened to their files."""

import json
import random
from pathlib import Path

from fuzz.answers import strict_json
from fuzz.commands import command_plan
from fuzz.damage import damage, spoil_numbers
from fuzz.plan import Plan
from fuzz.sandbox import TEXT, Box

FILES = (
    "trainer/recipe.json",
    "trainer/recipe.json",
    "trainer/data.json",
    "trainer/tokenizer.json",
    "trainer/step-00000002/state.json",
    "trainer/step-00000002/state.json",
    "trainer/step-00000002/state.safetensors",
    "trainer/step-00000002/state.safetensors",
    "trainer/step-00000001/state.json",
    "trainer/lock",
    "metrics.jsonl",
    "config.json",
    "model.safetensors",
)


def make(rng: random.Random, box: Box) -> Plan:
    """A run of two steps out of three, one or two of its files damaged, resumed."""
    run = box.work / box.copy("run")
    _retold(run / "trainer" / "recipe.json", {"data": str(box.work / box.copy("text.txt"))})
    plan = command_plan(["train", "--resume", "run", "--json"], box)
    chance = rng.random()
    if chance < 0.1:
        plan.expect, plan.check, done = "right", _finished, "whole"
    elif chance < 0.2:
        (box.work / "text.txt").write_text(TEXT.upper() * 60)
        plan.expect, done = "refused", "other text"
    elif chance < 0.25:
        plan.expect, done = "refused", spoil_numbers(rng, run / "trainer/step-00000002/state.safetensors")
    else:
        files = dict.fromkeys(rng.sample(FILES, rng.choice((1, 1, 2))))
        done = "; ".join(damage(rng, run / name) for name in files)
    plan.title += f"   ({done})"
    return plan


def _retold(path: Path, changes: dict[str, str]) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _finished(stdout: str) -> None:
    found = strict_json(stdout)
    assert (found["step"], found["finished"]) == (3, True), f"not finished: {stdout}"
