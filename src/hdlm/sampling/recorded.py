"""The loop's calls on a GPU, recorded once and played back: the host only says which comes next.

Everything that a call reads and writes stays in one place: tokens, cache, and tables of what a stretch of steps will
ask (`plan.py`), of which a counter on the device takes the next row. A call is two recordings: one feeds the network,
known by how many slots it feeds; one draws, known by how many places it has room for. On a CPU the same work is done
without recordings, which is how tests hold it equal to the loop's plain calls.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from hdlm.sampling.plan import Plan
from hdlm.sampling.rule import Places, Prediction
from hdlm.theory import checks
from hdlm.theory.layout import BOS, Layout, Slots, inference_layout, next_token_layout

if TYPE_CHECKING:
    from hdlm.sampling.generate import Run

_MOST_PLACES = 2**20  # of one stretch; more are called one by one
_ROOM, _ROOM_GROWS = 8, 4  # places that the smallest drawing has room for, and how much larger the next is
_HEAD_ROWS = 1024  # places whose vocabulary is scored together
_DESKS = 2  # kinds of runs whose memory and recordings are kept, per network


class Recordings:
    """Work by key: done as it is the first time, recorded the second, played back from then on."""

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
        beside = torch.cuda.Stream(self._device)
        beside.wait_stream(here)
        with torch.cuda.stream(beside):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                work()
            finally:
                graph.capture_end()
        here.wait_stream(beside)
        return graph


class Desk:
    """The memory of runs of one kind: see `desk_for`."""

    def __init__(self, run: "Run") -> None:
        batch, length = run.canvas.tokens.shape
        device = run.canvas.tokens.device
        self.key = desk_key(run)
        # The last column is for places that are only there to fill the room.
        self.tokens = torch.zeros(batch, length + 1, dtype=torch.int64, device=device)
        self.given = torch.zeros(batch, length + 1, dtype=torch.bool, device=device)
        self.times = torch.ones(batch, length + 1, dtype=run.dtype, device=device)
        self.cache = run.new_cache(fixed=True)
        self._now = torch.zeros(1, dtype=torch.int64, device=device)
        self._recordings = Recordings(device)
        self._layouts: dict[Hashable, Layout] = {}
        self._passes: dict[Hashable, Any] = {}
        self._features: dict[int, Tensor] = {}
        self._tables: dict[str, Tensor] = {}

    def take(self, run: "Run") -> None:
        """Make the desk a run's own, from its beginning."""
        if self.cache is not None:
            self.cache.reset()
        self.tokens[:, :-1], self.given[:, :-1] = run.canvas.tokens, run.canvas.given
        run.tokens = self.tokens[:, :-1]

    def lay_out(self, run: "Run", plan: Plan) -> dict[str, Tensor] | None:
        """Everything that a plan's calls will read, by name; None if there is no room for it."""
        if plan.offsets[-1] > _MOST_PLACES:
            return None
        device, stretch = self.tokens.device, plan.stretch
        steps = torch.tensor([step.start - stretch.first for step in plan.steps], dtype=torch.int64, device=device)
        columns = (steps.view(-1, 1, 1) + torch.arange(run.schedule.width, device=device)).clamp(max=stretch.width - 1)
        delta = torch.tensor(self._deltas(run, plan), dtype=torch.int64).view(len(steps), run.canvas.batch)
        offset = torch.tensor(plan.offsets)
        call = torch.repeat_interleave(torch.arange(len(steps)), offset.diff()).to(device)
        delta, offset = delta.to(device), offset.to(device)
        position = plan.place + stretch.first
        column = torch.tensor(run.canvas.starts, device=device)[plan.row] + position
        at = column - delta[call, plan.row]
        return {
            "time": stretch.t[:, 0][plan.step_of.unsqueeze(-1), columns].to(run.dtype),
            "delta": delta,
            "offset": torch.stack([offset[:-1], offset[1:]], 1),
            "place": torch.stack([plan.row, column, at, plan.number, position], 1),
            "chance": torch.stack([plan.t, plan.s, plan.event, plan.token], 1),
        }

    def play(self, run: "Run", plan: Plan, tables: dict[str, Tensor]) -> None:
        """All calls of a plan, laid out before."""
        # Room beyond the last place, so that a drawing with room to spare reads something.
        spare = _MOST_PLACES + _ROOM_GROWS * self.tokens.numel() + _ROOM
        for name, values in tables.items():
            if name not in self._tables:
                room = spare if name in ("place", "chance") else run.most_calls
                self._tables[name] = values.new_zeros(room, *values.shape[1:])
            self._tables[name][: len(values)] = values
        self._now.zero_()
        for call, step in enumerate(plan.steps):
            news = {start + step.start - held for start, held in zip(run.canvas.starts, run.held, strict=True)}
            # Prompts, at first: of several lengths, or of one that no other run may have again.
            if len(news) > 1 or (self.cache is not None and max(news) > run.schedule.width):
                run.call(plan, call, step)
                self._now += 1
                continue
            shape = (news.pop(), step.stop - step.start, run.next_token or run.shares_level(step))
            slots = len(self._layout(run, shape))
            room, scored = _ROOM, plan.offsets[call + 1] - plan.offsets[call]
            while room < scored:
                room *= _ROOM_GROWS
            with checks.trusted():
                self._recordings.play(("feed", shape), lambda shape=shape: self._feed(run, shape))
                self._recordings.play(
                    ("draw", room, slots), lambda room=room, slots=slots: self._draw(run, room, slots)
                )
            run.count_call(step, fed=slots * run.canvas.batch, scored=scored)

    def _deltas(self, run: "Run", plan: Plan) -> list[list[int]]:
        """Per call and row, how many positions the cache holds before it."""
        held, found = list(run.held), []
        for step in plan.steps:
            found.append(held)
            held = run.held_after(step)
        return found

    def _layout(self, run: "Run", shape: tuple[int, int, bool]) -> Layout:
        """The layout of so many new settled slots and a window of this width, at the very beginning."""
        if shape not in self._layouts:
            new, width, shared = shape
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

    def _feed(self, run: "Run", shape: tuple[int, int, bool]) -> None:
        """Tokens and times through the trunk, its features kept for the drawing."""
        base, delta = self._layout(run, shape), self._row("delta")
        slots = self._slots_with_times(run, shape) if run.reads_noise else self._slots(run, base, delta)
        opened = self._passes[shape].moved(delta) if self.cache is not None else None
        features = run.network.trunk(slots, cache=opened)
        if len(base) not in self._features:
            self._features[len(base)] = torch.empty_like(features)
        self._features[len(base)].copy_(features)

    def _slots_with_times(self, run: "Run", shape: tuple[int, int, bool]) -> Slots:
        """The slots of a call, for networks that read noise times."""
        new, width, _ = shape
        base, delta = self._layout(run, shape), self._row("delta")
        window = delta.unsqueeze(1) + new + torch.arange(width, device=delta.device)
        self.times.scatter_(1, window, self._row("time")[:, :width])
        process = run.reading.process
        return base.moved(delta).fill(
            self.tokens, self.tokens, self.times, process, bos_id=run.bos_id, known=self.given
        )

    def _slots(self, run: "Run", base: Layout, delta: Tensor) -> Slots:
        """The slots of a call, tokens alone."""
        holds = base.holds + delta.unsqueeze(1)
        token = self.tokens.gather(1, holds.clamp(min=0))
        if run.shifted:
            token = torch.where(holds == BOS, run.bos_id if run.bos_id is not None else 0, token)
        levels = len(base.level_token)
        return Slots(base, token, sigma=self.times[:, :1].expand(-1, levels), weight=self.times[:, :1].expand_as(token))

    def _draw(self, run: "Run", room: int, slots: int) -> None:
        """Score the vocabulary at the call's places and put there what the rule draws."""
        first, last = self._row("offset").split(1)
        index = first + torch.arange(room, device=first.device)
        row, column, at, number, position = self._tables["place"].index_select(0, index).unbind(1)
        t, s, event, token = self._tables["chance"].index_select(0, index).unbind(1)
        column = torch.where(index < last, column, self.tokens.shape[1] - 1)
        features = self._features[slots][row, at.clamp(0, slots - 1)]
        xt = self.tokens[row, column]
        drawn = []
        for start in range(0, room, _HEAD_ROWS):
            part = slice(start, min(start + _HEAD_ROWS, room))
            prediction = Prediction(run.network.head(features[part]), xt[part], t[part], run.reading, run.shaping)
            chosen = (values[part] for values in (xt, t, s, event, token, row, number, position))
            drawn.append(run.rule.draw(Places(run.reading.process, run.dice, *chosen), prediction))
        self.tokens[row, column] = drawn[0] if len(drawn) == 1 else torch.cat(drawn)
        self._now += 1


