"""Matrix products with weights that stay: on a CPU, for few rows at a time, from a copy laid out for its kernels.

Generation multiplies a handful of rows by every weight of the network, again and again. oneDNN does that several times
faster than a plain product once a weight is in its own order of memory. Only without gradients, in float32; a weight
that is written to is copied again, unless it is written to behind torch's back (`weight.data`).
"""

import functools

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F
from torch.utils.weak import WeakIdKeyDictionary

_SMALLEST = 2**14  # entries of a weight from which on a copy is worth it
_ROWS = 16  # that a copy is laid out for; it serves any number
_copies: WeakIdKeyDictionary = WeakIdKeyDictionary()


class Linear(nn.Linear):
    """nn.Linear by `linear`."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., inputs] times weight [outputs, inputs], plus bias: F.linear, up to rounding."""
    if not _is_worth_it(x, weight):
        return F.linear(x, weight, bias)
    return torch.ops.mkldnn._linear_pointwise(x, _copy_of(weight), bias, "none", [], "")


def identity(weight: Tensor) -> tuple[int, int]:
    """What tells whether a tensor is the one that it was: its memory, and how often that was written to."""
    return weight.data_ptr(), 0 if weight.is_inference() else weight._version


def _is_worth_it(x: Tensor, weight: Tensor) -> bool:
    if torch.compiler.is_compiling() or torch.is_grad_enabled() or x.device.type != "cpu" or not x.numel():
        return False
    if weight.is_inference() or (dist.is_available() and dist.is_initialized()):
        return False  # written to without a trace
    plain = x.dtype == weight.dtype == torch.float32 and type(weight) in (Tensor, nn.Parameter)
    return plain and weight.numel() >= _SMALLEST and _can_copy()


def _copy_of(weight: Tensor) -> Tensor:
    """The weight in oneDNN's order, made again when it has changed."""
    found = _copies.get(weight)
    if found is None or found[0] != identity(weight):
        copy = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), _ROWS)
        found = _copies[weight] = (identity(weight), copy)
    return found[1]


@functools.cache
def _can_copy() -> bool:
    """Whether this build of torch has the operations, and they do what they should."""
    if not torch.backends.mkldnn.is_available():  # pyright: ignore[reportAttributeAccessIssue]
        return False
    x, weight = torch.eye(2, 16), torch.arange(256.0).view(16, 16)
    try:
        copy = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)
        found = torch.ops.mkldnn._linear_pointwise(x, copy, None, "none", [], "")
    except (AttributeError, RuntimeError):
        return False
    return bool(torch.equal(found, x @ weight.T))
