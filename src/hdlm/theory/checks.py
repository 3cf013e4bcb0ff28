"""Input checks of numbers (`numbers.py`) and tensors: each raises a `ValueError` that names the value and the range.

Checks read tensor values, which makes a GPU wait for its queue. Loops whose inputs are right by
construction switch them off with `trusted()`; compiled code and CUDA graphs skip them by themselves.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from hdlm.theory.numbers import fits_memory as fits_memory
from hdlm.theory.numbers import fraction as fraction
from hdlm.theory.numbers import instance as instance
from hdlm.theory.numbers import integer as integer
from hdlm.theory.numbers import is_whole, shown
from hdlm.theory.numbers import positive as positive

_trusted: ContextVar[bool] = ContextVar("hdlm_trusted", default=False)


@contextmanager
def trusted() -> Iterator[None]:
    """Inside this context tensor values are taken on trust and never read back from the device."""
    token = _trusted.set(True)
    try:
        yield
    finally:
        _trusted.reset(token)


def skips_values(*values: Tensor) -> bool:
    """Whether tensor values may not be read now: trusted, compiling, capturing a CUDA graph, or not there (meta)."""
    if torch.compiler.is_compiling() or _trusted.get() or any(value.is_meta for value in values):
        return True
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def floats(name: str, value: Tensor, what: str) -> None:
    """A floating tensor; `what` says of which numbers or shape it must be."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"{name} is {kind}: it must be a floating-point tensor {what}")


def shape(name: str, value: Sequence[int]) -> None:
    """The shape of a tensor of 8 bytes an entry: whole numbers, and no more than memory holds."""
    if not isinstance(value, list | tuple) or not all(is_whole(size) for size in value):
        raise ValueError(f"{name} = {shown(value)} is not accepted: it must be a tuple of integers >= 0")
    fits_memory(f"{name} = {shown(tuple(value))}", 8 * math.prod(value))


def device(name: str, value: torch.device | str | None) -> None:
    """A device that tensors can be on, or None."""
    if value is None or (isinstance(value, torch.device) and (value.type != "cuda" or torch.cuda.is_available())):
        return
    try:
        torch.empty((), device=value)
    except (TypeError, RuntimeError, AssertionError):
        raise ValueError(f"{name} = {shown(value)} is not accepted: there is no such device here") from None


def together(**shapes: torch.Size) -> torch.Size:
    """The shape that all of these broadcast to, by the names of whose they are."""
    try:
        return torch.broadcast_shapes(*shapes.values())
    except RuntimeError:
        words = ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())
        raise ValueError(f"shapes do not fit together: {words}") from None


def times(name: str, value: Tensor) -> None:
    """Noise times: a floating tensor with every entry in [0, 1]."""
    floats(name, value, "of times in [0, 1]")
    if skips_values(value):
        return
    wrong = ~((value >= 0) & (value <= 1))
    if wrong.any():
        raise ValueError(f"{name} holds {value[wrong][0].item()}: times must be in [0, 1]")


def tokens(name: str, value: Tensor, num_states: int) -> None:
    """Token ids: an int64 or int32 tensor (narrower ones cannot hold MASK) with every entry in 0..num_states-1."""
    if not isinstance(value, Tensor) or value.dtype not in (torch.int64, torch.int32):
        kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"{name} is {kind}: it must be an int64 or int32 tensor of ids in 0..{num_states - 1}")
    if skips_values(value):
        return
    wrong = (value < 0) | (value >= num_states)
    if wrong.any():
        raise ValueError(f"{name} holds the id {value[wrong][0].item()}: ids must be in 0..{num_states - 1}")


def ordered(s: Tensor, t: Tensor) -> None:
    """Two times of a reverse step: s <= t everywhere."""
    together(s=s.shape, t=t.shape)
    if skips_values(s, t):
        return
    earlier, later = torch.broadcast_tensors(s, t)
    wrong = earlier > later
    if wrong.any():
        raise ValueError(
            f"s = {earlier[wrong][0].item()} is above t = {later[wrong][0].item()}: a reverse step needs s <= t"
        )


def distribution(name: str, value: Tensor, vocab_size: int) -> None:
    """Numbers over the real tokens: a floating tensor whose last axis has `vocab_size` entries."""
    floats(name, value, f"[..., {vocab_size}]")
    if value.ndim == 0 or value.shape[-1] != vocab_size:
        raise ValueError(f"{name} has shape {tuple(value.shape)}: its last axis must be the {vocab_size} real tokens")


def probabilities(name: str, value: Tensor, vocab_size: int) -> None:
    """A law over the real tokens: as `distribution`, nowhere negative and summing to 1 (to 2%, for 16-bit floats)."""
    distribution(name, value, vocab_size)
    if skips_values(value) or value.numel() == 0:
        return
    lowest = value.amin().item()
    if not lowest >= 0:
        raise ValueError(f"{name} holds {lowest}: probabilities must be in [0, 1]")
    totals = value.sum(-1, dtype=torch.float32).flatten()
    worst = totals[(totals - 1).abs().argmax()].item()
    if not abs(worst - 1) < 0.02:
        raise ValueError(f"{name} sums to {worst:.4g} somewhere: probabilities must sum to 1")
