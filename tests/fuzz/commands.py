"""Command lines: the flags are those of the real parser, so that a new one is covered the day it is added."""

import argparse
import json
import os
import random
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

from fuzz import pool
from fuzz.answers import (
    check_clean,
    check_lines,
    check_model,
    check_numbers,
    check_page,
    check_picture,
    check_prepared,
    check_samples,
    strict_json,
)
from fuzz.plan import Plan
from fuzz.sandbox import Box
from fuzz.schedules import MIXTURES, WAYS, levels_file
from fuzz.templates import MODELS, TINY
from hdlm.cli.main import build_parser, main
from hdlm.config import recipes
from hdlm.config.build import RULES

INPUTS = {"model", "models", "data", "custom", "init_from", "judge", "recipe", "text", "prompt", "what", "file", "ids"}
INPUTS |= {"folder", "folders"}
OUTPUTS = {"out", "replay", "html"}
# Others: 4. A server does not end by itself: `requests.py` asks one.
WEIGHTS = {"sample": 8, "evaluate": 5, "train": 4, "plot": 2, "plan": 2, "demo": 0.3, "bench": 0.3, "serve": 0}
READERS = tuple(name for name in MODELS if name != "tokens")  # models that have a tokenizer


def leaves(parser: argparse.ArgumentParser | None = None, words: tuple[str, ...] = ()) -> dict:
    """Every command that can be run, by its words, with its parser."""
    parser = parser if parser is not None else build_parser()
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        return {words: parser}
    return {
        found: leaf for name, child in below[0].choices.items() for found, leaf in leaves(child, (*words, name)).items()
    }


def _sample(rng: random.Random, box: Box) -> list[str]:
    return [box.copy(rng.choice(MODELS), "model"), "--length", "5", "--seed", str(rng.randrange(9))]


def _infill(rng: random.Random, box: Box) -> list[str]:
    text = rng.choice(("ab[[gap:2]]cd", "ab[[gap:1-3]]c"))
    shifted = ("gamma", "epsilon")  # an open gap's length takes what predicts the next token
    model = rng.choice(shifted if "-" in text else ("absorbing", *shifted))
    return [box.copy(model, "model"), text, "--seed", "1"]


def _score(rng: random.Random, box: Box) -> list[str]:
    return [box.copy(rng.choice(READERS), "model"), "abc def", "--samples", "2"]


def _compare(rng: random.Random, box: Box) -> list[str]:
    models = [box.copy(name) for name in rng.sample(READERS, 2)]
    return [*models, "--data", _letters(box), "--draws", "2"]


def _train(rng: random.Random, box: Box) -> list[str]:
    fields = [part for name, word in TINY.items() for part in (f"--{name}", word)]
    return ["laptop", "--data", box.text(), "--out", "run", "--steps", "1", *fields]


def _evaluate(rng: random.Random, box: Box) -> list[str]:
    how = ["--metrics", "entropy"] if rng.random() < 0.5 else ["--metrics", "bound", "--data", _letters(box)]
    return [box.copy(rng.choice(READERS), "model"), *how, "--samples", "1", "--length", "4", "--draws", "1"]


def _export(rng: random.Random, box: Box) -> list[str]:
    layout = rng.choice(([], ["--to", "huggingface"], ["--to", "hdlm"]))
    return [box.copy(rng.choice((*MODELS, "exported")), "model"), "--out", "out", *layout]


def _bench(rng: random.Random, box: Box) -> list[str]:
    return [rng.choice(("train", "sample", "growth")), "--turns", "1", "--samples", "1", "--longest", "32"]


def _demo(rng: random.Random, box: Box) -> list[str]:
    return ["--model", box.copy(rng.choice(("gamma", "epsilon")), "model"), "--length", "3", "--prompt", "abc"]


def _plan(rng: random.Random, box: Box) -> list[str]:
    return [rng.choice(list(recipes.all_recipes()))]


