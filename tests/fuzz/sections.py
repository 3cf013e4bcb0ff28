"""The sections of the suite, and case number n of seed s: a pure function of both (and of the tree that is tested).

Cases are drawn by a grammar over `random.Random("seed:number")`, not by Hypothesis: a number names a case for good, any
process can make any case without those before it, and the making costs microseconds.
"""

import random
from collections.abc import Callable
from functools import partial

from fuzz import calls, commands, datasets, models, outputs, prompts, recipes, runs
from fuzz.plan import Plan
from fuzz.sandbox import Box

SECTIONS: dict[str, tuple[Callable[[random.Random, Box], Plan], float]] = {
    "commands": (commands.make, 28),
    "recipes": (recipes.make, 12),
    "models": (models.make, 18),
    "data": (datasets.make, 12),
    "calls": (calls.make, 18),
    "prompts": (prompts.make, 6),
    "resume": (runs.make, 6),
    "outputs": (outputs.make, 4),
}


def case(seed: int, number: int, only: str | None = None) -> tuple[str, Callable[[Box], Plan]]:
    """The section of a case and what makes it in its box."""
    rng = random.Random(f"{seed}:{number}")
    names = list(SECTIONS)
    section = rng.choices(names, [SECTIONS[name][1] for name in names])[0]
    section = only or section
    return section, partial(SECTIONS[section][0], rng)
