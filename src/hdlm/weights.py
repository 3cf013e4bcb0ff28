"""Tensors on disk and in a network: safe reading, and filling that refuses by name.

Only safetensors files and, where a caller allows it, torch files through the restricted loader
(`weights_only=True`) are read: nothing is ever unpickled. Knows no layout of names; `interop` does.
"""

import json
import pickle
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

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


def read_folder(folder: str | Path, *, allow_torch: bool = False) -> dict[str, Tensor]:
    """The weights of a checkpoint folder: one safetensors file, an index of several, or (if allowed) a torch file."""
    folder = Path(folder)
    index = folder / "model.safetensors.index.json"
    if index.exists():
        files = sorted(set(read_json(index)["weight_map"].values()))
        return {name: tensor for file in files for name, tensor in read_safetensors(folder / file).items()}
    if (folder / "model.safetensors").exists():
        return read_safetensors(folder / "model.safetensors")
    torch_files = sorted(path for path in folder.iterdir() if path.suffix in TORCH_SUFFIXES)
    if not torch_files:
        raise ValueError(f"{folder} holds no weights: model.safetensors is missing")
    if not allow_torch:
        raise ValueError(f"{torch_files[0]} is a pickle, which is never loaded: model.safetensors is needed")
    return _read_torch(torch_files[0])


def _read_torch(path: Path) -> dict[str, Tensor]:
    """A torch file through the restricted loader, whose tensors may lie under a key such as "model"."""
    try:
        data = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{path} is not accepted by torch's safe loader: {first}") from None
    while isinstance(data, Mapping) and not any(isinstance(value, Tensor) for value in data.values()):
        inner = [data[key] for key in ("ema", "model", "state_dict", "module") if isinstance(data.get(key), Mapping)]
        if not inner:
            raise ValueError(f"{path} holds no tensors: its keys are {', '.join(map(str, list(data)[:8]))}")
        data = inner[0]
    return {name: value for name, value in data.items() if isinstance(value, Tensor)}


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


def fill(model: nn.Module, tensors: Mapping[str, Tensor], *, source: str | Path) -> None:
    """Copy tensors into a network by the network's own names, upcast to its precision.

    Matrices over the vocabulary may come without their padding rows, which are then zero. Missing, extra and
    misshaped tensors are refused by name, before anything is changed.
    """
    own = dict(model.named_parameters())
    for complaint, names in (("lacks", own.keys() - tensors.keys()), ("also holds", tensors.keys() - own.keys())):
        if names:
            raise ValueError(f"{source} {complaint} {_listed(names)}")
    for name, parameter in own.items():
        rows, shape = parameter.shape[0], tensors[name].shape
        fits = shape == parameter.shape
        may_pad = name in ("embedding", "head.weight", "head.bias") and shape[1:] == parameter.shape[1:]
        if not fits and not (may_pad and rows - 64 < shape[0] < rows):
            raise ValueError(f"{source} has {name} of shape {tuple(shape)}: it must be {tuple(parameter.shape)}")
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.zero_()
            parameter[: tensors[name].shape[0]] = tensors[name].to(parameter.dtype)


def _listed(names: set[str]) -> str:
    shown = sorted(names)
    return ", ".join(shown[:4]) + (f" and {len(shown) - 4} more tensors" if len(shown) > 4 else "")
