"""One global step's batch: which hyperschedule, which rows, which noise, laid out for the network.

Everything follows from (run seed, sample index): sample n belongs to step n // global_batch. A process asks for the
samples that are its own and gets what they would be anywhere else. Knows no weights.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hdlm.data.packed import Rows
from hdlm.data.stream import Stream
from hdlm.objectives.settled import position_weights
from hdlm.recipe import Recipe
from hdlm.theory import checks
from hdlm.theory.averaging import averaged_times
from hdlm.theory.draws import draw_times
from hdlm.theory.hyperschedule import Hyperschedule, Quench
from hdlm.theory.layout import NOTHING, SETTLED, Layout, Slots, next_token_layout, training_layout
from hdlm.theory.process import Process
from hdlm.theory.random import Keyed, keyed_uniform

_MIXTURE, _CORRUPTION = 201, 202


@dataclass(frozen=True)
class Targets:
    """Slots [k] whose outputs carry a loss, and for each row what they should have said, [batch, k].

    `weight` [k] or [batch, k] is 0 after a row's end.
    """

    slot: Tensor
    x0: Tensor
    xt: Tensor
    t: Tensor
    weight: Tensor


@dataclass(frozen=True)
class Batch:
    """What a forward pass reads and what its loss compares with; `settled` only where it counts.

    `autoregressive`: the hyperschedule is quench, whose loss is the next token's likelihood whatever the process.
    """

    slots: Slots
    active: Targets
    settled: Targets | None
    autoregressive: bool = False


@dataclass(frozen=True)
class _Chosen:
    """Slots and the tokens that they predict, on the device, and the tokens once more on the host."""

    slot: Tensor
    token: Tensor
    place: Tensor


@dataclass(frozen=True)
class _Trained:
    """A layout on the device, and which of its slots carry a loss: found once, not at every step."""

    layout: Layout
    active: _Chosen
    settled: _Chosen


class Batches:
    """The batches of a run, by global step."""

    def __init__(
        self,
        recipe: Recipe,
        rows: Rows,
        process: Process,
        *,
        bos_id: int | None,
        device: torch.device,
        seed: int | None = None,
    ) -> None:
        self._recipe, self._rows, self._process = recipe, rows, process
        self._bos_id, self._device = bos_id, device
        self._seed = recipe.seed if seed is None else seed
        self._stream = Stream(len(rows), self._seed)
        self._schedules = [member.schedule(recipe.length).build() for member in recipe.schedules]
        self._layouts: dict[tuple[int, int | None], _Trained] = {}

    def member(self, step: int) -> int:
        """Which hyperschedule of the mixture this step trains."""
        shares = torch.tensor([member.share for member in self._recipe.schedules], dtype=torch.float64)
        point = keyed_uniform(self._seed, _MIXTURE, step) * shares.sum()
        return min(int((shares.cumsum(0) <= point).sum()), len(shares) - 1)

    def at(self, indices: Tensor, *, global_batch: int, member: int | None = None, shuffled: bool = True) -> Batch:
        """The batch of samples `indices`, all of one step."""
        step = int(indices[0]) // global_batch
        number = self.member(step) if member is None else member
        schedule = self._schedules[number]
        x0 = self._rows.take(self._stream.rows_of(indices) if shuffled else indices % len(self._rows))
        real = x0 >= 0
        ends = None if bool(real.all()) else real
        x0 = x0.where(real, self._bos_id or 0)
        draw = draw_times(schedule, seed=self._seed, indices=indices, global_batch=global_batch)
        xt = self._process.corrupt(x0, draw.times, generator=Keyed(self._seed + _CORRUPTION, indices))
        if self._process.mask_id is not None:
            xt = xt.where(real, self._process.mask_id)  # nothing tells where a row ends
        trained = self._layout(number, schedule, draw.offset)
        weighed = draw.times
        if self._recipe.loss.averaged and not isinstance(schedule, Quench):
            weighed = averaged_times(schedule, xt == self._process.mask_id, offset=draw.offset, real=real)
        x0, xt, t, weighed = (self._there(values) for values in (x0, xt, draw.times, weighed))
        with checks.trusted():
            slots = trained.layout.fill(x0, xt, t, self._process, bos_id=self._bos_id)
        if isinstance(schedule, Quench):
            return Batch(slots, self._targets(trained.settled, x0, xt, t, None, ends), None, autoregressive=True)
        active = self._targets(trained.active, x0, xt, weighed, None, ends)
        if self._recipe.loss.beta1 == 0 or not len(trained.settled.slot):
            return Batch(slots, active, None)
        weights = position_weights(schedule.length, schedule.width) if self._recipe.loss.reweighted else None
        return Batch(slots, active, self._targets(trained.settled, x0, x0, torch.zeros_like(t), weights, ends))

    def _there(self, values: Tensor) -> Tensor:
        """The values on the device, which need not wait for them."""
        return values.pin_memory().to(self._device, non_blocking=True) if self._device.type == "cuda" else values

    def _layout(self, number: int, schedule: Hyperschedule, offset: int | None) -> _Trained:
        if (number, offset) not in self._layouts:
            if isinstance(schedule, Quench):
                layout = next_token_layout(schedule.length - 1)  # the last token is predicted, and need not be read
            else:
                layout = training_layout(
                    schedule, shifted=self._recipe.shifted, offset=offset, settled_loss=self._recipe.loss.beta1 > 0
                )
            useful, settled = layout.predicts != NOTHING, layout.window == SETTLED
            found = [(chosen & useful).nonzero().squeeze(-1) for chosen in (~settled, settled)]
            active, clean = (
                _Chosen(slot.to(self._device), layout.predicts[slot].to(self._device), layout.predicts[slot])
                for slot in found
            )
            self._layouts[number, offset] = _Trained(layout.to(self._device), active, clean)
        return self._layouts[number, offset]

    def _targets(
        self,
        chosen: _Chosen,
        x0: Tensor,
        xt: Tensor,
        t: Tensor,
        weights: Tensor | None,
        real: Tensor | None,
    ) -> Targets:
        """What the chosen slots are compared with; `real` [batch, length], on the host: False after a row's end."""
        slot, token, place = chosen.slot, chosen.token, chosen.place
        weight = torch.ones(len(place), device=self._device) if weights is None else weights.to(self._device)[token]
        if real is not None:
            weight = weight * self._there(real[:, place])
        return Targets(slot, x0[:, token], xt[:, token], t[:, token], weight)
