"""Which calls of the network a chunk of steps needs, and for which positions each, known before the first of them.

A row needs the network only in steps in which something can happen to it. Rows do not know of each other, so that each
row goes on to its next such step whatever the others do: a call takes every row from a step of its own. All rows are in
the same window at any time.
"""

from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from hdlm.fast.chunks import StepChunk
from hdlm.sampling.rng import TOKEN, SampleRNG
from hdlm.sampling.rule import Thinned
from hdlm.theory.hyperschedule import Step


@dataclass(frozen=True)
class CallPlan:
    """The calls of a chunk. Call c is about the entries `offsets[c]` to `offsets[c + 1]` of the lists below.

    `steps`: per call the step whose window it is, and the last one that it is part of. `step_of` [calls, batch]: which
    of the chunk's steps each row takes in it. `masked` [batch, P]: what will be MASK at the end of the chunk. Per entry
    [n]: its row, its position in the schedule, the step's number, times and uniforms.
    """

    chunk: StepChunk
    steps: tuple[Step, ...]
    step_of: Tensor
    masked: Tensor
    offsets: list[int]
    row: Tensor
    position: Tensor
    number: Tensor
    t: Tensor
    s: Tensor
    event: Tensor
    token: Tensor


def plan_calls(chunk: StepChunk, rule: Thinned, rng: SampleRNG, *, masked: Tensor, free: Tensor) -> CallPlan:
    """The calls of a chunk that starts with `masked` [batch, P]; `free` [batch, P] may change.

    Reads the device once.
    """
    inside = free & chunk.inside
    stays = ~inside | (chunk.event < chunk.times.stay_masked)
    before = torch.cat([torch.ones_like(stays[:1]), stays[:-1]]).cumprod(0).bool() & masked
    may_change = inside & (chunk.t > 0)
    needed = rule.needs(before, may_change, chunk.times, chunk.event) & may_change
    step, row, index = needed.nonzero().unbind(1)
    call_of, step_of, steps = _calls(chunk, needed.any(-1))
    call = call_of[step, row]
    order = call.argsort(stable=True)
    step, row, index = step[order], row[order], index[order]
    counts = torch.bincount(call, minlength=len(steps)).cumsum(0).tolist()
    numbers = torch.tensor([one.index for one in chunk.steps], device=row.device)
    position = index + chunk.first
    return CallPlan(
        chunk,
        steps,
        step_of,
        before[-1] & stays[-1],
        [0, *counts],
        row,
        position,
        numbers[step],
        chunk.t[step, 0, index],
        chunk.s[step, 0, index],
        chunk.event[step, row, index],
        rng.uniform_at(TOKEN, row, numbers[step], position),
    )


def _calls(chunk: StepChunk, active: Tensor) -> tuple[Tensor, Tensor, tuple[Step, ...]]:
    """For `active` [steps, batch]: the call of each, [steps, batch]; each call's step of every row, [calls, batch];
    and the last step that each call is part of.
    """
    count, batch = active.shape
    windows = [list(group) for _, group in groupby(range(count), lambda k: _window(chunk.steps[k]))]
    turns = active.long().cumsum(0)
    ends = torch.tensor([window[-1] for window in windows], device=active.device)
    before = torch.cat([turns.new_zeros(1, batch), turns[ends[:-1]]])  # calls of each row before each window
    most = (turns[ends] - before).amax(1)
    base = torch.cat([most.new_zeros(1), most.cumsum(0)])
    sizes = torch.tensor([len(window) for window in windows], device=active.device)
    group = torch.repeat_interleave(torch.arange(len(windows), device=active.device), sizes, output_size=count)
    call_of = base[group].unsqueeze(1) + turns - before[group] - 1
    lengths = most.tolist()
    total = sum(lengths)
    # A row that has nothing left to do in a window waits in the window's last step.
    step_of = torch.repeat_interleave(ends, most, output_size=total).unsqueeze(1).repeat(1, batch)
    step_of = torch.cat([step_of, step_of.new_zeros(1, batch)])  # where steps without a call go
    index = torch.where(active, call_of, total)
    step_of.scatter_(0, index, torch.arange(count, device=active.device).unsqueeze(1).expand(count, batch))
    steps = tuple(chunk.steps[window[-1]] for window, n in zip(windows, lengths, strict=True) for _ in range(n))
    return call_of, step_of[:total], steps


def _window(step: Step) -> tuple[int, int]:
    return step.start, step.stop
