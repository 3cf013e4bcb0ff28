"""One global step's batch: which hyperschedule, which rows, which noise, laid out for the network.

Everything follows from (run seed, sample index): sample n belongs to step n // global_batch. A process asks for the
samples that are its own and gets what they would be anywhere else. Knows no weights.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hdlm.config.recipe import Recipe
from hdlm.data.packed import Rows
from hdlm.data.stream import Stream
from hdlm.objectives.settled import position_weights
from hdlm.theory import checks
from hdlm.theory.averaging import averaged_times
from hdlm.theory.draws import draw_times
from hdlm.theory.layout import NOTHING, SETTLED, Layout, Slots, inference_layout, training_layout
from hdlm.theory.process import Process
from hdlm.theory.random import Keyed, keyed_uniform

_MIXTURE, _CORRUPTION, _WINDOW = 201, 202, 203


@dataclass(frozen=True)
class Targets:
    """Slots [k] whose outputs carry a loss, and for each row what they should have said, [batch, k].

    `weight` [k] or [batch, k] is 0 after a row's end, and where a custom hyperschedule rests.
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


class Batches:
    """The batches of a run, by global step."""

    def __init__(
        self, recipe: Recipe, rows: Rows, process: Process, *, bos_id: int | None, device: torch.device
    ) -> None:
        self._recipe, self._rows, self._process = recipe, rows, process
        self._bos_id, self._device = bos_id, device
        self._stream = Stream(len(rows), recipe.seed)
        self._schedules = [member.schedule(recipe.length).build() for member, _ in recipe.members]
        self._layouts: dict[tuple[int, int | None, int | None], tuple[Layout, Tensor, Tensor]] = {}

    def member(self, step: int) -> int:
        """Which of the recipe's members this step trains: one of the mixture's, or the last, while that is first."""
        if step < self._recipe.autoregressive_first * self._recipe.steps:
            return len(self._recipe.schedules)
        shares = torch.tensor([member.share for member in self._recipe.schedules], dtype=torch.float64)
        point = keyed_uniform(self._recipe.seed, _MIXTURE, step) * shares.sum()
        return min(int((shares.cumsum(0) <= point).sum()), len(shares) - 1)

    def at(self, indices: Tensor, *, global_batch: int) -> Batch:
        """The batch of samples `indices`, all of one step."""
        seed, step = self._recipe.seed, int(indices[0]) // global_batch
        member = self.member(step)
        schedule = self._schedules[member]
        x0 = self._rows.take(self._stream.rows_of(indices))
        real = x0 >= 0
        x0 = x0.where(real, self._bos_id or 0)
        draw = draw_times(schedule, seed=seed, indices=indices, global_batch=global_batch)
        xt = self._process.corrupt(x0, draw.times, generator=Keyed(seed + _CORRUPTION, indices))
        if self._process.mask_id is not None:
            xt = xt.where(real, self._process.mask_id)  # nothing tells where a row ends
        loss_times = draw.loss_times
        if self._recipe.loss.averaged and not schedule.autoregressive:
            loss_times = averaged_times(schedule, xt == self._process.mask_id, offset=draw.offset, real=real)
        layout, active, settled = self._layout(member, draw.offset, self._window(member, draw.offset, step))
        kept = None if bool(real.all()) else self._to_device(real)
        # A mean over the slots that carry a loss is to be one over all positions, whose weights are 1 on average.
        speeds = None if draw.weights is None else self._to_device(draw.weights * (len(active) / schedule.length))
        x0, xt, t, loss_times = (self._to_device(values) for values in (x0, xt, draw.times, loss_times))
        with checks.trusted():
            slots = layout.fill(x0, xt, t, self._process, bos_id=self._bos_id)

        def targets(slot: Tensor, xt: Tensor, t: Tensor, weights: Tensor | None = None) -> Targets:
            token = layout.predicts[slot]
            ones = torch.ones(len(slot), device=self._device)
            weight = ones if weights is None else weights.to(self._device)[..., token]
            weight = weight if kept is None else weight * kept[:, token]
            return Targets(slot, x0[:, token], xt[:, token], t[:, token], weight)

        if schedule.autoregressive:
            return Batch(slots, targets(settled, xt, t), None, autoregressive=True)
        if self._recipe.loss.beta1 == 0 or not len(settled):
            return Batch(slots, targets(active, xt, loss_times, speeds), None)
        weights = position_weights(schedule.length, schedule.width) if self._recipe.loss.reweighted else None
        settled_targets = targets(settled, x0, torch.zeros_like(t), weights)
        return Batch(slots, targets(active, xt, loss_times, speeds), settled_targets)

    def _to_device(self, values: Tensor) -> Tensor:
        """The values on the device, which need not wait for them."""
        return values.pin_memory().to(self._device, non_blocking=True) if self._device.type == "cuda" else values

    def _window(self, member: int, offset: int | None, step: int) -> int | None:
        """The one window that a step trains, drawn by how many positions it has; None: all of them."""
        if self._recipe.doubled:
            return None
        windows = self._schedules[member].training_windows(offset)
        if len(windows) < 2:
            return None
        sizes = torch.tensor([stop - start for start, stop in windows], dtype=torch.float64)
        point = keyed_uniform(self._recipe.seed, _WINDOW, step) * sizes.sum()
        return min(int((sizes.cumsum(0) <= point).sum()), len(windows) - 1)

    def _layout(self, member: int, offset: int | None, window: int | None) -> tuple[Layout, Tensor, Tensor]:
        """A layout on the device and its slots that carry a loss, active and settled: found once, not at every step."""
        if (member, offset, window) not in self._layouts:
            schedule, settled_loss = self._schedules[member], self._recipe.loss.beta1 > 0
            shifted, shared = self._recipe.shifted, schedule.one_level_a_window
            if window is None:
                layout = training_layout(schedule, shifted=shifted, offset=offset, settled_loss=settled_loss)
            else:  # as it is generated, with as many slots whichever window it is
                bounds, slots = schedule.training_windows(offset)[window], schedule.length + int(shifted)
                layout = inference_layout(*bounds, shifted=shifted, slots=slots, one_level_a_window=shared)
            useful, is_settled = layout.predicts != NOTHING, layout.window == SETTLED
            active, settled = ((chosen & useful).nonzero().squeeze(-1) for chosen in (~is_settled, is_settled))
            found = layout.to(self._device), active.to(self._device), settled.to(self._device)
            self._layouts[member, offset, window] = found
        return self._layouts[member, offset, window]
