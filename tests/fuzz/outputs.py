"""Output paths: every command and method that writes, told to write to odd places."""

import argparse
import random
from pathlib import Path

import hdlm
from fuzz.answers import check_model
from fuzz.commands import OUTPUTS, base, command_plan, leaves
from fuzz.plan import Plan
from fuzz.sandbox import Box

SUFFIXES = ("", "", ".html", ".json", ".jsonl", ".png", ".svg", ".pdf", ".PNG", ".exe")
SLOW = {"bench", "demo"}  # commands that take seconds are left to the section of commands


def make(rng: random.Random, box: Box) -> Plan:
    """A command that is valid but for where it writes, or a model saved there."""
    place = box.place(rng)
    if rng.random() < 0.5 and not (box.work / place.replace("\0", "")[:200]).exists():
        place += rng.choice(SUFFIXES)
    if rng.random() < 0.15:
        return _save(place, box)
    words, flag = rng.choice(_writers())
    given = base(rng, words, box)
    if words[0] == "plot":
        given = [word for word in given if word not in ("--json", "--terminal")]
    return command_plan([*words, *given, f"{flag}={place}"], box)


def _writers() -> list[tuple[tuple[str, ...], str]]:
    """Commands with a flag for an output."""
    return [
        (words, action.option_strings[0])
        for words, parser in leaves().items()
        if words[0] not in SLOW
        for action in parser._actions
        if action.dest in OUTPUTS and not isinstance(action, argparse._HelpAction)
    ]


def _save(place: str, box: Box) -> Plan:
    model = box.copy("gamma", "model")
    plan = command_plan(["sample", model, f"--out={place}"], box)
    return Plan(
        f"hdlm.load({model!r}).save({place[:60]!r})",
        call=lambda: hdlm.load(model).save(place),
        check=lambda path: check_model(Path(path)),
        writes=plan.writes,
    )
