"""The calls of a planned run on a GPU, recorded once as CUDA graphs and replayed: the host only says which comes next.

Everything that a call reads and writes stays in one place: tokens, cache, and tables of what a chunk of steps will ask
(`plan.py`), of which a counter on the device takes the next row. A call is two graphs: one feeds the network, known by
how many slots it feeds; one draws, known by how many positions it has room for. On a CPU the same work is done without
graphs, which is how tests hold it equal to plain calls.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from hdlm.fast.chunks import MAX_STEPS
from hdlm.fast.fixed_cache import FixedCache, FixedPass
from hdlm.fast.plan import CallPlan
from hdlm.fast.trunk import fast_head, run_pass
from hdlm.nn.transformer import Denoiser
from hdlm.sampling.loop import Run
from hdlm.sampling.rng import StepRandom
from hdlm.sampling.rule import Prediction, Times
from hdlm.theory import checks
from hdlm.theory.layout import BOS, Layout, Slots, inference_layout, next_token_layout

if TYPE_CHECKING:
    from hdlm.fast.engine import PlannedRun

MAX_POSITIONS = 2**20  # of one chunk; more are called one by one
MAX_SHAPES = 16  # of uncached windows that are worth recording
_ROOM, _ROOM_GROWS = 8, 4  # positions that the smallest drawing has room for, and how much larger the next is
HEAD_ROWS = 1024  # positions whose vocabulary is scored together
_KEPT = 2  # kinds of runs whose memory and graphs are kept, per network


def can_record(run: Run) -> bool:
    """Whether a run's calls come in few enough shapes, and its network is one whose work can be recorded."""
    schedule = run.schedule
    if not isinstance(run.network, Denoiser) or not schedule.repeats:
        return False
    windows = -(-schedule.length // schedule.width) if schedule.one_level_a_window else schedule.steps
    return not schedule.has_prefix or run.settings.cache or windows <= MAX_SHAPES


class Graphs:
    """Work by key: done as it is the first time, recorded the second, replayed from then on."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._cuda = device, device.type == "cuda"
        self._graphs: dict[Hashable, Any] = {}
        self._pool = torch.cuda.graph_pool_handle() if self._cuda else None

    def play(self, key: Hashable, work: Callable[[], None]) -> None:
        """Do the work of `key`; it must read and write the same memory every time."""
        if not self._cuda or key not in self._graphs:
            work()
            self._graphs[key] = None
            return
        if self._graphs[key] is None:
            self._graphs[key] = self._record(work)
        self._graphs[key].replay()

    def _record(self, work: Callable[[], None]):
        graph = torch.cuda.CUDAGraph()
        here = torch.cuda.current_stream(self._device)
        side = torch.cuda.Stream(self._device)
        side.wait_stream(here)
        with torch.cuda.stream(side):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                work()
            finally:
                graph.capture_end()
        here.wait_stream(side)
        return graph


class GraphedCalls:
    """The memory and the graphs of runs of one kind (see `run_key`), used by one run at a time."""

    def __init__(self, run: Run) -> None:
        (batch, length), device = run.tokens.shape, run.tokens.device
        self.key = run_key(run)
        # The last column is for entries that are only there to fill the room.
        self.tokens = torch.zeros(batch, length + 1, dtype=torch.int64, device=device)
        self.given = torch.zeros(batch, length + 1, dtype=torch.bool, device=device)
        self.times = torch.ones(batch, length + 1, dtype=run.dtype, device=device)
        cached = run.settings.cache and run.schedule.has_prefix
        self.cache = FixedCache.of(run.network, batch, length + 1) if cached else None
        self._now = torch.zeros(1, dtype=torch.int64, device=device)
        self.witness = torch.zeros_like(run.witness)
        self._graphs = Graphs(device)
        self._layouts: dict[Hashable, Layout] = {}
        self._passes: dict[Hashable, FixedPass] = {}
        self._features: dict[int, Tensor] = {}
        self._tables: dict[str, Tensor] = {}

    @classmethod
    def of(cls, run: Run) -> "GraphedCalls":
        """For a run alone: those that such a run has released, or new ones."""
        with _lock:
            found = _kept.setdefault(run.network, OrderedDict()).pop(run_key(run), None)
        found = found or cls(run)
        if found.cache is not None:
            found.cache.reset()
        found.tokens[:, :-1], found.given[:, :-1] = run.tokens, run.given
        run.tokens, run.witness = found.tokens[:, :-1], found.witness.zero_()
        return found

    def release(self, run: Run) -> None:
        """Leave the memory to the next run; that of the last few kinds is kept."""
        run.tokens, run.witness = run.tokens.clone(), run.witness.clone()
        with _lock:
            known = _kept.setdefault(run.network, OrderedDict())
            known[self.key] = self
            while len(known) > _KEPT:
                known.popitem(last=False)

    def lay_out(self, planned: "PlannedRun", plan: CallPlan) -> dict[str, Tensor] | None:
        """Everything that a plan's calls will read, by name; None if there is no room for it."""
        if plan.offsets[-1] > MAX_POSITIONS:
            return None
        run, device, chunk = planned.run, self.tokens.device, plan.chunk
        steps = torch.tensor([step.start - chunk.first for step in plan.steps], dtype=torch.int64, device=device)
        columns = (steps.view(-1, 1, 1) + torch.arange(run.schedule.width, device=device)).clamp(max=chunk.width - 1)
        delta = torch.tensor(self._held(planned, plan), dtype=torch.int64).view(len(steps), len(run.starts))
        offset = torch.tensor(plan.offsets)
        call = torch.repeat_interleave(torch.arange(len(steps)), offset.diff()).to(device)
        delta, offset = delta.to(device), offset.to(device)
        column = torch.tensor(run.starts, device=device)[plan.row] + plan.position
        slot = column - delta[call, plan.row]
        return {
            "time": chunk.t[:, 0][plan.step_of.unsqueeze(-1), columns].to(run.dtype),
            "delta": delta,
            "offset": torch.stack([offset[:-1], offset[1:]], 1),
            "where": torch.stack([plan.row, column, slot], 1),
            "chance": torch.stack([plan.t, plan.s, plan.event, plan.token], 1),
        }

    def play(self, planned: "PlannedRun", plan: CallPlan, tables: dict[str, Tensor]) -> None:
        """All calls of a plan, laid out before."""
        run, predictor = planned.run, planned.predictor
        # Room beyond the last entry, so that a drawing with room to spare reads something.
        spare = MAX_POSITIONS + _ROOM_GROWS * self.tokens.numel() + _ROOM
        for name, values in tables.items():
            if name not in self._tables:
                room = spare if name in ("where", "chance") else MAX_STEPS + run.schedule.max_level
                self._tables[name] = values.new_zeros(room, *values.shape[1:])
            self._tables[name][: len(values)] = values
        self._now.zero_()
        for call, step in enumerate(plan.steps):
            news = {start + step.start - held for start, held in zip(run.starts, predictor.held, strict=True)}
            # Prompts, at first: of several lengths, or of one that no other run may have again.
            if len(news) > 1 or (self.cache is not None and max(news) > run.schedule.width):
                planned.call(plan, call, step)
                self._now += 1
                continue
            shape = (news.pop(), step.stop - step.start)
            slots = len(self._layout(run, shape))
            room, scored = _ROOM, plan.offsets[call + 1] - plan.offsets[call]
            while room < scored:
                room *= _ROOM_GROWS
            with checks.trusted():
                self._graphs.play(("feed", shape), lambda shape=shape: self._feed(run, shape))
                self._graphs.play(
                    ("draw", room, slots),
                    lambda room=room, slots=slots: self._draw(planned, room, slots),
                )
            predictor.note_call(step, [slots] * len(run.starts), scored=scored)

    def _held(self, planned: "PlannedRun", plan: CallPlan) -> list[list[int]]:
        """Per call and row, how many positions the cache holds before it."""
        held, found = list(planned.predictor.held), []
        for step in plan.steps:
            found.append(held)
            held = planned.predictor.held_after(step)
        return found

    def _layout(self, run: Run, shape: tuple[int, int]) -> Layout:
        """The layout of so many new settled slots and a window of this width, at the very beginning."""
        if shape not in self._layouts:
            new, width = shape
            shared = run.schedule.one_level_a_window
            if run.next_token:
                layout = next_token_layout(new)
            else:
                layout = inference_layout(
                    new, new + width, shifted=run.shifted, block=run.block, one_level_a_window=shared
                )
            self._layouts[shape] = layout.to(self.tokens.device)
            if self.cache is not None:
                self._passes[shape] = self.cache.open(self._layouts[shape])
        return self._layouts[shape]

    def _row(self, name: str) -> Tensor:
        """The counter's row of a table."""
        return self._tables[name].index_select(0, self._now).squeeze(0)

    def _feed(self, run: Run, shape: tuple[int, int]) -> None:
        """Tokens and times through the trunk, its features kept for the drawing."""
        base, delta = self._layout(run, shape), self._row("delta")
        reads_noise = run.network.config.reads_noise
        slots = self._slots_with_times(run, shape) if reads_noise else self._slots(run, base, delta)
        opened = self._passes[shape].moved(delta) if self.cache is not None else None
        features = run_pass(run.network, slots, opened)
        if len(base) not in self._features:
            self._features[len(base)] = torch.empty_like(features)
        self._features[len(base)].copy_(features)

    def _slots_with_times(self, run: Run, shape: tuple[int, int]) -> Slots:
        """The slots of a call, for networks that read noise times."""
        new, width = shape
        base, delta = self._layout(run, shape), self._row("delta")
        window = delta.unsqueeze(1) + new + torch.arange(width, device=delta.device)
        self.times.scatter_(1, window, self._row("time")[:, :width])
        process = run.reading.process
        return base.moved(delta).fill(
            self.tokens, self.tokens, self.times, process, bos_id=run.bos_id, known=self.given
        )

    def _slots(self, run: Run, base: Layout, delta: Tensor) -> Slots:
        """The slots of a call, tokens alone."""
        holds = base.holds + delta.unsqueeze(1)
        token = self.tokens.gather(1, holds.clamp(min=0))
        if run.shifted:
            token = torch.where(holds == BOS, run.bos_id if run.bos_id is not None else 0, token)
        levels = len(base.level_token)
        return Slots(base, token, sigma=self.times[:, :1].expand(-1, levels), weight=self.times[:, :1].expand_as(token))

    def _draw(self, planned: "PlannedRun", room: int, slots: int) -> None:
        """Score the vocabulary at the call's positions and put there what the rule draws."""
        run, process = planned.run, planned.run.reading.process
        first, last = self._row("offset").split(1)
        index = first + torch.arange(room, device=first.device)
        row, column, slot = self._tables["where"].index_select(0, index).unbind(1)
        chance = self._tables["chance"].index_select(0, index)
        column = torch.where(index < last, column, self.tokens.shape[1] - 1)
        features = self._features[slots][row, slot.clamp(0, slots - 1)]
        tokens = self.tokens[row, column]
        drawn = []
        for start in range(0, room, HEAD_ROWS):
            part = slice(start, min(start + HEAD_ROWS, room))
            t, s, event, token = chance[part].unbind(1)
            outputs = fast_head(run.network, features[part])
            prediction = Prediction(outputs, tokens[part], t, run.reading, run.settings, self.witness)
            drawn.append(planned.rule.draw(tokens[part], prediction, Times(process, s, t), StepRandom(event, token)))
        self.tokens[row, column] = drawn[0] if len(drawn) == 1 else torch.cat(drawn)
        self._now += 1


_kept: WeakKeyDictionary[Any, OrderedDict[Hashable, GraphedCalls]] = WeakKeyDictionary()
_lock = Lock()


def run_key(run: Run) -> Hashable:
    """All that graphs depend on, so that runs with the same key can share them."""
    rule, schedule, settings = run.rule, run.schedule, run.settings
    return (
        tuple(run.tokens.shape),
        str(run.tokens.device),
        (schedule.kind, schedule.width, schedule.max_level),
        (type(rule).__name__, repr(sorted(vars(rule).items()))),
        (type(run.reading).__name__, repr(sorted(vars(run.reading).items()))),
        _state_of(run.network),
        torch.is_inference_mode_enabled(),
        (settings.temperature, settings.top_k, settings.top_p, settings.cache),
        (run.shifted, run.bos_id, run.block, run.dtype),
    )


def _state_of(network: Denoiser) -> Hashable:
    """A network's weights as they are now: where they lie and how often they were written to."""
    weights = ((p.data_ptr(), p.dtype, 0 if p.is_inference() else p._version) for p in network.parameters())
    return network.training, tuple(weights)
