"""Sampling on the fast floor: what the network will be asked is planned ahead wherever chance alone decides it.

Rules that know ahead where they need the network (`Thinned`) are planned a chunk of steps at a time (`plan.py`), and on
a GPU their calls are recorded as CUDA graphs (`graphs.py`). All others, and runs that somebody watches, go through the
reference loop with a network that is asked only where it matters (`predictor.py`). The tokens are those of
`sampling/loop.py`.
"""

from collections.abc import Callable, Iterator

import torch

from hdlm.fast.chunks import StepChunk, look_ahead
from hdlm.fast.graphs import GraphedCalls, can_record
from hdlm.fast.plan import CallPlan, plan_calls
from hdlm.fast.predictor import FastDrafter, FastPredictor
from hdlm.fast.streams import SideStream, on_device
from hdlm.fast.trunk import fast_head
from hdlm.sampling import loop, speculative
from hdlm.sampling.loop import Run
from hdlm.sampling.results import Frame
from hdlm.sampling.rng import StepRandom
from hdlm.sampling.rule import Prediction, Thinned, Times
from hdlm.theory import checks
from hdlm.theory.hyperschedule import Step


def sample(
    run: Run,
    *,
    watched: bool = True,
    progress: Callable[[int], None] | None = None,
    graphs: bool | None = None,
) -> Iterator[Frame]:
    """All steps of a run: a frame each where it is watched, else perhaps none.

    `graphs`: whether calls are laid out to be recorded, where that can be; None: on CUDA.
    """
    rule = run.rule
    if run.drafts is not None:
        return speculative.sample(run, FastDrafter(run), watched=watched, progress=progress)
    if watched or not isinstance(rule, Thinned) or not rule.foresees(run.reading) or run.rng.flawed:
        return loop.sample(run, FastPredictor(run), watched=watched, progress=progress)
    return _planned(run, rule, progress, run.tokens.is_cuda if graphs is None else graphs)


@torch.no_grad()
def _planned(run: Run, rule: Thinned, progress: Callable[[int], None] | None, graphs: bool) -> Iterator[Frame]:
    """All steps without a frame."""
    yield from ()
    planned = PlannedRun(run, rule, graphs=graphs and can_record(run))
    schedule, device = run.schedule, run.tokens.device
    chunks = look_ahead(schedule.walk(), run.reading.process, run.rng, max_level=schedule.max_level)
    side = SideStream(device)
    while True:
        # Planning asks the device for numbers: beside what it is doing, so that it need not finish that first.
        with side:
            chunk = next(chunks, None)
        if chunk is None or run.note_ends(chunk.steps[0].start):
            break
        planned.take(chunk, side)
        if progress is not None:
            progress(len(chunk.steps))
    planned.finish()
    run.note_ends(schedule.length)


class PlannedRun:
    """A run whose rule knows ahead where it needs the network."""

    def __init__(self, run: Run, rule: Thinned, *, graphs: bool) -> None:
        self.run, self.rule = run, rule
        self._masked = run.reading.process.is_mask(run.tokens)  # as foreseen
        self._graphs = GraphedCalls.of(run) if graphs else None
        self.predictor = FastPredictor(run)
        if self._graphs is not None:
            self.predictor.cache = self._graphs.cache

    def take(self, chunk: StepChunk, side: SideStream) -> None:
        """Take all steps of a chunk."""
        run, graphs = self.run, self._graphs
        with side:
            plan = self.plan(chunk)
            tables = graphs.lay_out(self, plan) if graphs is not None else None
        run.stats.skipped_calls += len(chunk.steps) - len(plan.steps)
        times = chunk.times
        side.hand_over([*vars(plan).values(), *vars(chunk).values(), *vars(times).values(), *(tables or {}).values()])
        if graphs is not None and tables is not None:
            with on_device(run.tokens.device):
                graphs.play(self, plan, tables)
            return
        for call, step in enumerate(plan.steps):
            if run.note_ends(step.start):
                run.stats.skipped_calls += len(plan.steps) - call
                return
            self.call(plan, call, step)

    def plan(self, chunk: StepChunk) -> CallPlan:
        """The calls of a chunk."""
        run = self.run
        window = run.columns(chunk.first, chunk.first + chunk.width)
        with checks.trusted():
            free = ~(run.given.gather(1, window) | run.ended.unsqueeze(1))
            plan = plan_calls(chunk, self.rule, run.rng, masked=self._masked.gather(1, window), free=free)
            self._masked.scatter_(1, window, plan.masked)
        return plan

    def call(self, plan: CallPlan, call: int, step: Step) -> None:
        """One call of the network, and what it leads to."""
        run = self.run
        with checks.trusted(), on_device(run.tokens.device):
            chosen = slice(plan.offsets[call], plan.offsets[call + 1])
            if run.eos_id is not None and run.ended.any():  # rows may have ended since the plan was made
                chosen = chosen.start + (~run.ended[plan.row[chosen]]).nonzero().squeeze(1)
            row, position = plan.row[chosen], plan.position[chosen]
            if not len(row):
                run.stats.skipped_calls += 1
                return
            column = position + run.columns(0, 1)[row, 0]
            first = plan.chunk.first
            t = plan.chunk.t[plan.step_of[call], 0, step.start - first : step.stop - first]
            features = self.predictor.features(step, t, scored=len(row))[row, position - step.start]
            tokens, times = run.tokens[row, column], Times(run.reading.process, plan.s[chosen], plan.t[chosen])
            outputs = fast_head(run.network, features)
            prediction = Prediction(outputs, tokens, times.t, run.reading, run.settings, run.witness)
            random = StepRandom(plan.event[chosen], plan.token[chosen])
            run.tokens[row, column] = self.rule.draw(tokens, prediction, times, random).to(run.tokens.dtype)

    def finish(self) -> None:
        """Free what others can use; the tokens stay."""
        if self._graphs is not None:
            self._graphs.release(self.run)
