"""What a run must not lose: weights, their average, the optimiser's moments, and the step. Kept bit for bit.

Sample order, noise and dropout are functions of (seed, step), so there is nothing else. How it lies on the disk is
`checkpoint.py`'s business, and when it is written `saver.py`'s.
"""

import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hdlm import weights
from hdlm.nn.transformer import Denoiser
from hdlm.theory.numbers import is_number, is_whole
from hdlm.train import checkpoint
from hdlm.train.distributed import copy_full_tensor

AVERAGE = "average/"  # how the names of averaged weights begin in a checkpoint
_MOMENTS = ("exp_avg", "exp_avg_sq")
_NUMBERS = ("step", "updates", "best")


class EMA:
    """Exponential moving average of the weights."""

    def __init__(self, model: Denoiser, decay: float) -> None:
        self.decay = decay
        self.values = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: Denoiser, step: int, *, where: Tensor) -> None:
        """After optimiser step number `step` (from 1): early on the average forgets faster, so that it has no bias.

        `where`, a boolean on the model's device: if it is False nothing changes, and the host need not know.
        """
        share = (1 - min(self.decay, step / (step + 10))) * where
        weights = [parameter.detach() for _, parameter in model.named_parameters()]
        averages = [self.values[name] for name, _ in model.named_parameters()]
        changes = torch._foreach_sub(weights, averages)  # pyright: ignore[reportPrivateImportUsage]
        torch._foreach_mul_(changes, share)  # pyright: ignore[reportPrivateImportUsage]
        torch._foreach_add_(averages, changes)  # pyright: ignore[reportPrivateImportUsage]

    @torch.no_grad()
    def swap(self, model: Denoiser) -> None:
        """Exchange the average and the weights; twice is nothing."""
        for name, parameter in model.named_parameters():
            kept = parameter.detach().clone()
            parameter.copy_(self.values[name])
            self.values[name].copy_(kept)


@dataclass
class State:
    """A run at a step."""

    model: Denoiser
    average: EMA
    optimizer: torch.optim.AdamW
    step: int = 0
    updates: int = 0  # steps less those skipped for a loss that was no number
    best: float | None = None

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor of a checkpoint by its name there; in place, and of each what this process holds of it."""
        for name, parameter in self.model.named_parameters():
            yield f"weights/{name}", parameter.detach()
            yield f"{AVERAGE}{name}", self.average.values[name]
            state = self.optimizer.state.get(parameter, {})
            for key in _MOMENTS:
                yield f"{key}/{name}", state.get(key, torch.zeros_like(parameter.detach()))

    def numbers(self) -> dict[str, Any]:
        """What a checkpoint holds beside them."""
        return {name: getattr(self, name) for name in _NUMBERS}

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Become what was saved; every process calls this, and reads its own parts."""
        numbers = _read_numbers(folder)
        gathered = checkpoint.is_gathered(folder)
        if not gathered:
            checkpoint.verify(folder)
        fused = self.optimizer.param_groups[0].get("fused")
        for parameter in self.model.parameters():
            steps = torch.tensor(float(numbers["updates"]), device=parameter.device if fused else None)
            moments = {key: torch.zeros_like(parameter) for key in _MOMENTS}
            self.optimizer.state[parameter] = {"step": steps, **moments}
        tensors = dict(self.tensors())
        if gathered:
            load_gathered(folder, tensors)
        else:
            checkpoint.load(folder, tensors)
        for name in _NUMBERS:
            setattr(self, name, numbers[name])


def _read_numbers(folder: Path) -> dict[str, Any]:
    """The numbers of a checkpoint, refused where they are none."""
    data = checkpoint.read_numbers(folder)
    best = data.get("best")
    sound = all(is_whole(data.get(name)) for name in ("step", "updates")) and (best is None or is_number(best))
    if not data.keys() >= set(_NUMBERS) or not sound:
        raise ValueError(f"{folder / checkpoint.RECORD} is damaged: it must hold the numbers {', '.join(_NUMBERS)}")
    return data


def load_gathered(folder: Path, tensors: dict[str, Tensor], *, whole: bool = True) -> None:
    """Fill tensors from a checkpoint of one file, which every process reads all of; `whole` as of `checkpoint.load`."""
    path = folder / checkpoint.GATHERED
    found = weights.read_safetensors(path)
    shapes = {name: tuple(tensor.shape) for name, tensor in found.items() if whole or name in tensors}
    checkpoint.refuse_others(folder, tensors, shapes)
    weights.check_finite(found, source=path)
    for name, tensor in tensors.items():
        copy_full_tensor(tensor, found[name])


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted(path for path in (folder / "trainer").glob("step-*") if (path / checkpoint.RECORD).exists())


def keep_last(folder: Path, count: int) -> None:
    """Remove all but the last `count` checkpoints; what is cut short in that is no checkpoint any more."""
    for path in checkpoints(folder)[:-count]:
        with suppress(OSError):  # it may be anything
            (path / checkpoint.RECORD).unlink()
        shutil.rmtree(path)
