"""Recipes changed field by field: planned, run at toy size, and trained."""

import dataclasses
import random
from collections.abc import Iterator
from typing import Any

from fuzz import pool
from fuzz.commands import command_plan
from fuzz.plan import Plan
from fuzz.sandbox import Box
from fuzz.schedules import MIXTURES, levels_file
from fuzz.templates import TINY
from hdlm.config import recipes
from hdlm.config.build import NOISES, PROCESSES, SCHEDULES

_ODD_NAMES = (
    "model", "model.", ".model", "model..width", "schedules", "schedules.0", "schedules.9.kind", "schedules.-1.kind",
    "schedules.x.kind", "__class__", "name.upper", "process.noise.settings", "process.noise.settings.eps", "nothing",
    "optimizer.lr.real", "loss.lambda_", "loss.lambda", "", ".", "steps.0", "é", "model.width\n",
)  # fmt: skip
_WORDS = {
    "kind": [*PROCESSES, *NOISES, *SCHEDULES, "adamw", "muon", "custom"],
    "parameterization": ["clean", "score", "hdce", "sedd-plain"],
    "tokenizer": ["bytes", "chars", "bpe-300", "bpe-299", "bpe-1e9", "bpe-", "bpe--1", "gpt2", "file.txt"],
    "name": ["x", "../x", "a/b", "."],
    "init_from": ["gamma", "none", "missing", "stories"],
}


def fields(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every field of a recipe by its dotted name, with its value."""
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from fields(getattr(value, field.name), f"{prefix}{field.name}.")
    elif isinstance(value, tuple):
        for number, item in enumerate(value):
            yield from fields(item, f"{prefix}{number}.")
    else:
        yield prefix[:-1], value


def change(rng: random.Random, box: Box) -> tuple[str, str]:
    """A field's name and a word for it."""
    if rng.random() < 0.1:
        return rng.choice(_ODD_NAMES), pool.word(rng)
    if rng.random() < 0.1:
        levels_file(rng, box, valid=rng.random() < 0.5)
        return "schedules", rng.choice(MIXTURES)
    name, value = rng.choice(list(fields(recipes.laptop())))
    last = name.rsplit(".", 1)[-1]
    if last in _WORDS and rng.random() < 0.7:
        return name, rng.choice(_WORDS[last])
    if isinstance(value, bool):
        return name, rng.choice(("true", "false", "TRUE", "1", "", "yes"))
    if isinstance(value, int | float) or value is None:
        return name, rng.choice(("1", "2", "4", "0.5", "8", "0.1")) if rng.random() < 0.4 else pool.number_word(rng)
    return name, box.place(rng) if rng.random() < 0.3 else pool.word(rng)


def make(rng: random.Random, box: Box) -> Plan:
    """A recipe with one to three fields changed."""
    how = rng.choice(("plan", "dry-run", "dry-run", "train"))
    changes = [change(rng, box) for _ in range(rng.choice((1, 1, 2, 3)))]
    if how == "train":  # compiling is tried at toy size alone: it takes a compiler a minute
        changes = [(name, word) for name, word in changes if name != "compile"]
    argv = [part for name, word in changes for part in _flag(rng, name, word)]
    if how == "plan":
        argv = ["plan", rng.choice(list(recipes.all_recipes())), *argv, *rng.choice((["--json"], []))]
    elif how == "dry-run":
        argv = ["train", rng.choice(list(recipes.all_recipes())), "--dry-run", *argv, *rng.choice((["--json"], []))]
    else:
        tiny = [part for name, word in TINY.items() for part in (f"--{name}", word)]
        argv = ["train", "laptop", "--data", box.text(), "--out", "run", "--steps", "1", *tiny, *argv, "--json"]
    return command_plan(argv, box)


def _flag(rng: random.Random, name: str, word: str) -> list[str]:
    return [f"--{name}={word}"] if rng.random() < 0.4 else [f"--{name}", word]
