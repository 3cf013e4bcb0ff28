"""Likelihood bounds by Monte Carlo, with their names and errors (algorithm 1 of the paper, mended).

Times are stratified over all rows and draws, the estimate is a ratio of sums over tokens, and which bound it is comes
from `objectives.bounds`. One doubled pass scores all windows of a row. Serves `hdlm evaluate`, `Bundle.perplexity` and
validation during training. Knows rows of tokens, no text.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hdlm.evaluate.bound import Bound
from hdlm.objectives.bounds import Likelihood, TokenLoss, likelihoods
from hdlm.processes import ALONE, World
from hdlm.theory import checks
from hdlm.theory.averaging import averaged_times
from hdlm.theory.draws import draw_times
from hdlm.theory.hyperschedule import Hyperschedule
from hdlm.theory.layout import NOTHING, SETTLED, Layout, training_layout
from hdlm.theory.process import Process
from hdlm.theory.random import Keyed, keyed_uniform

if TYPE_CHECKING:
    from hdlm.bundle import Bundle

_SHUFFLE, _MASK, _OFFSET = 401, 402, 403  # purposes of chance
_OFFSETS = 16  # least number of slide's offsets that an estimate runs through, where it has so many draws


def estimate(
    bundle: "Bundle",
    rows: Sequence[Sequence[int]],
    *,
    prefix: int = 0,
    draws: int | None = None,
    hyperschedule: Hyperschedule | None = None,
    seed: int = 0,
    batch_size: int = 8,
    progress: Callable[[int, int], None] | None = None,
    keep: Callable[[Tensor, Tensor], None] | None = None,
    world: World = ALONE,
) -> Bound:
    """The bound on rows of tokens, after their first `prefix` tokens, which are given.

    `draws` noise draws a row (default 4; the exact likelihood needs 1); `hyperschedule`: another than the network's
    own, of any length. `progress` is told rows done and rows to do, and `keep` the numbers of rows [n] and the nats of
    their tokens [n, tokens] in one draw of each. `world`: this process among others, of which each scores its share.
    """
    if not rows or any(len(row) <= prefix for row in rows):
        raise ValueError("there is no text to score: every row needs at least one token after what is given")
    checks.integer("batch_size", batch_size, low=1)
    checks.integer("prefix", prefix, low=0)
    checks.integer("seed", seed, low=0, high=2**63 - 1)
    schedule = bundle.hyperschedule if hyperschedule is None else hyperschedule
    checks.instance("hyperschedule", schedule, Hyperschedule)
    if not schedule.autoregressive:
        bundle.check_masks(repr(schedule))
    block = bundle.config.hyperschedule.width if bundle.config.block_causal else None
    if block is not None and not schedule.fits_blocks(block):
        raise ValueError(
            f"{schedule.name} is not accepted: this network's settled tokens see whole blocks of "
            f"{block}, so it is scored by blocks of {block} only"
        )
    draws = 1 if schedule.autoregressive else checks.integer("draws", 4 if draws is None else draws, low=1)
    checks.fits_memory(f"draws = {draws} of {len(rows):,} rows", 8 * draws * len(rows))
    began = time.perf_counter()
    groups: dict[int, list[int]] = {}
    for number, row in enumerate(rows):
        groups.setdefault(len(row), []).append(number)
    kinds = likelihoods(bundle.config.reading(bundle.process), autoregressive=schedule.autoregressive)
    # A restoration is judged with all of a window shuffled: only where a window's tokens settle together is it a bound.
    kinds = [kind for kind in kinds if schedule.even or kind.restoration is None]
    tables = {kind.name: torch.zeros(draws, len(rows), dtype=torch.float64) for kind in kinds}
    curve, seen = torch.zeros(2, max(groups) - prefix, dtype=torch.float64)
    done, own = 0, sum(len(numbers[world.rank :: world.size]) for numbers in groups.values())
    for length, numbers in groups.items():
        scorer = _Scorer(bundle, schedule, kinds, length, prefix, block, seed)
        x0 = torch.tensor([list(rows[n]) for n in numbers])
        checks.tokens("rows", x0, bundle.config.model.vocab_size)
        for indices, losses in scorer.score(x0, draws, batch_size, world):
            # Sample k * rows + r is draw k of row r: the draws of one row are spread over all times.
            at = (indices // len(numbers), torch.tensor(numbers)[indices % len(numbers)])
            for name, per_token in losses.items():
                tables[name][at] = per_token.sum(1)
            first = losses[kinds[0].name]
            curve[: length - prefix] += first.sum(0)
            seen[: length - prefix] += len(first)
            done += len(indices)
            if keep is not None:
                keep(at[1], first)
            if progress is not None:
                progress(done, own * draws)
    if world.size > 1:
        tables = {name: world.sum(table.to(bundle.device)).cpu() for name, table in tables.items()}
        curve, seen = (world.sum(x.to(bundle.device)).cpu() for x in (curve, seen))
    if not all(table.isfinite().all() for table in tables.values()):
        raise bundle.not_finite()
    tokens = torch.tensor([len(row) - prefix for row in rows], dtype=torch.float64)
    seconds = time.perf_counter() - began
    first, *beside = (summarise(name, schedule.name, table, tokens, seconds) for name, table in tables.items())
    return replace(first, positions=(curve / seen.clamp(min=1)).tolist(), beside=tuple(beside))


def summarise(name: str, schedule: str, table: Tensor, tokens: Tensor, seconds: float) -> Bound:
    """Ratio of sums over rows, its standard error by linearisation, and the draws' own share of it."""
    (draws, count), means, size = table.shape, table.mean(0), int(tokens.sum())
    value = means.sum().item() / size
    residual = means - value * tokens
    draw_error = (table.var(0).sum() / draws).sqrt().item() / size if draws > 1 else None
    error = (residual.square().sum() * count / (count - 1)).sqrt().item() / size if count > 1 else draw_error
    return Bound(name, schedule, value, error, draw_error, size, count, draws, seconds, row_nats=means.tolist())


