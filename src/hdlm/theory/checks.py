"""Input checks of numbers (`numbers.py`) and tensors: each raises a `ValueError` that names the value and the range.

Checks read tensor values, which makes a GPU wait for its queue. Loops whose inputs are right by
construction switch them off with `trusted()`; compiled code and CUDA graphs skip them by themselves.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from hdlm.theory.numbers import fraction as fraction
from hdlm.theory.numbers import instance as instance
from hdlm.theory.numbers import integer as integer
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


def skips_values() -> bool:
    """Whether tensor values may not be read now: trusted, compiling, or capturing a CUDA graph."""
    if torch.compiler.is_compiling() or _trusted.get():
        return True
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def times(name: str, value: Tensor) -> None:
    """Noise times: a floating tensor with every entry in [0, 1]."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"{name} is {kind}: it must be a floating-point tensor of times in [0, 1]")
    if skips_values():
        return
    wrong = ~((value >= 0) & (value <= 1))
    if wrong.any():
        raise ValueError(f"{name} holds {value[wrong][0].item()}: times must be in [0, 1]")


def tokens(name: str, value: Tensor, num_states: int) -> None:
    """Token ids: an int64 or int32 tensor (narrower ones cannot hold MASK) with every entry in 0..num_states-1."""
    if not isinstance(value, Tensor) or value.dtype not in (torch.int64, torch.int32):
        kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"{name} is {kind}: it must be an int64 or int32 tensor of ids in 0..{num_states - 1}")
    if skips_values():
        return
    wrong = (value < 0) | (value >= num_states)
    if wrong.any():
        raise ValueError(f"{name} holds the id {value[wrong][0].item()}: ids must be in 0..{num_states - 1}")


def ordered(s: Tensor, t: Tensor) -> None:
    """Two times of a reverse step: s <= t everywhere."""
    if skips_values():
        return
    earlier, later = torch.broadcast_tensors(s, t)
    wrong = earlier > later
    if wrong.any():
        raise ValueError(
            f"s = {earlier[wrong][0].item()} is above t = {later[wrong][0].item()}: a reverse step needs s <= t"
        )


def distribution(name: str, value: Tensor, vocab_size: int) -> None:
    """Numbers over the real tokens: a floating tensor whose last axis has `vocab_size` entries."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"{name} is {kind}: it must be a floating-point tensor [..., {vocab_size}]")
    if value.ndim == 0 or value.shape[-1] != vocab_size:
        raise ValueError(f"{name} has shape {tuple(value.shape)}: its last axis must be the {vocab_size} real tokens")


def probabilities(name: str, value: Tensor, vocab_size: int) -> None:
    """A law over the real tokens: as `distribution`, nowhere negative and summing to 1 (to 2%, for 16-bit floats)."""
    distribution(name, value, vocab_size)
    if skips_values() or value.numel() == 0:
        return
    lowest = value.amin().item()
    if not lowest >= 0:
        raise ValueError(f"{name} holds {lowest}: probabilities must be in [0, 1]")
    totals = value.sum(-1, dtype=torch.float32).flatten()
    worst = totals[(totals - 1).abs().argmax()].item()
    if not abs(worst - 1) < 0.02:
        raise ValueError(f"{name} sums to {worst:.4g} somewhere: probabilities must sum to 1")
