"""Values that break programs, as words of a command line and as Python objects. Knows nothing of hdlm."""

import copy
import math
import random
from typing import Any

import numpy as np
import torch

HUGE = 2**31  # from here on a count asks for work without end: it may be refused, or be stopped by an interrupt
LONG = "x" * 3000
INTEGERS = (
    "0", "1", "2", "3", "5", "-1", "-0", "+1", "007", "1_0", "1.0", "1e3", "0x10", "٣", "½", "NaN", str(2**31),
    str(2**63), str(2**63 - 1), str(-(2**63)), str(2**64), str(10**30),
)  # fmt: skip
FLOATS = (
    "0", "0.5", "1", "2", "-1", "-0.0", "1e-3", "1e-300", "1e-400", "1e300", "1e400", "nan", "-nan", "inf", "-inf",
    "Infinity", "1_0.5", "0,5", ".5", "5.", "1e", "٣.٥",
)  # fmt: skip
STRANGE = (
    "", " ", "-", "--", "---", "=", "a=b", "--=", "none", "None", "true", "False", "null", "[]", "{}", "\n", "a\nb",
    "\t", "\r", "\0", "a\0b", "\udcff", "a\udc80b", "é", "e\u0301", "😀", "\u202eabc", "\ufeff", "\x1b[31m", "%s%n",
    "{0}", "$HOME", "~", "~nobody", "*", "?", "[a-z]", "'", '"', "a'b", "\\", "`id`", ";", "|", "#", "@file", "%", LONG,
    "9" * 5000,
)  # fmt: skip
WORDS = ("a", "abc", "abc def", "the end", "ab cd ef gh ij")
JSON_VALUES = (
    None, True, False, 0, 1, -1, 2, 3, 7, 0.5, -0.5, 1e-300, 1e300, math.nan, math.inf, -math.inf, 2**31, 2**63, 10**30,
    -(2**63), "", "x", "flat", "block", "\0", "\ud800", "../../up", "é", LONG, [], {}, [1], {"a": 1},
)  # fmt: skip
NESTED = ([[[[[]]]]], {"a": {"a": {"a": {}}}}, [None] * 50, list(range(40)), {str(i): i for i in range(40)})


def number_word(rng: random.Random) -> str:
    """A number, or nearly one."""
    return rng.choice(rng.choice((INTEGERS, FLOATS)))


def word(rng: random.Random) -> str:
    """Any word at all."""
    return rng.choice((number_word, lambda r: r.choice(STRANGE), lambda r: r.choice(WORDS)))(rng)


def asks_for_endless_work(words: list[str]) -> bool:
    """Whether some number among the words is so large, or so small, that honest work on it would not end."""
    return any(_is_extreme(part) for one in words for part in (one, one.rpartition("=")[2]))


def _is_extreme(one: str) -> bool:
    try:
        value = float(one.strip()[:400])
    except ValueError:
        return False
    return abs(value) >= HUGE or 0 < abs(value) < 1e-6


def json_value(rng: random.Random) -> Any:
    """A value of JSON, most of them unwelcome wherever they stand."""
    return copy.deepcopy(rng.choice(JSON_VALUES if rng.random() < 0.9 else NESTED))


def python_value(rng: random.Random) -> Any:
    """A Python object that a caller may hand over by mistake."""
    if rng.random() < 0.5:
        return json_value(rng)
    return rng.choice(_OBJECTS)()


_OBJECTS = (
    object,
    bytes,
    lambda: b"\xff\xfe",
    lambda: "\ud800",
    lambda: "a\0b",
    lambda: complex(1, 2),
    lambda: 10**400,
    lambda: -(10**400),
    lambda: np.int64(3),
    lambda: np.float32(0.5),
    lambda: np.float64("nan"),
    lambda: np.bool_(True),
    lambda: np.array([1, 2]),
    lambda: np.array(3),
    lambda: np.array("a"),
    lambda: torch.tensor(3),
    lambda: torch.tensor(float("nan")),
    lambda: torch.tensor([]),
    lambda: torch.zeros(2, 3),
    lambda: torch.ones(2, 3, dtype=torch.bool),
    lambda: torch.full((2, 2), -1),
    lambda: torch.tensor([[2**62, 1]]),
    lambda: torch.zeros(1, 2, dtype=torch.complex64),
    lambda: torch.zeros(0, 4, dtype=torch.int64),
    lambda: torch.zeros(2, dtype=torch.int8),
    lambda: torch.empty(3, device="meta"),
    lambda: (i for i in range(3)),
    lambda: iter("abc"),
    lambda: {1, 2},
    lambda: range(3),
    lambda: range(10**9),
    lambda: int,
    lambda: len,
    lambda: ...,
    lambda: NotImplemented,
    lambda: [[1, 2], [3]],
    lambda: [["a"]],
    lambda: [[1.5]],
    lambda: [[True]],
    lambda: [b"a"],
    lambda: [None],
    lambda: (("abc",),),
    lambda: [[[1]]],
    lambda: "abc" * 400,
)
