"""Likelihood bounds by Monte Carlo, with their names and errors (algorithm 1 of the paper, mended).

Times are stratified over all rows and draws, the estimate is a ratio of sums over tokens, and what bounds what is said:
the exact likelihood for quench, the masked bound for the absorbing process, score entropy plus the prior's divergence
for gamma and uniform, and for epsilon the bound of `objectives.epsilon_bound`, with the absorbing process's beside it.
One doubled pass scores all windows of a row. Knows rows of tokens, no text.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hdlm.config import ScheduleConfig
from hdlm.evaluate.bound import Bound
from hdlm.objectives.epsilon_bound import restoration_bound, shuffled_bound
from hdlm.objectives.masked import masked_bound
from hdlm.objectives.score_entropy import score_entropy
from hdlm.theory import checks
from hdlm.theory.absorbing import Absorbing
from hdlm.theory.averaging import averaged_times
from hdlm.theory.draws import draw_times
from hdlm.theory.epsilon_hybrid import EpsilonHybrid
from hdlm.theory.gamma_hybrid import GammaHybrid
from hdlm.theory.hyperschedule import Block, Flat, Hyperschedule, Quench, Slide
from hdlm.theory.layout import NOTHING, SETTLED, Layout, training_layout
from hdlm.theory.noise import Linear
from hdlm.theory.process import Process
from hdlm.theory.random import Keyed, keyed_uniform
from hdlm.theory.reading import CleanReading

if TYPE_CHECKING:
    from hdlm.bundle import Bundle

LOGITS_AT_ONCE = 2**24
_SHUFFLE, _MASK, _OFFSET = 401, 402, 403  # purposes of chance
_OFFSETS = 16  # least number of slide's offsets that an estimate runs through, where it has so many draws


def estimate(
    bundle: "Bundle",
    rows: Sequence[Sequence[int]],
    *,
    prefix: int = 0,
    draws: int | None = None,
    schedule: ScheduleConfig | None = None,
    seed: int = 0,
    batch_size: int = 8,
    progress: Callable[[int, int], None] | None = None,
) -> Bound:
    """The bound on rows of tokens, after their first `prefix` tokens, which are given.

    `draws` noise draws a row (default 4; the exact likelihood needs 1); `schedule`: another hyperschedule than the
    network's own, of any length. `progress` is told rows done and rows to do.
    """
    if not rows or any(len(row) <= prefix for row in rows):
        raise ValueError("there is no text to score: every row needs at least one token after what is given")
    checks.integer("batch_size", batch_size, low=1)
    checks.integer("prefix", prefix, low=0)
    checks.integer("seed", seed, low=0, high=2**63 - 1)
    own = bundle.config.hyperschedule
    kind = checks.instance("schedule", schedule, ScheduleConfig) if schedule is not None else own
    if bundle.config.block_causal and (kind.kind, kind.width) != (own.kind, own.width):
        raise ValueError(
            f"{kind.name} is not accepted: this network's settled tokens see whole blocks of "
            f"{own.width}, so it is scored by blocks of {own.width} only"
        )
    draws = 1 if kind.kind == "quench" else checks.integer("draws", 4 if draws is None else draws, low=1)
    began = time.perf_counter()
    groups: dict[int, list[int]] = {}
    for number, row in enumerate(rows):
        groups.setdefault(len(row), []).append(number)
    total = len(rows) * draws
    sums: dict[str, Tensor] = {}
    done = 0
    longest = max(groups)
    curve, seen = torch.zeros(longest - prefix, dtype=torch.float64), torch.zeros(longest - prefix)
    for length, numbers in groups.items():
        scorer = _Scorer(bundle, _along(kind, length, prefix, bundle), prefix, seed)
        x0 = torch.tensor([list(rows[n]) for n in numbers])
        checks.tokens("rows", x0, bundle.config.model.vocab_size)
        for indices, losses in scorer.score(x0, draws, batch_size):
            # Sample k * rows + r is draw k of row r: the draws of one row are spread over all times.
            for name, per_token in losses.items():
                table = sums.setdefault(name, torch.zeros(draws, len(rows), dtype=torch.float64))
                place = torch.tensor(numbers)[indices % len(numbers)]
                table[indices // len(numbers), place] = per_token.double().sum(1).cpu()
            first = next(iter(losses.values())).double().cpu()
            curve[: length - prefix] += first.sum(0)
            seen[: length - prefix] += len(first)
            done += len(indices)
            if progress is not None:
                progress(done, total)
    tokens = torch.tensor([len(row) - prefix for row in rows], dtype=torch.float64)
    seconds = time.perf_counter() - began
    bounds = [_summarise(name, kind.name, table, tokens, draws, seconds) for name, table in sums.items()]
    positions = (curve / seen.clamp(min=1)).tolist()
    main = bounds[0]
    return replace(main, positions=positions, beside=tuple(bounds[1:]))


def _along(kind: ScheduleConfig, length: int, prefix: int, bundle: "Bundle") -> Hyperschedule:
    """The schedule over what is not settled: all but the prefix, which for flat lies inside the one window."""
    count = length - _settled(kind, prefix, bundle)
    width = None if kind.width is None else min(kind.width, count)
    return ScheduleConfig(kind.kind, count, width=width).build()


def _settled(kind: ScheduleConfig, prefix: int, bundle: "Bundle") -> int:
    """How many of the given tokens stand before the first window."""
    if kind.kind == "flat":
        return 0
    if bundle.config.block_causal and kind.width is not None:
        return prefix // kind.width * kind.width
    return prefix


def _summarise(name: str, schedule: str, table: Tensor, tokens: Tensor, draws: int, seconds: float) -> Bound:
    """Ratio of sums over rows, its standard error by linearisation, and the draws' own share of it."""
    means = table.mean(0)
    value = (means.sum() / tokens.sum()).item()
    count = len(tokens)
    draw_error = None
    if draws > 1:
        draw_error = (table.var(0).sum() / draws).sqrt().item() / tokens.sum().item()
    if count > 1:
        residual = means - value * tokens
        error = (residual.square().sum() * count / (count - 1)).sqrt().item() / tokens.sum().item()
    else:
        error = draw_error
    size = int(tokens.sum())
    return Bound(name, schedule, value, error, draw_error, size, count, draws, seconds, row_nats=means.tolist())