def _data_prepare(rng: random.Random, box: Box) -> list[str]:
    return [box.text(), "--tokenizer", rng.choice(("bytes", "chars", "bpe-300")), "--out", "new", "--workers", "1"]


def _data_list(rng: random.Random, box: Box) -> list[str]:
    return rng.choice(([], ["."], [box.copy("prepared")])) + rng.choice(([], ["--json"]))


def _data_folder(rng: random.Random, box: Box) -> list[str]:
    return [box.copy("prepared"), *rng.choice(([], ["--json"]))]


def _plot(rng: random.Random, box: Box) -> list[str]:
    return ["--length", "4", "--width", "2", rng.choice(("--json", "--terminal"))]


def _plot_results(rng: random.Random, box: Box) -> list[str]:
    """A folder as `hdlm evaluate --out` leaves it."""
    number = {"value": 3.0, "error": 0.1}
    judged = {"gen_ppl": number | {"judge": "somebody"}, "entropy": number}
    cells = {
        "a": {"spec": {"kind": "samples", "settings": {"rate": 2.0}}, "result": judged},
        "b": {"spec": {"kind": "bound", "data": "letters.txt"}, "result": number | {"name": "masked bound"}},
    }
    about = {"model": "gamma", "process": {"kind": "gamma", "gamma": 0.2}}
    (box.work / "results").mkdir(exist_ok=True)
    (box.work / "results" / "results.json").write_text(json.dumps({"about": about, "cells": cells}))
    return ["results", *rng.choice(([], ["--json"]))]


# Valid and cheap command lines, to which things are then done, by the command's words or its first one.
VALID: dict[str, Callable[[random.Random, Box], list[str]]] = {
    "sample": _sample,
    "infill": _infill,
    "score": _score,
    "compare": _compare,
    "train": _train,
    "evaluate": _evaluate,
    "export": _export,
    "bench": _bench,
    "plan": _plan,
    "data prepare": _data_prepare,
    "data list": _data_list,
    "data inspect": _data_folder,
    "data verify": _data_folder,
    "plot": _plot,
    "plot front": _plot_results,
    "plot gamma": _plot_results,
}
NEARLY_VALID = {"demo": _demo}  # its texts are in words that the small models do not have


def base(rng: random.Random, words: tuple[str, ...], box: Box) -> list[str]:
    """The command line to begin from; of a command that is not known here, its arguments by their kind."""
    known = VALID | NEARLY_VALID
    make = known.get(" ".join(words), known.get(words[0]))
    if make is not None:
        return make(rng, box)
    return [likely(rng, action, box) for action in leaves()[words]._actions if not action.option_strings]


def _letters(box: Box) -> str:
    (box.work / "letters.txt").write_text("abc def ghij " * 4)
    return "letters.txt"


def likely(rng: random.Random, action: argparse.Action, box: Box) -> str:
    """A value that an argument was made for."""
    words = {
        "sampler": [*RULES],
        "precision": ["float64", "float32"],
        "backend": ["fast", "reference"],
        "device": ["cpu", "cuda"],
        "metrics": ["entropy", "bound", "entropy,bound"],
        "gpu": ["h200", "a100"],
        "sweep": ["rate=2,1", "eta=0,0.1", "threshold=0.9"],
        "only": ["AR", "block", "flat"],
        "prompt": ["abc", "ab [[gap:2]] cd", "ab [[gap]] cd", "", "a"],
        "text": ["abc def", "ab [[gap:2]] cd", "ab [[gap:1-3]] cd"],
        "ids": ["1 2 3", "[1, 2]", ""],
        "prompt_ids": ["1 2 3", ""],
        "encoding": ["utf-8", "latin-1", "utf-8:replace", "nothing"],
        "recipe": ["laptop", "stories"],
        "tokenizer": ["bytes", "chars"],
        "schedules": [*MIXTURES],
    }
    if action.choices is not None:
        return str(rng.choice(list(action.choices)))
    if action.dest in words:
        return rng.choice(words[action.dest])
    if action.metavar == "CKPT" or action.dest in ("model", "models", "init_from"):
        model = rng.choice(MODELS)
        model = model if (box.work / model).exists() else box.copy(model)
        return f"{model}@{rng.choice(WAYS)}" if action.dest == "models" and rng.random() < 0.7 else model
    if action.dest == "data":
        return _letters(box)
    if action.dest == "custom":
        return levels_file(rng, box, valid=True)
    if action.dest in OUTPUTS or action.metavar in ("FILE", "DIR"):
        return rng.choice(("new.html", "new.json", "new.png", "new.jsonl", "new", "new/below.json", "new.svg"))
    if action.type is float:
        return rng.choice(("0", "0.5", "1", "2"))
    return rng.choice(("1", "2", "3", "4"))


