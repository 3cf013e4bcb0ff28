"""Which version this is: by its tag where there is git, else what the build wrote down.

A release is the commit that the tag `v` + NEXT points to, without changes. Every other state of a checkout says how far
behind the last tag it is, and which commit. Builds load this file by itself, so that it imports nothing of hdlm.
"""

import os
import re
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path

NEXT = "0.1.0"  # what the next tag will be

_ROOT = Path(__file__).parents[2]  # of a checkout; of an installed package it is some folder of Python's


@cache
def version() -> str:
    """The version of this code, as PEP 440 writes it."""
    described = _described() if (_ROOT / "pyproject.toml").exists() and (_ROOT / ".git").exists() else None
    if described is not None:
        return of_description(described)
    try:
        return installed("hdlm")
    except PackageNotFoundError:
        return f"{NEXT}.dev0"


def of_description(described: str) -> str:
    """The version of `git describe --tags --long --always --dirty`, with the number of commits where there is no tag.

    `v0.1.0-0-g1a2b3c` is 0.1.0; three commits later NEXT has been raised (0.2.0.dev3+g1a2b3c) or not (0.1.0.post3+...).
    """
    found = re.fullmatch(r"(?:v(?P<tag>.+)-)?(?P<count>\d+)-(?P<commit>g[0-9a-f]+)(?P<dirty>-dirty)?", described)
    if found is None:
        raise ValueError(f"{described!r} is not accepted: it must be what git says of a commit")
    tag, count, local = found["tag"], found["count"], found["commit"] + (".dirty" if found["dirty"] else "")
    if tag is not None and count == "0" and not found["dirty"]:
        return tag
    return f"{NEXT}.{'post' if tag == NEXT else 'dev'}{count}+{local}"


def _described() -> str | None:
    """What git says of the commit that is checked out; None where it says nothing."""
    described = _git("describe", "--tags", "--match", "v[0-9]*", "--long", "--dirty")
    if described is not None:
        return described
    commit, count = _git("describe", "--always", "--exclude", "*", "--dirty"), _git("rev-list", "--count", "HEAD")
    return None if commit is None or count is None else f"{count}-g{commit}"


def _git(*words: str) -> str | None:
    """One line of git about this checkout, not about another one that a hook of git may run in."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(_ROOT), *words]
    try:
        return subprocess.run(command, env=own, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