class _Scorer:
    """Scores rows of one length."""

    def __init__(self, bundle: "Bundle", schedule: Hyperschedule, prefix: int, seed: int) -> None:
        self.bundle, self.schedule, self.prefix, self.seed = bundle, schedule, prefix, seed
        self.process: Process = bundle.process
        self.reading = bundle.config.reading(self.process)
        self.device = bundle.model.embedding.device
        self._layouts: dict[int | None, Layout] = {}

    def score(self, x0: Tensor, draws: int, batch_size: int) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        """Indices of (draw, row) pairs, and their losses per token [pairs, tokens] by the bound's name."""
        count = len(x0) * draws
        for offset, group in self._offsets(count, draws, batch_size):
            for indices in group.split(batch_size):
                with torch.no_grad():
                    yield indices, self._losses(x0[indices % len(x0)].to(self.device), indices, count, offset)

    def _offsets(self, count: int, draws: int, batch_size: int) -> Iterator[tuple[int | None, Tensor]]:
        """Pairs that share where a slide's first window ends; the offsets cover 1..width evenly.

        The bound of a slide is one on average over offsets only: one for all would bias it. The draws of a row get
        different ones, so that the spread over rows and draws holds what offsets do.
        """
        pairs = torch.arange(count)
        if not isinstance(self.schedule, Slide):
            yield None, pairs
            return
        width = self.schedule.width
        groups = min(width, count, max(_OFFSETS, -(-count // batch_size)))
        rows = count // draws
        group = (pairs % rows * draws + pairs // rows) % groups
        shift = keyed_uniform(self.seed, _OFFSET).item()
        for number in range(groups):
            yield 1 + int((number + shift) / groups * width) % width, pairs[group == number]

    def _losses(self, x0: Tensor, indices: Tensor, count: int, offset: int | None) -> dict[str, Tensor]:
        length, covered = x0.shape[1], self.schedule.length
        draw = draw_times(self.schedule, seed=self.seed, indices=indices, global_batch=count, offset=offset)
        t = torch.zeros(x0.shape, dtype=torch.float64)
        t[:, length - covered :] = draw.times.double()
        t = t.to(self.device)
        given = (torch.arange(length, device=self.device) < self.prefix).expand(x0.shape)
        layout = self._layout(draw.offset, length)
        if isinstance(self.schedule, Quench):
            return {"exact negative log-likelihood": self._pass(layout, x0, x0, t, given, self._next_token)}
        if isinstance(self.process, EpsilonHybrid):
            return self._epsilon_losses(self.process, layout, x0, t, given, indices, draw.offset)
        noisy = self._corrupt(self.process, x0, t, given, indices, _MASK)
        kl = self.process.prior_kl()
        if isinstance(self.process, Absorbing) and isinstance(self.reading, CleanReading):
            t = self._averaged(self.process, noisy, t, draw.offset)
            return {"masked bound": self._pass(layout, x0, noisy, t, given, self._masked(self.process)) + kl}
        return {"score-entropy bound": self._pass(layout, x0, noisy, t, given, self._score_entropy) + kl}

    def _epsilon_losses(
        self,
        process: EpsilonHybrid,
        layout: Layout,
        x0: Tensor,
        t: Tensor,
        given: Tensor,
        indices: Tensor,
        offset: int | None,
    ) -> dict[str, Tensor]:
        """The bound of the epsilon process, and that of the same network as a plain masked denoiser."""
        absorbing = Absorbing(process.vocab_size, process.noise)
        plain = self._corrupt(absorbing, x0, t, given, indices, _MASK)
        averaged = self._averaged(absorbing, plain, t, offset)
        masked = self._pass(layout, x0, plain, averaged, given, self._masked(absorbing)) + absorbing.prior_kl()
        if process.epsilon == 0:
            return {"masked bound": masked}
        moment = torch.full_like(t, torch.finfo(torch.float32).tiny)  # just after 0: shuffled, nothing masked
        shuffled = self._corrupt(process, x0, moment, given, indices, _SHUFFLE)
        noisy = torch.where(absorbing.is_mask(plain), plain, shuffled)

        def of_shuffled(outputs: Tensor, xt: Tensor, target: Tensor, time: Tensor) -> Tensor:
            return shuffled_bound(process, self.reading.log_p0(outputs, xt, time), xt, target, time)

        def of_clean(outputs: Tensor, xt: Tensor, target: Tensor, time: Tensor) -> Tensor:
            return restoration_bound(process, self.reading.log_p0(outputs, xt, time), xt, target)

        # The first pass is judged on x~, with the settled context clean; the second sees all of x~ and is judged on x0.
        first = self._pass(layout, x0, noisy, t, given, of_shuffled, target=shuffled)
        second = self._pass(layout, x0, shuffled, moment, given, of_clean)
        return {
            "epsilon-hybrid bound": first + second + process.prior_kl(),
            "masked bound of the absorbing process": masked,
        }

    def _averaged(self, process: Absorbing, noisy: Tensor, t: Tensor, offset: int | None) -> Tensor:
        """Times that give the masked bound its mean weights, where the network does not read them; else `t`."""
        inside = self.prefix > noisy.shape[1] - self.schedule.length  # given tokens in a window, never masked
        if self.bundle.config.model.reads_noise or not isinstance(process.noise, Linear) or inside:
            return t
        free = noisy[:, noisy.shape[1] - self.schedule.length :]
        averaged = averaged_times(self.schedule, process.is_mask(free), offset=offset)
        return torch.cat([t[:, : noisy.shape[1] - self.schedule.length], averaged.to(t)], 1)

    def _corrupt(self, process: Process, x0: Tensor, t: Tensor, given: Tensor, indices: Tensor, purpose: int) -> Tensor:
        noisy = process.corrupt(x0, t, generator=Keyed(self.seed + purpose, indices.to(self.device)))
        return torch.where(given, x0, noisy)

    def _layout(self, offset: int | None, length: int) -> Layout:
        if offset not in self._layouts:
            config = self.bundle.config
            layout = training_layout(
                self.schedule,
                shifted=config.shifted,
                offset=offset,
                settled_loss=False,
                block_causal=config.block_causal and isinstance(self.schedule, Block),
                block=config.hyperschedule.width if config.block_causal else None,
                prefix=0 if isinstance(self.schedule, Flat) else length - self.schedule.length,
            )
            self._layouts[offset] = layout.to(self.device)
        return self._layouts[offset]

    def _pass(
        self,
        layout: Layout,
        x0: Tensor,
        xt: Tensor,
        t: Tensor,
        given: Tensor,
        judge: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor],
        *,
        target: Tensor | None = None,
    ) -> Tensor:
        """One forward pass: losses [batch, tokens] of what comes after the prefix, in order of position."""
        model = self.bundle.model
        dtype = torch.promote_types(model.embedding.dtype, torch.float32)
        target = x0 if target is None else target
        with checks.trusted():
            slots = layout.fill(x0, xt, t.to(dtype), self.process, bos_id=self.bundle.config.bos_id, known=given)
            features = model.trunk(slots)
            active = (layout.window == SETTLED) if isinstance(self.schedule, Quench) else (layout.window != SETTLED)
            slot = (active & (layout.predicts != NOTHING) & (layout.predicts >= self.prefix)).nonzero().squeeze(1)
            token = layout.predicts[slot]
            slot, token = slot[token.argsort()], token.sort().values
            flat = features[:, slot].flatten(0, 1)
            columns = [values[:, token].flatten() for values in (xt, target, t)]
            size = max(1, LOGITS_AT_ONCE // self.process.vocab_size)
            parts = [
                judge(model.head(flat[i : i + size]), *(column[i : i + size] for column in columns))
                for i in range(0, len(flat), size)
            ]
        return torch.cat(parts).view(len(x0), -1)

    def _masked(self, process: Absorbing) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        def judge(outputs: Tensor, xt: Tensor, target: Tensor, t: Tensor) -> Tensor:
            return masked_bound(process.noise, -self._next_token(outputs, xt, target, t), process.is_mask(xt), t)

        return judge

    def _score_entropy(self, outputs: Tensor, xt: Tensor, target: Tensor, t: Tensor) -> Tensor:
        assert isinstance(self.process, GammaHybrid)
        return score_entropy(self.process, self.reading.log_score(outputs, xt, t), xt, target, t)

    def _next_token(self, outputs: Tensor, xt: Tensor, target: Tensor, t: Tensor) -> Tensor:
        """-log p of the target [n] from logits [n, N]."""
        wide = outputs[..., : self.process.vocab_size].to(torch.promote_types(outputs.dtype, torch.float32))
        return torch.nn.functional.cross_entropy(wide, target, reduction="none")
