"""Models written for others to load: as a folder of transformers, or as one of ours, and sent to the hub."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hdlm import weights
from hdlm.bundle import Bundle, load
from hdlm.config.bundle import FORMAT
from hdlm.errors import UnwrittenError
from hdlm.files import check_folder, check_replaceable, entries, finish_writing
from hdlm.folders import as_path, is_there, model_place
from hdlm.interop.huggingface import card, folder, hub
from hdlm.interop.huggingface.names import MODEL_TYPE
from hdlm.theory import numbers

LAYOUTS = ("huggingface", "hdlm")
_LONGEST_CARD = 2**20  # bytes


@dataclass(frozen=True)
class Exported:
    """Where a model is now: the `folder` that was asked for, its `address` on the hub; None: nowhere."""

    folder: Path | None
    address: str | None


def export(
    model: Bundle | str | Path,
    out: str | Path | None = None,
    *,
    to: str = "huggingface",
    push: str | None = None,
    private: bool = False,
) -> Exported:
    """Write a model, a bundle or whatever `hdlm.load` takes, as the folder `out`.

    `to`: "huggingface", a folder that `AutoModelForCausalLM.from_pretrained(..., trust_remote_code=True)` loads, or
    "hdlm", one of ours. `push`: send it to the hub as owner/name, with the token in $HF_TOKEN; then `out` may be None.
    `private`: of a model that is made there. What was measured of a model its card goes on to say.
    """
    numbers.choice("to", to, LAYOUTS)
    numbers.boolean("private", private)
    if out is None and push is None:
        raise ValueError("out = None is not accepted without push: say which folder to write")
    if private and push is None:
        raise ValueError("private = True is not accepted without push: it is for a model on the hub")
    if push is not None:
        hub.check_push(push)
    if out is None:
        assert push is not None
        with tempfile.TemporaryDirectory() as place:
            _write(model, Path(place) / "model", to)
            return Exported(None, hub.push(Path(place) / "model", folder.FILES, push, private=private))
    place = as_path("out", out)
    _check_place(place, to)
    _write(model, place, to)
    try:
        address = None if push is None else hub.push(place, folder.FILES, push, private=private)
    except UnwrittenError as error:
        raise UnwrittenError(str(error), Exported(place, None)) from None
    return Exported(place, address)


def _check_place(place: Path, to: str) -> None:
    """Refuse a folder that holds anything but nothing, or an older export of this kind."""
    check_folder(place)
    finish_writing(place)
    held = entries(place)
    if held:
        data = weights.read_json(place / "config.json") if "config.json" in held else {}
        ours = data.get("format") == FORMAT if to == "hdlm" else data.get("model_type") == MODEL_TYPE
        if not ours or "trainer" in held:
            raise ValueError(f"{place} is not accepted: it holds other files and no model of the layout {to}")
    check_replaceable(place, folder.FILES)


def _write(model: Bundle | str | Path, place: Path, to: str) -> None:
    bundle, notes = _source(model)
    if to == "hdlm":
        bundle.save(place, notes=notes)
    else:
        folder.save(bundle, place, notes=notes)


def _source(model: Bundle | str | Path) -> tuple[Bundle, str]:
    """The model, and what its card says beyond what any card does."""
    if isinstance(model, Bundle):
        return model, ""
    bundle, place = load(model), model_place(model)
    return bundle, _notes((place if place.is_dir() else place.parent) / "README.md", bundle)


def _notes(path: Path, bundle: Bundle) -> str:
    """A card without what our own begin with; of somebody else's card all but its metadata."""
    if not is_there(path) or not path.is_file() or path.stat().st_size > _LONGEST_CARD:
        return ""
    text = path.read_text(encoding="utf-8", errors="replace")
    ours: tuple[Callable[[Bundle], Any], ...] = (Bundle.card, card.card)
    for write in ours:
        if text.startswith(write(bundle)):
            return text.removeprefix(write(bundle))
    if text.startswith("---\n") and "\n---\n" in text:
        text = text.split("\n---\n", 1)[1]
    return f"\n## The card that it came with\n\n{text.strip()}\n"
