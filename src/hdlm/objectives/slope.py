"""An objective's losses together with their slope: by one kernel where there is one for it, by autograd elsewhere."""

import functools
import importlib.util

import torch
from torch import Tensor

from hdlm.objectives.hdce import HDCE
from hdlm.objectives.masked import MaskedBound
from hdlm.objectives.objective import NextToken, Objective
from hdlm.objectives.score_entropy import ScoreBound


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def has_kernel(objective: Objective, logits: Tensor) -> bool:
    """Whether a kernel does this objective on these logits: half precision on CUDA, and no scores."""
    fits = logits.is_cuda and logits.dtype.itemsize == 2 and _has_triton()
    return fits and (isinstance(objective, NextToken | MaskedBound | HDCE) or _is_clean_gamma(objective))


def _is_clean_gamma(objective: Objective) -> bool:
    return isinstance(objective, ScoreBound) and objective.clean and objective.process.gamma > 0


def slope_by_kernel(
    objective: Objective, logits: Tensor, xt: Tensor, x0: Tensor, t: Tensor, weight: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """Weighted losses [n] of logits [n, at least count], and their slope in the logits' own memory."""
    from hdlm.objectives.kernels import cross_entropy_slope, gamma_slope

    if isinstance(objective, ScoreBound):
        numbers = objective.numbers(xt, x0, t)
        scale = numbers.pop("scale") * weight
        return gamma_slope(logits, xt, x0, scale=scale, **numbers, count=count), logits
    assert isinstance(objective, NextToken | MaskedBound | HDCE)
    return cross_entropy_slope(logits, x0, objective.weights(xt, x0, t) * weight, count), logits


def slope_by_autograd(
    objective: Objective, logits: Tensor, xt: Tensor, x0: Tensor, t: Tensor, weight: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """The same by plain autograd: any objective, any precision."""
    with torch.enable_grad():
        leaf = logits.detach().requires_grad_()
        losses = objective(leaf[:, :count], xt, x0, t) * weight
        (slope,) = torch.autograd.grad(losses.sum(), leaf)
    return losses.detach(), slope
