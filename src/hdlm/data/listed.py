"""What data there is: the named sets and where each is, prepared folders, and how their first texts read."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from hdlm.data.places import is_prepared
from hdlm.data.prepared import Prepared, read_prepared
from hdlm.data.sets import SETS, files_of, folder_of
from hdlm.folders import data_root

_TOKENS = 64  # of a first text


def sets() -> list[dict[str, Any]]:
    """Every set by name: what it is, whether it is here, on the hub or neither, and where."""
    stdlib = {
        "name": "stdlib",
        "about": "the source code of Python's own library",
        "splits": ["train", "valid", "test"],
        "state": "here",
        "place": "comes with Python",
    }
    return [stdlib, *(_described(name) for name in SETS)]


def _described(name: str) -> dict[str, Any]:
    named = SETS[name]
    files = {path for split in named.files for path in files_of(name, split)}
    if files:
        state, place = "here", str(folder_of(name))
    elif named.hub is not None:
        needs = "" if find_spec("datasets") else "; needs pip install 'hdlm[datasets]'"
        state, place = "hub", f"{named.hub.place}{needs}; or put {_patterns(name)} there"
    else:
        state, place = "missing", f"put {_patterns(name)} there"
    return {"name": name, "about": named.about, "splits": [*named.splits], "state": state, "place": place}


def _patterns(name: str) -> str:
    """The files that are looked for, by their place below the folder of data."""
    files = dict.fromkeys(pattern.replace("[-.]", "-") for pattern in SETS[name].files.values())
    return f"$HDLM_DATA/{name}/{{{','.join(files)}}}" if len(files) > 1 else f"$HDLM_DATA/{name}/{next(iter(files))}"


def prepared_in(places: Sequence[Path]) -> list[Prepared]:
    """The finished prepared folders among these and right below them; without any: here, and where data is kept."""
    found = {}
    for place in places or (Path(), data_root()):
        below = sorted(place.iterdir()) if place.is_dir() else []
        for folder in (place, *below):
            if folder.is_dir() and is_prepared(str(folder)) and (folder / "index.json").is_file():
                found.setdefault(folder.resolve(), read_prepared(folder))
    return list(found.values())


def first_texts(made: Prepared) -> dict[str, str]:
    """How each split begins, decoded."""
    texts = {}
    for split in made.splits:
        sequence = made.sequence(split)
        row = np.empty(min(_TOKENS, len(sequence)), sequence.dtype)
        sequence.read(0, row)
        texts[split] = made.tokenizer.tokenizer.decode(row.tolist(), skip_special_tokens=False)
    return texts
