"""Tensors on disk and in a network: safe reading, and filling that refuses by name.

Safetensors files are read and, where a caller allows it, torch files through the restricted loader
(`weights_only=True`), which builds tensors and containers and runs no code. Knows no layout of names; `interop` does.
"""

import json
import pickle
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from hdlm.errors import first_line

TORCH_SUFFIXES = (".bin", ".pth", ".pt", ".ckpt")


def read_safetensors(path: str | Path) -> dict[str, Tensor]:
    """All tensors of one safetensors file."""
    path = Path(path)
    if not path.exists():
        raise ValueError(f"{path} does not exist: a safetensors file is needed")
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, not a dict
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is truncated or no safetensors file: {error}") from None


def read_metadata(path: str | Path) -> dict[str, str]:
    """What a safetensors file says of itself."""
    with safe_open(path, framework="pt") as file:
        return file.metadata() or {}


def read_folder(folder: str | Path, *, allow_torch: bool = False) -> dict[str, Tensor]:
    """The weights of a checkpoint folder: one safetensors file, an index of several, or (if allowed) a torch file."""
    folder = Path(folder)
    index = folder / "model.safetensors.index.json"
    if index.exists():
        return {name: tensor for file in _shards(index) for name, tensor in read_safetensors(folder / file).items()}
    if (folder / "model.safetensors").exists():
        return read_safetensors(folder / "model.safetensors")
    beside = ("optimizer", "scheduler", "training_args", "rng_state")  # what trainers leave with the weights
    torch_files = sorted(
        path for path in folder.iterdir() if path.suffix in TORCH_SUFFIXES and not path.stem.startswith(beside)
    )
    if not torch_files:
        raise ValueError(f"{folder} holds no weights: model.safetensors is missing")
    if not allow_torch:
        raise ValueError(f"{torch_files[0]} is a pickle, which is not loaded here: model.safetensors is needed")
    return _read_torch(torch_files[0])


def _shards(index: Path) -> list[str]:
    """The files that an index names, all beside it."""
    names = read_json(index).get("weight_map")
    if not isinstance(names, Mapping) or not names:
        raise ValueError(f"{index} is not accepted: it must hold a weight_map")
    for name in names.values():
        if not isinstance(name, str) or Path(name).name != name:
            raise ValueError(f"{index} names the file {name!r}: shards must lie beside it")
    return sorted(set(names.values()))


def _read_torch(path: Path) -> dict[str, Tensor]:
    """A torch file through the restricted loader: of all mappings in it, the one that holds the most tensors."""
    try:
        data = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise ValueError(f"{path} is not accepted by torch's safe loader: {first_line(error)}") from None
    best: dict[str, Tensor] = {}
    waiting = [data]
    while waiting:
        item = waiting.pop()
        if isinstance(item, Mapping):
            tensors = {
                name: value for name, value in item.items() if isinstance(name, str) and isinstance(value, Tensor)
            }
            best = max(best, tensors, key=len)
            waiting.extend(item.values())
    if not best:
        raise ValueError(f"{path} holds no named tensors")
    return best


def read_json(path: str | Path) -> dict:
    """A JSON object from a file."""
    path = Path(path)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist") from None
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise ValueError(f"{path} is not accepted: it must hold a JSON object")
    return data


def fill(
    model: nn.Module, tensors: Mapping[str, Tensor], *, source: str | Path, targets: Mapping[str, Tensor] | None = None
) -> None:
    """Copy tensors into a network, upcast to its precision.

    `targets`: the network's `contents` under the names of the file, where those are not its own. Padding rows become
    zero. Missing, extra and misshaped tensors are refused by name, before anything is changed.
    """
    targets = contents(model) if targets is None else targets
    for complaint, names in (
        ("lacks", targets.keys() - tensors.keys()),
        ("also holds", tensors.keys() - targets.keys()),
    ):
        if names:
            more = f" and {len(names) - 4} more tensors" if len(names) > 4 else ""
            raise ValueError(f"{source} {complaint} {', '.join(sorted(names)[:4])}{more}")
    for name, target in targets.items():
        if tensors[name].shape != target.shape:
            found, wanted = tuple(tensors[name].shape), tuple(target.shape)
            raise ValueError(f"{source} has {name} of shape {found}: it must be {wanted}")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        for name, target in targets.items():
            target.copy_(tensors[name])


def contents(model: nn.Module) -> dict[str, Tensor]:
    """What a file holds of a network: every parameter but for its padding rows, in place."""
    rows = getattr(model, "vocabulary_rows", {})
    return {name: p.detach()[: rows.get(name)] for name, p in model.named_parameters()}
