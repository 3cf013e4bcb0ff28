"""The last matrix product and the loss behind it, as one operation that never holds the logits of a batch.

Rows go through in chunks. As soon as a chunk's loss is known so is its gradient with respect to the logits, and with it
what flows back to the features and to the matrix: the backward pass has nothing left to do, and no product is done
twice. Works for any objective; knows no network but its head.
"""

from typing import Any

import torch
from torch import Tensor

from hdlm.fast.gradients import RowGradient
from hdlm.nn.transformer import Head


def logits_dtype(features: Tensor) -> torch.dtype:
    """The precision of the head's product: autocast's, or that of its input."""
    kind = features.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else features.dtype


def head_loss(head: Head, features: Tensor, loss: RowGradient) -> Tensor:
    """The sum over rows of a loss of the head's scores of features [n, width]: differentiable, once."""
    total = _HeadLoss.apply(features, head.weight, head.bias, head, loss)
    assert isinstance(total, Tensor)
    return total


class _HeadLoss(torch.autograd.Function):
    """Forward gives the loss and works out all gradients; backward scales them."""

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor, bias: Tensor | None, head: Head, loss: RowGradient
    ) -> Tensor:
        kind, dtype = features.device.type, logits_dtype(features)
        matrix = weight.to(dtype)
        wanted = any(ctx.needs_input_grad)
        total = torch.zeros((), dtype=torch.promote_types(dtype, torch.float32), device=features.device)
        to_features = torch.empty_like(features) if wanted else None
        to_weight = torch.zeros_like(weight) if wanted else None
        to_bias = torch.zeros_like(bias) if wanted and bias is not None else None
        with torch.autocast(kind, enabled=False):
            for rows in head.chunks(len(features)):
                part = features[rows].to(dtype)
                logits = part @ matrix.T if bias is None else torch.addmm(bias.to(dtype), part, matrix.T)
                losses, gradient = loss(logits, rows)
                total += losses.sum()
                if to_features is None or to_weight is None:
                    continue
                to_features[rows] = gradient @ matrix
                _add_product(to_weight, gradient.T, part)
                if to_bias is not None:
                    to_bias += gradient.sum(0, dtype=to_bias.dtype)
        ctx.save_for_backward(to_features, to_weight, to_bias)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return (
            *(None if value is None else value * gradients[0].to(value.dtype) for value in ctx.saved_tensors),
            None,
            None,
        )


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left @ right, the sum in the precision of `total`."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    elif total.is_cuda and total.dtype == torch.float32:
        torch.addmm(total, left, right, out_dtype=torch.float32, out=total)
    else:
        total += left @ right