_desks: WeakKeyDictionary[Any, OrderedDict[Hashable, Desk]] = WeakKeyDictionary()
_lock = Lock()


def desk_key(run: "Run") -> Hashable:
    """All that recordings depend on, so that runs with the same key can share them."""
    rule, canvas = run.rule, run.canvas
    return (
        tuple(canvas.tokens.shape),
        str(canvas.tokens.device),
        type(run.schedule).__name__,
        run.schedule.width,
        run.most_calls,
        type(rule).__name__,
        repr(sorted(vars(rule).items())),
        type(run.reading).__name__,
        repr(sorted(vars(run.reading).items())),
        _state_of(run.network),
        torch.is_inference_mode_enabled(),
        run.shaping,
        run.shifted,
        run.bos_id,
        run.cached,
        run.reads_noise,
        run.block,
        run.dtype,
    )


def _state_of(network: Any) -> Hashable:
    """A network's weights as they are now: where they lie and how often they were written to."""
    if not isinstance(network, torch.nn.Module):
        return None
    weights = ((p.data_ptr(), p.dtype, 0 if p.is_inference() else p._version) for p in network.parameters())
    return network.training, tuple(weights)


def desk_for(run: "Run") -> Desk:
    """A desk for a run alone: one that such a run has left, or a new one."""
    with _lock:
        desk = _desks.setdefault(run.network, OrderedDict()).pop(desk_key(run), None)
    desk = desk or Desk(run)
    desk.take(run)
    return desk


def leave(run: "Run", desk: Desk) -> None:
    """Leave a desk to the next run; those of the last few kinds are kept."""
    run.tokens = run.tokens.clone()
    with _lock:
        known = _desks.setdefault(run.network, OrderedDict())
        known[desk.key] = desk
        while len(known) > _DESKS:
            known.popitem(last=False)
