"""Models from strangers: folders of our own and other people's layouts and GGUF files, each damaged here and there."""

import json
import os
import pickle
import random
import shutil
from pathlib import Path

import hdlm
from fuzz.answers import check_samples
from fuzz.commands import command_plan
from fuzz.damage import damage, damage_gguf, read_tensors, spoil_numbers, write_tensors
from fuzz.plan import Plan
from fuzz.sandbox import Box
from fuzz.templates import FOREIGN, MODELS, TINY

FILES = ("config.json", "config.json", "config.json", "model.safetensors", "model.safetensors", "tokenizer.json")
BESIDE = ("generation_config.json", "tokenizer_config.json")  # of a folder for transformers


def make(rng: random.Random, box: Box) -> Plan:
    """A model folder, damaged or whole, and one way to use it."""
    template = rng.choice((*MODELS, *FOREIGN, *FOREIGN))
    folder = box.work / box.copy(template, "model")
    expect, done = None, "whole"
    chance = rng.random()
    if chance < 0.08:
        expect = "right"
    elif template == "gguf":
        done = (damage if chance < 0.2 else damage_gguf)(rng, folder / "model.gguf")
    elif chance < 0.16:
        expect, done = "refused", spoil_numbers(rng, folder / "model.safetensors")
    elif chance < 0.26:
        done = rng.choice((_swap, _shards, _pickle, _shards))(rng, folder, box)
    else:
        there = [name for name in (*FILES, *BESIDE) if (folder / name).is_file()]
        files = rng.sample(there, rng.choice((1, 1, 2)))
        done = "; ".join(damage(rng, folder / name) for name in dict.fromkeys(files)) or "whole"
    plan = _use(rng, box, template, expect)
    plan.title = f"{plan.title}   ({template}; {done})"
    plan.expect = expect
    return plan


def _use(rng: random.Random, box: Box, template: str, expect: str | None) -> Plan:
    how = rng.choice(("sample", "sample", "evaluate", "load", "load", "init"))
    if (template == "tokens" and how == "evaluate") or (expect == "right" and how == "init"):
        how = "load"
    if how == "sample":
        return command_plan(["sample", "model", "--length", "4", "--seed", "1", "--json"], box)
    if how == "evaluate":
        return command_plan(
            ["evaluate", "model", "--metrics", "entropy", "--samples", "1", "--length", "4", "--json"], box
        )
    if how == "init":
        return _start_from(box)

    def call() -> list[dict]:
        return hdlm.load("model").generate(length=4, seed=1).to_json()

    return Plan('hdlm.load("model").generate(length=4)', call=call, check=_check)


def _check(rows: list[dict]) -> None:
    check_samples(rows, count=1, length=4, letters=False)


def _start_from(box: Box) -> Plan:
    """Training that begins from the folder."""
    (box.work / "letters.txt").write_text("abc def ghij " * 60)
    fields = [part for name, word in TINY.items() for part in (f"--{name}", word)]
    argv = ["train", "laptop", "--data", "letters.txt", "--out", "run", "--steps", "1", *fields]
    return command_plan([*argv, "--init-from", "model", "--json"], box)


def _swap(rng: random.Random, folder: Path, box: Box) -> str:
    """A file of another model."""
    name, other = rng.choice(("config.json", "model.safetensors", "tokenizer.json")), rng.choice((*MODELS, *FOREIGN))
    if (box.templates / other / name).exists():
        shutil.copyfile(box.templates / other / name, folder / name)
    return f"{name} of {other}"


def _shards(rng: random.Random, folder: Path, box: Box) -> str:
    """Weights in two files and an index of them, honest or not."""
    header, body = read_tensors(folder / "model.safetensors")
    names = [name for name in header if name != "__metadata__"]
    where = {}
    for number, part in enumerate((names[::2], names[1::2])):
        own, data = {}, b""
        for name in part:
            start, stop = header[name]["data_offsets"]
            own[name] = header[name] | {"data_offsets": [len(data), len(data) + stop - start]}
            data += body[start:stop]
        write_tensors(folder / f"part-{number}.safetensors", own, data)
        where |= dict.fromkeys(part, f"part-{number}.safetensors")
    lie = rng.choice((None, "../up.safetensors", "/etc/passwd", "missing.safetensors", "", ".", 3, None, "config.json"))
    if lie is not None:
        where[rng.choice(names)] = lie
    os.rename(folder / "model.safetensors", folder.parent / "up.safetensors")
    index = rng.choice(({"weight_map": where}, {"weight_map": where}, {}, [], {"weight_map": []}, {"weight_map": None}))
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return f"shards, {lie!r} among them"


class _Trap:
    """Unpickled, it would write a file: nobody may unpickle it."""

    def __reduce__(self):
        return os.mkdir, ("unpickled",)


def _pickle(rng: random.Random, folder: Path, box: Box) -> str:
    """A pickle in the place of the weights."""
    name = rng.choice(("pytorch_model.bin", "model.pt", "model.ckpt", "model.safetensors"))
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps({"state_dict": _Trap()}))
    return f"a pickle as {name}"
