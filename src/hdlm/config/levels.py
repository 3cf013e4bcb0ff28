"""Matrices of levels from files: what a custom hyperschedule is read from."""

import json
from pathlib import Path

from hdlm.theory.level_matrix import Levels, check_levels

MAX_BYTES = 64 * 2**20


def read_levels(path: str | Path) -> Levels:
    """The matrix [steps + 1][length] that a JSON file holds: a list of lists, or an object with the key "levels"."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path} is not accepted: it is no file of levels")
    if path.stat().st_size > MAX_BYTES:
        size = path.stat().st_size / 2**20
        raise ValueError(f"{path} is not accepted: it has {size:,.0f} MiB, and levels may have {MAX_BYTES // 2**20}")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError(f"{path} is not accepted: its lists are nested too deeply for a matrix of levels") from None
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    return check_levels(str(path), data.get("levels") if isinstance(data, dict) else data)