def nasty(rng: random.Random, action: argparse.Action, box: Box) -> str:
    """A value that it was not made for."""
    if action.type in (int, float) and rng.random() < 0.6:
        return pool.number_word(rng)
    if action.dest == "custom" and rng.random() < 0.6:
        return levels_file(rng, box, valid=False)
    places = action.type is Path or action.dest in INPUTS | OUTPUTS
    return box.place(rng) if rng.random() < (0.7 if places else 0.2) else pool.word(rng)


def option(rng: random.Random, action: argparse.Action, box: Box, *, share: float = 0.5) -> list[str]:
    """A flag with as many values as it takes, each nasty in `share` of the cases."""
    if action.nargs == 0:
        return [rng.choice(action.option_strings)]
    count = rng.choice((1, 1, 2, 3)) if action.nargs in ("+", "*") else 1
    values = [(nasty if rng.random() < share else likely)(rng, action, box) for _ in range(count)]
    if not action.option_strings:
        return values
    flag = rng.choice(action.option_strings)
    return [f"{flag}={values[0]}"] if count == 1 and rng.random() < 0.2 else [flag, *values]


def make(rng: random.Random, box: Box) -> Plan:
    """Any command, with none to three of its arguments changed or added."""
    found = leaves()
    names = sorted(found)
    words = rng.choices(names, [WEIGHTS.get(name[0], 4) for name in names])[0]
    argv, parser = base(rng, words, box), found[words]
    edits = rng.choice((0, 1, 1, 1, 2, 2, 3))
    actions = [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]
    positionals = [action for action in actions if not action.option_strings]
    for _ in range(edits):
        action = rng.choice(actions)
        given = option(rng, action, box)
        if action in positionals:
            at = positionals.index(action)
            argv[at : at + 1] = given
        else:
            argv += given
    if edits and rng.random() < 0.1:
        argv = _garbled(rng, argv, box, droppable=words != ("train",))
    plan = command_plan([*words, *argv], box, same_again=edits > 0 and rng.random() < 0.15)
    if edits == 0 and words[0] in VALID:
        plan.expect = "right"
    return plan


def _garbled(rng: random.Random, argv: list[str], box: Box, *, droppable: bool) -> list[str]:
    """A command line with a slip of the hand in it."""
    argv, at = list(argv), rng.randrange(len(argv))
    how = rng.randrange(4)
    if how == 0 and droppable:
        del argv[at]
    elif how == 1:
        argv.insert(len(argv), rng.choice(("--", "--nothing-such", "-x", "--no-cache=1", "--json=yes", "---")))
    elif how == 2:
        argv.append(pool.word(rng))
    else:
        argv.append(box.place(rng))
    return argv


def command_plan(argv: list[str], box: Box, *, same_again: bool = False) -> Plan:
    """What a command line may write, and what its answer has to be."""
    args = _parsed(argv)
    unclean = any(word in one.lower() for one in argv for word in ("nan", "inf", "mask", "\ufffd"))
    endless = pool.asks_for_endless_work(argv) or any(map(_is_pipe, argv))

    def check(stdout: str) -> None:
        _check(args, stdout, unclean=unclean or endless, endless=endless)
        if same_again:
            _check_same_again(argv, args, stdout)

    title = " ".join(["hdlm", *(word if len(word) < 60 else word[:50] + "..." for word in argv)])
    return Plan(title, argv, check=check, writes=_writes(args, box), endless=endless)


