"""AdamW whose hidden matrices move by orthogonal steps instead (Muon): momentum, its singular values pushed towards 1.

On small networks it needs markedly fewer steps. Matrices of one shape are worked on together; what is no hidden matrix
(embeddings, head, norms, biases, modulations) stays with AdamW.
"""

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate

from hdlm.nn.transformer import Denoiser
from hdlm.train.distributed import full_tensor

MOMENTUM = 0.95
# A polynomial of odd degree five, applied again and again, that takes (0, 1] into about [0.7, 1.2].
_COEFFICIENTS, _ROUNDS = (3.4445, -4.7750, 2.0315), 5
_RMS = 0.2  # root mean square of a step in units of the learning rate: about AdamW's, so that one rate serves both


def orthogonalized(matrices: Tensor) -> Tensor:
    """Matrices [n, rows, columns] with their singular values brought near 1, the vectors kept."""
    dtype = torch.bfloat16 if matrices.is_cuda else matrices.dtype
    tall = matrices.shape[1] > matrices.shape[2]
    x = (matrices.mT if tall else matrices).to(dtype)
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    a, b, c = _COEFFICIENTS
    for _ in range(_ROUNDS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(matrices.dtype)


def parameter_groups(model: Denoiser, weight_decay: float, *, orthogonal: bool) -> list[dict[str, Any]]:
    """Those of AdamW, where matrices decay and norms, biases and embeddings do not.

    With `orthogonal`, hidden matrices make groups of their own, by how many stand on each other in one.
    """
    config = model.config
    joined = {"qkv": 3 if config.num_kv_heads == config.heads else 1, "inner": 2 if config.gated else 1}
    matrices: dict[int, list[nn.Parameter]] = defaultdict(list)
    others: dict[bool, list[nn.Parameter]] = defaultdict(list)
    for name, parameter in model.named_parameters():
        if orthogonal and parameter.ndim == 2 and name.startswith("blocks.") and "modulation" not in name:
            matrices[joined.get(name.split(".")[-2], 1)].append(parameter)
        else:
            others[parameter.ndim == 2 and name != "embedding"].append(parameter)
    shared = {"weight_decay": weight_decay, "orthogonal": True}
    return [
        *({"params": found, "parts": parts, **shared} for parts, found in matrices.items()),
        *({"params": found, "weight_decay": weight_decay * decayed} for decayed, found in others.items()),
    ]


class Muon(torch.optim.AdamW):
    """AdamW on its groups but those marked `orthogonal`. A matrix's momentum is `exp_avg`, as AdamW's."""

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One step of both."""
        groups = self.param_groups
        self.param_groups = [group for group in groups if not group.get("orthogonal")]
        try:
            super().step(closure)
        finally:
            self.param_groups = groups
        for group in groups:
            if group.get("orthogonal"):
                self._step_matrices(group)

    @torch.no_grad()
    def _step_matrices(self, group: dict[str, Any]) -> None:
        """Steps of a group's matrices. As AdamW's own, none where `found_inf` says that a gradient was no number."""
        bad = getattr(self, "found_inf", None)
        by_shape: dict[torch.Size, list[tuple[Tensor, ...]]] = defaultdict(list)
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            state = self.state[parameter]
            if "exp_avg" not in state:
                state["exp_avg"] = torch.zeros_like(parameter)
            if isinstance(parameter, DTensor):
                self._step_shard(parameter, state["exp_avg"], group)
                continue
            parts = (x.chunk(group["parts"]) for x in (parameter, parameter.grad, state["exp_avg"]))
            for part in zip(*parts, strict=True):
                by_shape[part[0].shape].append(part)
        for same in by_shape.values():
            weights, grads, momenta = zip(*same, strict=True)
            grad, before = torch.stack(grads), torch.stack(momenta)
            if bad is not None:
                grad = torch.where(bad > 0, 0.0, grad)
            momentum = MOMENTUM * before + grad
            update = orthogonalized(grad + MOMENTUM * momentum)
            rate = group["lr"] * _RMS * math.sqrt(max(grad.shape[1:]))
            change = rate * update + group["lr"] * group["weight_decay"] * torch.stack(weights)
            if bad is not None:
                momentum, change = torch.where(bad > 0, before, momentum), torch.where(bad > 0, 0.0, change)
            torch._foreach_copy_(momenta, momentum.unbind())  # pyright: ignore[reportPrivateImportUsage]
            torch._foreach_sub_(weights, change.unbind())  # pyright: ignore[reportPrivateImportUsage]

    def _step_shard(self, parameter: DTensor, momentum: Tensor, group: dict[str, Any]) -> None:
        """The step of a matrix that is spread over processes: each makes all of it orthogonal, and keeps its own rows.

        That gathers every hidden matrix once a step, in its own precision, and does the products of `orthogonalized` on
        every process; weights and momentum stay where they are.
        """
        grad = parameter.grad
        assert grad is not None
        momentum.mul_(MOMENTUM).add_(grad)
        whole = full_tensor(grad + MOMENTUM * momentum)
        updates = (
            group["lr"] * _RMS * math.sqrt(max(part.shape)) * orthogonalized(part.unsqueeze(0))[0]
            for part in whole.chunk(group["parts"])
        )
        mesh = parameter.device_mesh
        everywhere = DTensor.from_local(torch.cat([*updates]), mesh, [Replicate()] * mesh.ndim, run_check=False)
        own = everywhere.redistribute(placements=parameter.placements)
        parameter.sub_(own + group["lr"] * group["weight_decay"] * parameter)
