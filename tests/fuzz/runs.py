"""Runs gone on with after something has happened to their files."""

import hashlib
import json
import random
from pathlib import Path

from fuzz.answers import strict_json
from fuzz.commands import command_plan
from fuzz.damage import damage, damage_tensors, spoil_numbers
from fuzz.plan import Plan
from fuzz.sandbox import TEXT, Box

SHARD = "shard-00001-model-00001-of-00001.safetensors"
FILES = (
    "trainer/recipe.json",
    "trainer/recipe.json",
    "trainer/data.json",
    "trainer/tokenizer.json",
    "trainer/step-00000002/state.json",
    "trainer/step-00000002/state.json",
    f"trainer/step-00000002/{SHARD}",
    f"trainer/step-00000002/{SHARD}",
    "trainer/step-00000001/state.json",
    "trainer/lock",
    "metrics.jsonl",
    "config.json",
    "model.safetensors",
)


def make(rng: random.Random, box: Box) -> Plan:
    """A run of two steps out of three, one or two of its files damaged, resumed."""
    run = box.work / box.copy("run")
    last = run / "trainer" / "step-00000002"
    _retold(run / "trainer" / "recipe.json", {"data": str(box.work / box.copy("text.txt"))})
    plan = command_plan(["train", "--resume", "run", "--json"], box)
    chance = rng.random()
    if chance < 0.1:
        plan.expect, plan.check, done = "right", _finished, "whole"
    elif chance < 0.2:
        (box.work / "text.txt").write_text(TEXT.upper() * 60)
        plan.expect, done = "refused", "other text"
    elif chance < 0.25:
        plan.expect, done = "refused", spoil_numbers(rng, last / SHARD)
        _recorded(last)
    elif chance < 0.3:
        plan.expect, done = "refused", "a shard that is nobody's"
        name = rng.choice(("shard-00002-model-00001-of-00001.safetensors", ".metadata", "__0_0.distcp"))
        (last / name).write_bytes((last / SHARD).read_bytes())
    elif chance < 0.45:
        done = f"{damage_tensors(rng, last / SHARD)}, as the record says"
        _recorded(last)
    else:
        files = dict.fromkeys(rng.sample(FILES, rng.choice((1, 1, 2))))
        done = "; ".join(damage(rng, run / name) for name in files)
    plan.title += f"   ({done})"
    return plan


def _recorded(checkpoint: Path) -> None:
    """Let a checkpoint's record fit what has become of its shard: what a digest does not notice."""
    data = (checkpoint / SHARD).read_bytes()
    _retold(
        checkpoint / "state.json",
        {"shards": {SHARD: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}}},
    )


def _retold(path: Path, changes: dict[str, str]) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _finished(stdout: str) -> None:
    found = strict_json(stdout)
    assert (found["step"], found["finished"]) == (3, True), f"not finished: {stdout}"
