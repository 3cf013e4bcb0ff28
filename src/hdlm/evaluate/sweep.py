"""Many cells, each computed once: the results of an evaluation in one JSON file that grows cell by cell.

A cell's key is all that its numbers depend on: the model, the text, the settings, the seeds. A run that is stopped goes
on where it was; a cell that is there is not run again.
"""

import hashlib
import itertools
import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hdlm import files
from hdlm.errors import Outputs, first_line

if TYPE_CHECKING:
    from hdlm.bundle import Bundle

SWEPT = ("rate", "width", "eta", "threshold", "temperature", "top_k", "top_p", "sampler", "precision")


def parse_sweep(words: Sequence[str]) -> list[dict[str, Any]]:
    """`rate=8,4 eta=0,0.01` as the list of all combinations, in order."""
    axes: dict[str, list[Any]] = {}
    for word in words:
        name, mark, values = word.partition("=")
        if not mark or not values:
            raise ValueError(f"sweep {word!r} is not accepted: write it as rate=8,4,2")
        if name not in SWEPT:
            raise ValueError(f"sweep {word!r} is not accepted: {name!r} is none of {', '.join(SWEPT)}")
        if name in axes:
            raise ValueError(f"sweep {word!r} is not accepted: {name} is swept already")
        axes[name] = [_value(name, value) for value in values.split(",")]
    return [dict(zip(axes, combination, strict=True)) for combination in itertools.product(*axes.values())]


def _value(name: str, word: str) -> Any:
    if name in ("sampler", "precision"):
        return word
    try:
        return int(word) if name in ("width", "top_k") else float(word)
    except ValueError:
        raise ValueError(f"sweep {name}={word} is not accepted: {word!r} is no number") from None


def model_fingerprint(bundle: "Bundle") -> str:
    """A fingerprint of a model's weights, config and tokenizer."""
    digest = hashlib.sha256(json.dumps(bundle.config.to_json(), sort_keys=True).encode())
    digest.update(bundle.tokenizer.to_str().encode() if bundle.tokenizer is not None else b"")
    for name, parameter in sorted(bundle.model.state_dict().items()):
        digest.update(f"{name} {parameter.double().sum().item():.9e} {parameter.double().norm().item():.9e}".encode())
    return digest.hexdigest()[:16]


def check_folder(folder: str | Path) -> None:
    """Refuse a folder that results cannot be written into, or that holds something, and no results."""
    files.check_folder(folder)
    path = Path(folder) / "results.json"
    if path.exists():
        _read_cells(path)
    elif held := files.entries(folder):
        reason = f"it holds {min(held)}, and no results of an evaluation (results.json)"
        raise ValueError(f"{folder} is not accepted: {reason}; a folder of its own is needed")


def read_results(folder: str | Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What an evaluation wrote into a folder: about the model, and its cells."""
    path = Path(folder) / "results.json"
    if not path.is_file():
        raise ValueError(f"{folder} is not accepted: it holds no results of hdlm evaluate --out (results.json)")
    about, cells = _read(path)
    for cell in cells.values():
        if not all(isinstance(cell, dict) and isinstance(cell.get(part), dict) for part in ("spec", "result")):
            raise ValueError(f"{path} is not accepted: it holds something else than results of an evaluation")
    return about, list(cells.values())


def _read_cells(path: Path) -> dict[str, Any]:
    """The cells of a results.json of ours."""
    return _read(path)[1]


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """About the model of a results.json of ours, and its cells."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        about, cells = data["about"], data["cells"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} holds no results that can be gone on with: {first_line(error)}") from None
    if not isinstance(about, dict) or not isinstance(cells, dict):
        raise ValueError(f"{path} holds no results that can be gone on with: it is of something else")
    return about, cells


class Results:
    """Cells by key, in memory or in a folder's results.json.

    `outputs`, where given, takes note of a file that cannot be written: then the next cell tries again. `writes`:
    whether this process does; of several that compute the same cells only one does.
    """

    def __init__(
        self, folder: Path | None, about: dict[str, Any], outputs: Outputs | None = None, *, writes: bool = True
    ) -> None:
        self._path, self._writes = folder / "results.json" if folder is not None else None, writes
        self.about, self.cells, self._outputs = about, {}, outputs
        if self._path is not None:
            check_folder(self._path.parent)
            self.cells = _read_cells(self._path) if self._path.exists() else {}

    def cell(self, spec: dict[str, Any], compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The cell of a specification, its result computed unless it is there."""
        key = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]
        if key not in self.cells:
            # What is no number is null, now as when it is read again.
            self.cells[key] = json.loads(files.json_text({"spec": spec, "result": compute()}))
            if self._path is not None and self._writes:
                with self._outputs.writing(self._path) if self._outputs is not None else nullcontext():
                    self._write(self._path)
        return self.cells[key]

    def _write(self, path: Path) -> None:
        text = files.json_text({"about": self.about, "cells": self.cells}, indent=1)
        with files.written_aside(path) as aside:
            aside.write_text(text + "\n", encoding="utf-8")
