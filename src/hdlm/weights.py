"""Tensors on disk and in a network: safe reading, and filling that refuses by name.

Safetensors files are read and, where a caller allows it, torch files through the restricted loader
(`weights_only=True`), which builds tensors and containers and runs no code. Knows no layout of names; `interop` does.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from hdlm.errors import NotFiniteError, first_line
from hdlm.folders import TORCH_SUFFIXES, is_there, regular_file, unreadable

MAX_JSON = 2**24  # bytes of a config or an index
_MAX_DEPTH = 100  # of lists and objects in it
_MAX_DIGITS = 40  # of a number in it that is read as an integer
_MAX_TENSORS = 2**16  # of one file


def read_safetensors(path: str | Path) -> dict[str, Tensor]:
    """All tensors of one safetensors file."""
    path = regular_file(path)
    try:
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            tensors = {name: file.get_tensor(name) for name in names} if len(names) <= _MAX_TENSORS else {}
    except Exception as error:
        raise ValueError(f"{path} is truncated or no safetensors file: {first_line(error)}") from None
    if len(names) > _MAX_TENSORS:
        raise ValueError(
            f"{path} is not accepted: it holds {len(names):,} tensors, and at most {_MAX_TENSORS:,} are read"
        )
    return tensors


def read_metadata(path: str | Path) -> dict[str, str]:
    """What a safetensors file says of itself."""
    with safe_open(path, framework="pt") as file:
        return file.metadata() or {}


def read_folder(folder: str | Path, *, allow_torch: bool = False) -> dict[str, Tensor]:
    """The weights of a checkpoint folder: one safetensors file, an index of several, or (if allowed) a torch file."""
    folder = Path(folder)
    files = safetensors_files(folder)
    if not files:
        return _read_torch(_torch_file(folder, allowed=allow_torch))
    tensors: dict[str, Tensor] = {}
    for path in files:
        found = read_safetensors(path)
        twice = min(found.keys() & tensors.keys(), default=None)
        if twice is not None:
            raise ValueError(f"{path} holds {twice}, and so does another file of {folder}")
        tensors |= found
    return tensors


def safetensors_files(folder: Path) -> list[Path]:
    """The files that hold a folder's weights: those that an index names, or the one; none where there is neither."""
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if is_there(index):
        return [folder / name for name in _shards(index)]
    return [single] if is_there(single) else []


def _shards(index: Path) -> list[str]:
    """The files that an index names, all beside it."""
    names = read_json(index).get("weight_map")
    if not isinstance(names, Mapping) or not names:
        raise ValueError(f"{index} is not accepted: it must hold a weight_map")
    for name in names.values():
        if not isinstance(name, str) or not name or Path(name).name != name:
            raise ValueError(f"{index} names the file {name!r}: shards must lie beside it")
    return sorted(set(names.values()))


def _torch_file(folder: Path, *, allowed: bool) -> Path:
    """The torch file of a folder without safetensors."""
    beside = ("optimizer", "scheduler", "training_args", "rng_state")  # what trainers leave with the weights
    try:
        named = [path for path in folder.iterdir() if path.suffix in TORCH_SUFFIXES]
    except OSError as error:
        raise unreadable(folder, error) from None
    path = min((path for path in named if not path.stem.startswith(beside)), default=None)
    if path is None:
        raise ValueError(f"{folder} holds no weights: model.safetensors is missing")
    if not allowed:
        raise ValueError(f"{path} is a pickle, which is not loaded here: model.safetensors is needed")
    return regular_file(path)


def _read_torch(path: Path) -> dict[str, Tensor]:
    """A torch file through the restricted loader: of all mappings in it, the one that holds the most tensors."""
    try:
        data = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(f"{path} is not accepted by torch's safe loader: {first_line(error)}") from None
    best: dict[str, Tensor] = {}
    waiting, seen = [data], set()
    while waiting:
        item = waiting.pop()
        if isinstance(item, Mapping) and id(item) not in seen:
            seen.add(id(item))
            tensors = {
                name: value for name, value in item.items() if isinstance(name, str) and isinstance(value, Tensor)
            }
            best = max(best, tensors, key=len)
            waiting.extend(item.values())
    if not best:
        raise ValueError(f"{path} holds no named tensors")
    return best