def _is_pipe(word: str) -> bool:
    """Whether a word names a pipe, at which whoever reads or writes waits for the other end."""
    try:
        return Path(word.rpartition("=")[2]).is_fifo()
    except (OSError, ValueError):
        return False


def _parsed(argv: list[str]) -> argparse.Namespace | None:
    """What argparse makes of it; None where it makes nothing of it."""
    with redirect_stderr(StringIO()), redirect_stdout(StringIO()):
        try:
            return build_parser().parse_known_args(argv)[0]
        except (SystemExit, ValueError):
            return None


def _writes(args: argparse.Namespace | None, box: Box) -> tuple[str, ...]:
    """Places, seen from the box, that the command was told to write, or writes where it is told nothing."""
    given = {} if args is None else {name: value for name, value in vars(args).items() if name not in INPUTS}
    named = [str(value) for value in given.values() if isinstance(value, str | Path)]
    named += ["runs"] if args is not None and getattr(args, "out", "") is None and args.command == "train" else []
    found = set()
    for name in named:
        if "\0" not in name and name:
            found |= {os.path.abspath(name), os.path.realpath(name)}
    return tuple(sorted(os.path.relpath(path, box.root) for path in found if Path(path).is_relative_to(box.root)))


def _check(args: argparse.Namespace | None, stdout: str, *, unclean: bool, endless: bool) -> None:
    """A command that ended well has printed what it should, and written what it was asked for."""
    if args is None:  # --help, --version
        return
    if getattr(args, "json", False):
        data = strict_json(stdout)
        if not unclean:
            check_numbers(data)
        if args.command == "sample" and not args.count:
            _check_sample(args, data)
    elif not unclean:
        check_clean(stdout)
    if not _writes_nothing(args) and not endless:
        _check_files(args)


def _writes_nothing(args: argparse.Namespace) -> bool:
    switches = ["list", "show_fields", "dry_run", "resume", "nodes", "gpus", "count", "terminal"]
    switches += ["json"] * (args.command == "plot")
    return any(getattr(args, name, False) for name in switches)


def _check_files(args: argparse.Namespace) -> None:
    """What was asked for is there, and whole."""
    for name in OUTPUTS:
        if getattr(args, name, None) is not None:
            path = Path(getattr(args, name))
            assert path.exists(), f"{str(path)!r} was not written"
            kind = (args.command, name)
            check = {("sample", "out"): check_lines, ("sample", "replay"): check_page, ("plot", "out"): check_picture}
            check |= {("data", "out"): check_prepared, ("export", "out"): check_model}
            check |= {("train", "out"): check_model, ("score", "html"): check_page, ("infill", "out"): check_lines}
            check.get(kind, str)(path)


def _check_sample(args: argparse.Namespace, data: dict) -> None:
    gaps = any("[[gap" in text for text in args.prompt or [])
    count = None if args.prompt_ids else args.num_samples * max(1, len(args.prompt or []))
    if args.model != "stories":
        check_samples(data["samples"], count=count, length=None if gaps else args.length)
    if args.out is not None:
        assert check_lines(Path(args.out)) == data["samples"], "--out holds other samples than were printed"


def _check_same_again(argv: list[str], args: argparse.Namespace | None, stdout: str) -> None:
    """The same seed writes the same text, once more in the same process."""
    if args is None or args.command != "sample" or args.seed is None or args.watch or args.count:
        return
    with redirect_stdout(StringIO()) as again:
        assert main(argv) == 0, "refused when asked for again"
    first, second = stdout, again.getvalue()
    if args.json:
        first, second = (json.dumps(json.loads(text)["samples"]) for text in (first, second))
    assert first == second, "the same seed gave another text"
