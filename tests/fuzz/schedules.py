"""Files of levels: matrices of a hyperschedule of one's own, right and wrong."""

import json
import random

from fuzz import pool
from fuzz.damage import damage_bytes
from fuzz.sandbox import Box

MATRICES = (
    [[2, 2, 2, 2], [1, 2, 2, 2], [0, 1, 1, 2], [0, 0, 0, 1], [0, 0, 0, 0]],
    [[1, 1, 1, 1], [1, 0, 1, 1], [0, 0, 0, 1], [0, 0, 0, 0]],
    [[3, 3, 3, 3], [3, 3, 3, 3], [0, 0, 0, 0]],
)
WAYS = (
    "flat",
    "ar",
    "block:2",
    "slide:3",
    "block:2,rate=2",
    "flat,sampler=certain",
    "block:0",
    "custom",
    "",
    "x=1",
    "@",
)
MIXTURES = (
    "block:4",
    "flat",
    "block:4:2,flat:1",
    "slide:2,quench",
    "custom:levels.json",
    "block",
    "flat:1:2",
    ",",
    ":",
)


def levels_file(rng: random.Random, box: Box, *, valid: bool) -> str:
    """A file of levels of four positions, or one with a fault; its name."""
    matrix = [list(row) for row in rng.choice(MATRICES)]
    if not valid:
        row = rng.choice(matrix)
        how = rng.randrange(5)
        if how == 0:
            row[rng.randrange(4)] = pool.json_value(rng)
        elif how == 1:
            row.append(0)
        elif how == 2:
            matrix.reverse()
        elif how == 3:
            matrix = pool.json_value(rng)
    path = box.work / "levels.json"
    path.write_text(json.dumps(matrix if rng.random() < 0.7 else {"levels": matrix}))
    if not valid and rng.random() < 0.3:
        damage_bytes(rng, path)
    return path.name
