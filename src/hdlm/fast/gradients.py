"""An objective's losses together with their gradient: by one kernel where it has one, by autograd elsewhere."""

import functools
import importlib.util
from collections.abc import Callable

import torch
from torch import Tensor

from hdlm.objectives.hdce import HDCE
from hdlm.objectives.masked import MaskedBound
from hdlm.objectives.objective import NextToken, Objective
from hdlm.objectives.score_entropy import ScoreBound

# Logits [n, at least `count`] of some rows and which rows they are, to losses [n] and their gradient; the logits may be
# overwritten.
RowGradient = Callable[[Tensor, slice], tuple[Tensor, Tensor]]


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def has_kernel(objective: Objective, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a kernel does this objective on logits of this kind: half precision on CUDA, and no scores."""
    fits = device.type == "cuda" and dtype.itemsize == 2 and _has_triton()
    return fits and (isinstance(objective, NextToken | MaskedBound | HDCE) or _is_clean_gamma(objective))


def _is_clean_gamma(objective: Objective) -> bool:
    return isinstance(objective, ScoreBound) and objective.clean and objective.process.gamma > 0


def gradient_by_kernel(
    objective: Objective, xt: Tensor, x0: Tensor, t: Tensor, weight: Tensor, count: int
) -> RowGradient:
    """Weighted losses and their gradient, written over the logits, each row by one program.

    What follows from time alone is worked out here, for all rows at once.
    """
    from hdlm.fast.loss_kernels import cross_entropy_gradient, gamma_gradient

    if isinstance(objective, ScoreBound):
        numbers = {name: value.float() for name, value in objective.numbers(xt, x0, t).items()}
        numbers["scale"] = numbers["scale"] * weight

        def gamma(logits: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
            mine = {name: value[rows] for name, value in numbers.items()}
            return gamma_gradient(logits, xt[rows], x0[rows], **mine, count=count), logits

        return gamma
    assert isinstance(objective, NextToken | MaskedBound | HDCE)
    weight = (objective.weights(xt, x0, t) * weight).float()
    return lambda logits, rows: (cross_entropy_gradient(logits, x0[rows], weight[rows], count), logits)


def gradient_by_autograd(
    objective: Objective, xt: Tensor, x0: Tensor, t: Tensor, weight: Tensor, count: int
) -> RowGradient:
    """The same by plain autograd: any objective, any precision."""

    def gradient(logits: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            leaf = logits.detach().requires_grad_()
            losses = objective(leaf[:, :count], xt[rows], x0[rows], t[rows]) * weight[rows]
            (found,) = torch.autograd.grad(losses.sum(), leaf)
        return losses.detach(), found

    return gradient
