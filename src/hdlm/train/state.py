"""What a run must not lose: weights, their average, the optimiser's moments, and the step. Saved whole, bit for bit.

Sample order, noise and dropout are functions of (seed, step), so there is nothing else. Tensors are gathered and
written as safetensors, not as distributed checkpoints, whose metadata is a pickle; so any number of processes can
resume what any other number saved. A checkpoint is a folder, written aside and renamed.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from hdlm import weights
from hdlm.files import folder_written_aside, json_text
from hdlm.nn.transformer import Denoiser
from hdlm.processes import World
from hdlm.theory.numbers import is_number, is_whole
from hdlm.train.distributed import copy_full_tensor, full_tensor

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

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self.model.named_parameters():
            yield f"weights/{name}", parameter.detach()
            yield f"average/{name}", self.average.values[name]
            state = self.optimizer.state.get(parameter, {})
            for key in _MOMENTS:
                yield f"{key}/{name}", state.get(key, torch.zeros_like(parameter.detach()))

    def save(self, folder: Path, world: World) -> None:
        """Write the checkpoint; every process calls this, the first one writes."""
        tensors = {name: full_tensor(tensor).cpu().contiguous() for name, tensor in self._tensors()}
        if world.is_main:
            with folder_written_aside(folder) as aside:
                save_file(tensors, aside / "state.safetensors")
                (aside / "state.json").write_text(json_text({name: getattr(self, name) for name in _NUMBERS}))
        world.barrier()

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Become what was saved."""
        data = weights.read_json(folder / "state.json")
        best = data.get("best")
        sound = all(is_whole(data.get(name)) for name in ("step", "updates")) and (best is None or is_number(best))
        if not data.keys() >= set(_NUMBERS) or not sound:
            raise ValueError(f"{folder / 'state.json'} is damaged: it must hold the numbers {', '.join(_NUMBERS)}")
        tensors = weights.read_safetensors(folder / "state.safetensors")
        expected = {name: tuple(tensor.shape) for name, tensor in self._tensors()}
        found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        if expected != found:
            odd = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
            raise ValueError(f"{folder} is the checkpoint of another network: {odd[0]} differs")
        weights.check_finite(tensors, source=folder / "state.safetensors")
        fused = self.optimizer.param_groups[0].get("fused")
        for parameter in self.model.parameters():
            steps = torch.tensor(float(data["updates"]), device=parameter.device if fused else None)
            moments = {key: torch.zeros_like(parameter) for key in _MOMENTS}
            self.optimizer.state[parameter] = {"step": steps, **moments}
        for name, tensor in self._tensors():
            copy_full_tensor(tensor, tensors[name])
        for name in _NUMBERS:
            setattr(self, name, data[name])


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted(path for path in (folder / "trainer").glob("step-*") if (path / "state.json").exists())


def keep_last(folder: Path, count: int) -> None:
    """Remove all but the last `count` checkpoints."""
    for path in checkpoints(folder)[:-count]:
        shutil.rmtree(path)
