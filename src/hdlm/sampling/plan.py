"""Which calls of the network a stretch of steps needs, and for which places each, known before the first of them.

A row needs the network only in steps in which something can happen to it. Rows do not know of each other, so that
unless somebody watches the steps, each row goes on to its next such step whatever the others do: a call takes every row
from a step of its own. All rows are in the same window at any time.
"""

from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from hdlm.sampling.chances import Stretch
from hdlm.sampling.dice import TOKEN, Dice
from hdlm.sampling.rule import Moment, Rule
from hdlm.theory.hyperschedule import Step
from hdlm.theory.reading import Reading


@dataclass(frozen=True)
class Plan:
    """The calls of a stretch. Call c is about the places `offsets[c]` to `offsets[c + 1]` of the lists below.

    `steps`: per call the step whose window it is, and the last one that it is part of. `step_of` [calls, batch]: which
    of the stretch's steps each row takes in it. `masked` [batch, P]: what will be MASK at the end of the stretch. Per
    place [n]: its row and index in the stretch, the step's number, times and uniforms.
    """

    stretch: Stretch
    moment: Moment
    steps: tuple[Step, ...]
    step_of: Tensor
    masked: Tensor
    offsets: list[int]
    row: Tensor
    place: Tensor
    number: Tensor
    t: Tensor
    s: Tensor
    event: Tensor
    token: Tensor


def foresee(
    stretch: Stretch, rule: Rule, reading: Reading, dice: Dice, *, masked: Tensor, free: Tensor, packed: bool
) -> Plan:
    """The calls of a stretch that starts with `masked` [batch, P]; `free` [batch, P] may change.

    `packed`: rows need not be in the same step at the same time. Reads the device once.
    """
    inside = free & stretch.inside
    stays = ~inside | (stretch.event < stretch.stay_masked)
    before = torch.cat([torch.ones_like(stays[:1]), stays[:-1]]).cumprod(0).bool() & masked
    moment = Moment(reading, stretch, dice, before, inside & (stretch.t > 0))
    asked = rule.candidates(moment) & moment.free
    step, row, place = asked.nonzero().unbind(1)
    call_of, step_of, steps = _calls(stretch, asked.any(-1), packed=packed)
    call = call_of[step, row]
    order = call.argsort(stable=True)
    step, row, place = step[order], row[order], place[order]
    counts = torch.bincount(call, minlength=len(steps)).cumsum(0).tolist()
    numbers = torch.tensor([one.index for one in stretch.steps], device=row.device)
    position = place + stretch.first
    return Plan(
        stretch,
        moment,
        steps,
        step_of,
        before[-1] & stays[-1],
        [0, *counts],
        row,
        place,
        numbers[step],
        stretch.t[step, 0, place],
        stretch.s[step, 0, place],
        stretch.event[step, row, place],
        dice.throw_at(TOKEN, row, numbers[step], position),
    )


def _calls(stretch: Stretch, active: Tensor, *, packed: bool) -> tuple[Tensor, Tensor, tuple[Step, ...]]:
    """For `active` [steps, batch]: the call of each, [steps, batch]; each call's step of every row, [calls, batch];
    and the last step that each call is part of.
    """
    count, batch = active.shape
    if not packed:
        number = torch.arange(count, device=active.device)
        return number.view(-1, 1).expand(count, batch), number.view(-1, 1).expand(count, batch), stretch.steps
    windows = [list(group) for _, group in groupby(range(count), lambda k: _window(stretch.steps[k]))]
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
    steps = tuple(stretch.steps[window[-1]] for window, n in zip(windows, lengths, strict=True) for _ in range(n))
    return call_of, step_of[:total], steps


def _window(step: Step) -> tuple[int, int]:
    return step.start, step.stop
