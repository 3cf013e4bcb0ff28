"""What sampling costs, counted from the schedule alone: network calls and slots, with and without a cache.

Beside it the paper's own formula (appendix B.4), which forgets that the active window is fed again at every step.
"""

import math
from dataclasses import dataclass

from hdlm.theory.hyperschedule import Hyperschedule


@dataclass(frozen=True)
class Count:
    """Network calls for one sample, and the slots that they feed. `paper_*` by the paper's formula."""

    calls: int
    slots_cached: int
    slots_uncached: int
    paper_calls: int
    paper_slots_cached: float
    paper_slots_uncached: int


def count(schedule: Hyperschedule, *, shifted: bool, prompt: int = 0) -> Count:
    """The cost of one sample after `prompt` settled tokens, if every step calls the network."""
    next_token = schedule.autoregressive and shifted
    calls = cached = uncached = held = 0
    for step in schedule.walk():
        start, width = prompt + step.start, step.stop - step.start
        # Aligned: the settled tokens and the window. Shifted: BOS, the token before the window being inside it.
        fed = start + 1 if next_token else start + width + int(shifted)
        calls += 1
        uncached += fed
        cached += fed - held
        held = fed if next_token else start
    steps = math.ceil((schedule.length - schedule.width) / schedule.rate) + 1
    return Count(
        calls,
        cached,
        uncached,
        paper_calls=steps,
        paper_slots_cached=schedule.width + (steps - 1) * schedule.rate,
        paper_slots_uncached=steps * schedule.width,
    )
