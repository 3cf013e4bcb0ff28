"""The noise times of a training batch: a pure function of (run seed, sample index).

Sample n belongs to global step n // global_batch. One time is drawn per sequence (flat) or per window (block,
slide), stratified over the whole global batch, so that every process of a distributed run draws its own
rows and together they are the batch that one process would have drawn. Knows no tokens and no process.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hdlm.theory import checks
from hdlm.theory.hyperschedule import Hyperschedule
from hdlm.theory.random import keyed_uniform

_BATCH_SHIFT, _WINDOW_SHIFT, _JITTER, _OFFSET = range(4)


@dataclass(frozen=True)
class Draw:
    """Times [batch, length] in (0, 1) (0 where nothing is noisy), and for slide where its first window ends.

    `weights` [batch, length]: how much the loss of each position counts; None: in full.
    """

    times: Tensor
    offset: int | None = None
    weights: Tensor | None = None

    @property
    def loss_times(self) -> Tensor:
        """Times at which to take losses: where nothing counts it may be 0 or 1, at which a loss may be infinite."""
        return self.times if self.weights is None else torch.where(self.weights > 0, self.times, 0.5)


def draw_times(
    schedule: Hyperschedule,
    *,
    seed: int,
    indices: Tensor,
    global_batch: int,
    dtype: torch.dtype = torch.float32,
    offset: int | None = None,
) -> Draw:
    """Times for the samples `indices` [batch], all of one global step of `global_batch` samples.

    At each position the time is uniform over (0, 1), counted as the weights say, and never rounded to 1, where noise
    may be infinite. The number that a window's times follow from is stratified: over a global batch with W windows,
    each of the global_batch * W equal parts of (0, 1) is hit by exactly one window; for one window, each of
    global_batch equal parts by exactly one sample. `offset`: where slide's first window ends, instead of one drawn for
    the step.
    """
    checks.integer("global_batch", global_batch, low=1)
    checks.tokens("indices", indices, 2**62)
    rows, step = indices % global_batch, _step_of(indices, global_batch)
    if offset is None:
        offset = schedule.draw_offset(keyed_uniform(seed, _OFFSET, step).item())
    level = _stratified(seed, indices, rows, step, global_batch, windows=max(1, schedule.max_windows))
    times, weights = schedule.times(level, offset), schedule.weights(level, offset)
    return Draw(_below_one(times, dtype), offset, None if weights is None else weights.to(dtype))


def _below_one(times: Tensor, dtype: torch.dtype) -> Tensor:
    return times.to(dtype).clamp(max=1 - torch.finfo(dtype).eps)


def _step_of(indices: Tensor, global_batch: int) -> int:
    steps = torch.unique(indices // global_batch).tolist()
    if len(steps) != 1:
        raise ValueError(f"indices belong to the steps {steps}: a draw needs samples of one step of {global_batch}")
    return int(steps[0])


def _stratified(seed: int, indices: Tensor, rows: Tensor, step: int, batch: int, *, windows: int) -> Tensor:
    """One number in (0, 1] per sample and window, [len(indices), windows], float64.

    Row r of window k falls into the coarse part (r + shift_k) mod batch; the windows that share a coarse
    part each take one of its fine parts. Shifts are random per step, so each number is uniform by itself.
    """
    window = torch.arange(windows, device=indices.device)
    shift = (keyed_uniform(seed, _BATCH_SHIFT, step, window) * batch).long()
    coarse = (rows.unsqueeze(1) + shift) % batch
    turn = (keyed_uniform(seed, _WINDOW_SHIFT, step, coarse) * windows).long()
    fine = (window + turn) % windows
    jitter = 1 - keyed_uniform(seed, _JITTER, indices.unsqueeze(1), window)
    return (coarse + (fine + jitter) / windows) / batch
