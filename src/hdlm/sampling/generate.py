"""The loop: from the prior, along the levels of a hyperschedule, by the exact posterior, to text.

Only settled tokens and the active window are fed, through the network's cache where the schedule settles in order;
worthless positions never are. Knows a network as a callable with a cache of its own.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hdlm.theory.hyperschedule import Hyperschedule, Quench
from hdlm.theory.layout import NOTHING, inference_layout
from hdlm.theory.process import Process
from hdlm.theory.random import Source, categorical, uniform


@torch.no_grad()
def generate(
    model: Callable[..., Tensor],
    process: Process,
    schedule: Hyperschedule,
    *,
    shifted: bool,
    batch: int,
    to_p0: Callable[[Tensor, Tensor, Tensor], Tensor],
    bos_id: int | None = None,
    cache: Any = None,
    device: torch.device | str = "cpu",
    generator: Source = None,
) -> Tensor:
    """`batch` sequences of the schedule's length. `to_p0(outputs, xt, t)` turns raw outputs into p(x0 given xt)."""
    length, autoregressive = schedule.length, isinstance(schedule, Quench)
    x = process.prior((batch, length), generator=generator, device=device)
    times = torch.ones(batch, length, device=device)
    for step in schedule.walk():
        window = slice(step.start, step.stop)
        t, s = (levels.to(device) / schedule.max_level for levels in (step.levels, step.next_levels))
        times[:, : step.start], times[:, window] = 0.0, t
        done = cache.settled[0] if cache is not None else 0
        layout = inference_layout(step.start, step.stop, shifted=shifted, cached=done, blind=autoregressive).to(device)
        slots = layout.fill(x, x, times, process, bos_id=bos_id)
        chosen = (layout.window >= 0) & (layout.predicts != NOTHING)
        p0 = to_p0(model(slots, cache=cache)[:, chosen], x[:, window], t.expand(batch, -1))
        if autoregressive:
            x[:, window] = categorical(p0, uniform(p0.shape[:-1], generator=generator, device=device))
        else:
            x[:, window] = process.sample_posterior(x[:, window], p0, s=s, t=t, generator=generator)
    return x