def read_json(path: str | Path) -> dict[str, Any]:
    """A JSON object from a file of bounded size and depth. An integer of many digits becomes a float, as 1e400 does."""
    path = regular_file(path, largest=MAX_JSON)
    try:
        data = json.loads(path.read_text(encoding="utf-8"), parse_int=_integer)
    except OSError as error:
        raise unreadable(path, error) from None
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {first_line(error)}") from None
    except RecursionError:
        data = None
    if data is None or _is_deep(data):
        raise ValueError(f"{path} is not accepted: it is nested more than {_MAX_DEPTH} levels deep")
    if not isinstance(data, dict):
        raise ValueError(f"{path} is not accepted: it must hold a JSON object")
    return data


def _is_deep(data: Any) -> bool:
    """Whether lists and objects are nested so deeply that even to print them might fail."""
    level = [data]
    for _ in range(_MAX_DEPTH):
        inner = (item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list))
        level = [value for values in inner for value in values]
    return bool(level)


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= _MAX_DIGITS else float(digits)


def compare(targets: Mapping[str, Tensor], tensors: Mapping[str, Tensor], *, source: str | Path) -> None:
    """Refuse, by name, tensors that are missing, too many, of another shape or no plain floating-point numbers.

    `targets`: what a network needs, by the names of the file; it may be on the meta device, where nothing is built.
    """
    for complaint, names in (
        ("lacks", targets.keys() - tensors.keys()),
        ("also holds", tensors.keys() - targets.keys()),
    ):
        if names:
            more = f" and {len(names) - 4} more tensors" if len(names) > 4 else ""
            raise ValueError(f"{source} {complaint} {', '.join(sorted(names)[:4])}{more}")
    for name, target in targets.items():
        tensor = tensors[name]
        if tensor.shape != target.shape:
            found, wanted = tuple(tensor.shape), tuple(target.shape)
            raise ValueError(f"{source} has {name} of shape {found}: it must be {wanted}")
        if not tensor.is_floating_point() or tensor.layout != torch.strided:
            raise ValueError(f"{source} has {name} of {tensor.dtype}, {tensor.layout}: it must be dense, of floats")


def fill(
    model: nn.Module, tensors: Mapping[str, Tensor], *, source: str | Path, targets: Mapping[str, Tensor] | None = None
) -> None:
    """Copy tensors into a network, upcast to its precision.

    `targets`: the network's `contents` under the names of the file, where those are not its own. Padding rows become
    zero. What `compare` refuses, and numbers that are not finite, are refused by name before anything is changed.
    """
    targets = contents(model) if targets is None else targets
    compare(targets, tensors, source=source)
    check_finite({name: tensors[name].to(target.dtype) for name, target in targets.items()}, source=source)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        for name, target in targets.items():
            target.copy_(tensors[name])


def check_finite(tensors: Mapping[str, Tensor], *, source: str | Path) -> None:
    """Refuse, by name, tensors of a file that hold what is no finite number."""
    for name, tensor in tensors.items():
        odd = _not_finite(tensor)
        if odd is not None:
            raise ValueError(f"{source} is damaged: {name} holds {odd}, and weights are finite numbers")


def not_finite(model: nn.Module) -> NotFiniteError:
    """The error of a network whose outputs are not finite: it names the weight that is to blame, if one is."""
    for name, tensor in contents(model).items():
        odd = _not_finite(tensor)
        if odd is not None:
            return NotFiniteError(f"the network's outputs are not finite numbers: {name} holds {odd}")
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    return NotFiniteError(
        f"the network's outputs are not finite numbers, though its weights are: they overflow {dtype}"
    )


def _not_finite(tensor: Tensor) -> float | None:
    """A number of a tensor that is not finite, found in one pass; None where there is none."""
    if tensor.numel() == 0:
        return None
    low, high = (bound.item() for bound in tensor.detach().aminmax())
    return next((bound for bound in (low, high) if not abs(bound) < torch.inf), None)


def contents(model: nn.Module) -> dict[str, Tensor]:
    """What a file holds of a network: every parameter but for its padding rows, in place."""
    rows = getattr(model, "vocabulary_rows", {})
    return {name: p.detach()[: rows.get(name)] for name, p in model.named_parameters()}