class _Scorer:
    """Scores rows of one length."""

    def __init__(
        self,
        bundle: "Bundle",
        schedule: Hyperschedule,
        kinds: Sequence[Likelihood],
        length: int,
        prefix: int,
        block: int | None,
        seed: int,
    ) -> None:
        # What of the given tokens stands before the first window: for flat nothing, its one window holds all.
        settled = 0 if not schedule.has_prefix else prefix if block is None else prefix // block * block
        self.bundle, self.kinds, self.prefix, self.block, self.seed = bundle, kinds, prefix, block, seed
        inside = None if schedule.has_prefix else schedule.resized(length - prefix).with_prompt(prefix)
        self.settled, self.schedule = settled, schedule.resized(length - settled) if inside is None else inside
        self.given = (torch.arange(length, device=bundle.device) < prefix).unsqueeze(0)

    def score(
        self, x0: Tensor, draws: int, batch_size: int, world: World
    ) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        """Indices of (draw, row) pairs, and their losses per token [pairs, tokens], float64, by the bound's name."""
        count = len(x0) * draws
        for offset, group in self._offsets(count, draws, batch_size):
            own = group[group % len(x0) % world.size == world.rank]
            layout = self._layout(offset)
            for indices in own.split(batch_size) if len(own) else ():
                x = x0[indices % len(x0)].to(self.bundle.device)
                with torch.no_grad():
                    losses = self._losses(layout, x, indices, count, offset)
                yield indices, {name: values.double().cpu() for name, values in losses.items()}

    def _offsets(self, count: int, draws: int, batch_size: int) -> Iterator[tuple[int | None, Tensor]]:
        """Pairs that share where a slide's first window ends; the offsets cover 1..width evenly.

        The bound of a slide is one on average over offsets only: one for all would bias it. The draws of a row get
        different ones, so that the spread over rows and draws holds what offsets do.
        """
        pairs = torch.arange(count)
        if self.schedule.draw_offset(0.0) is None:
            yield None, pairs
            return
        groups = min(self.schedule.offsets, count, max(_OFFSETS, -(-count // batch_size)))
        rows = count // draws
        group = (pairs % rows * draws + pairs // rows) % groups
        shift = keyed_uniform(self.seed, _OFFSET).item()
        for number in range(groups):
            yield self.schedule.draw_offset((number + shift) / groups % 1), pairs[group == number]

    def _losses(self, layout: Layout, x0: Tensor, indices: Tensor, count: int, offset: int | None) -> dict[str, Tensor]:
        draw = draw_times(self.schedule, seed=self.seed, indices=indices, global_batch=count, offset=offset)
        t, judged_at = self._placed(draw.times, x0), self._placed(draw.loss_times, x0)
        weights = None if draw.weights is None else self._placed(draw.weights, x0)[:, self.prefix :]
        found = {}
        for kind in self.kinds:
            if kind.restoration is not None:
                losses = self._restored(kind, layout, x0, t, indices)
            else:
                noisy = x0 if kind.process is None else self._corrupt(kind.process, x0, t, indices, _MASK)
                times = self._averaged(kind, noisy, t, offset)
                losses = self._pass(layout, x0, noisy, times, kind.loss, at=times if weights is None else judged_at)
            found[kind.name] = (losses if weights is None else losses * weights) + kind.prior
        return found

    def _placed(self, values: Tensor, x0: Tensor) -> Tensor:
        """Numbers of the schedule's positions as numbers of all tokens, 0 for what is settled before."""
        placed = torch.zeros(x0.shape, dtype=torch.float64)
        placed[:, self.settled :] = values.double()
        return placed.to(x0.device)

    def _restored(self, kind: Likelihood, layout: Layout, x0: Tensor, t: Tensor, indices: Tensor) -> Tensor:
        """Two passes: the first is judged on the shuffled tokens x~, with the settled context clean; the second sees
        all of x~ and is judged on x0.
        """
        process, restoration = kind.process, kind.restoration
        assert process is not None
        assert restoration is not None
        moment = torch.full_like(t, torch.finfo(torch.float32).tiny)  # just after 0: shuffled, nothing masked
        shuffled = self._corrupt(process, x0, moment, indices, _SHUFFLE)
        masked = process.is_mask(self._corrupt(process, x0, t, indices, _MASK))
        noisy = torch.where(masked, process.mask_id if process.mask_id is not None else 0, shuffled)
        first = self._pass(layout, x0, noisy, t, kind.loss, target=shuffled)
        return first + self._pass(layout, x0, shuffled, moment, restoration)

    def _averaged(self, kind: Likelihood, noisy: Tensor, t: Tensor, offset: int | None) -> Tensor:
        """Times that give the masked bound its mean weights, where the network does not read them; else `t`."""
        process, reading = kind.process, self.bundle.config.reading(self.bundle.process)
        if process is None or not process.masks_only or not process.noise.linear or reading.gives_scores:
            return t
        if self.bundle.config.model.reads_noise or self.prefix > self.settled:  # given tokens in a window: never masked
            return t
        if not self.schedule.even:
            return t
        averaged = averaged_times(self.schedule, process.is_mask(noisy[:, self.settled :]), offset=offset)
        return torch.cat([t[:, : self.settled], averaged.to(t)], 1)

    def _corrupt(self, process: Process, x0: Tensor, t: Tensor, indices: Tensor, purpose: int) -> Tensor:
        noisy = process.corrupt(x0, t, generator=Keyed(self.seed + purpose, indices.to(x0.device)))
        return torch.where(self.given, x0, noisy)

    def _layout(self, offset: int | None) -> Layout:
        layout = training_layout(
            self.schedule,
            shifted=self.bundle.config.shifted,
            offset=offset,
            settled_loss=False,
            block_causal=self.block is not None and self.schedule.has_prefix,
            block=self.block,
            prefix=self.settled,
        )
        return layout.to(self.bundle.device)

    def _pass(
        self,
        layout: Layout,
        x0: Tensor,
        xt: Tensor,
        t: Tensor,
        loss: TokenLoss,
        *,
        at: Tensor | None = None,
        target: Tensor | None = None,
    ) -> Tensor:
        """One forward pass: losses [batch, tokens] of what comes after the prefix, 0 where no slot predicts it.

        `at`: times at which losses are taken, where those of the slots are not.
        """
        model, process = self.bundle.model, self.bundle.process
        dtype = torch.promote_types(model.embedding.dtype, torch.float32)
        given = self.given.expand(x0.shape)
        with checks.trusted():
            slots = layout.fill(x0, xt, t.to(dtype), process, bos_id=self.bundle.config.bos_id, known=given)
            features = model.trunk(slots)
            predicts = (layout.window == SETTLED) == self.schedule.autoregressive
            slot = (predicts & (layout.predicts != NOTHING) & (layout.predicts >= self.prefix)).nonzero().squeeze(1)
            token = layout.predicts[slot]
            flat = features[:, slot].flatten(0, 1)
            judged = (xt, x0 if target is None else target, t if at is None else at)
            columns = [values[:, token].flatten() for values in judged]
            parts = [
                loss(model.head(flat[rows])[:, : process.vocab_size], *(column[rows] for column in columns))
                for rows in model.head.chunks(len(flat))
            ]
        # Where a draw asks nothing of the network, its loss would not tell that the network says nothing.
        losses = torch.cat(parts).masked_fill(flat.isnan().any(-1), torch.nan).view(len(x0), -1)
        return losses.new_zeros(len(x0), x0.shape[1] - self.prefix).index_copy_(1, token - self.prefix, losses)
