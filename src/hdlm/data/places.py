"""What a name of data may be that is no set: a path, a URL, a folder of prepared tokens. Opens next to nothing."""

import os
from pathlib import Path

FORMAT = "hdlm tokens"
INDEX = "index.json"  # of a folder of tokens that is whole
MAKING = "making"  # what preparing needs to go on, until then
PLAN = "plan.json"


def path_of(name: str) -> Path:
    """A name as a path, ~ being the user's folder."""
    return Path(os.path.expanduser(name))


def is_url(name: str) -> bool:
    """Whether this names something that is not in this machine's file system, or not by a path."""
    return "://" in name


def is_prepared(name: str) -> bool:
    """Whether this names a folder of tokens: one that is whole, one that is being prepared, or one at a URL."""
    if is_url(name):
        return True
    folder = path_of(name)
    try:
        if (folder / MAKING / PLAN).is_file():
            return True
        if not (folder / INDEX).is_file():  # a pipe would be waited for
            return False
        with (folder / INDEX).open("rb") as file:
            return FORMAT.encode() in file.read(100)
    except (OSError, ValueError):
        return False
