"""Speculation: autoregression's own text, several tokens a call of the network.

A shifted network is two models in one: its settled slots know the law of the next token, and its windows of MASK guess
several tokens at once. Here such guesses are a draft, and settled slots hold it: they say what autoregression draws
after each of its tokens. As far as that is what was drafted it is kept, and so is the first token that is not: a call
settles one token at least. Draft and verification draw with the same random number at a position, so that the text is
that of autoregression with the same seed, whatever was drafted. How much is drafted, and when: `pace.py`.
"""

import time
from collections.abc import Callable, Iterator
from functools import lru_cache

import torch
from torch import Tensor

from hdlm.sampling.loop import Run
from hdlm.sampling.pace import Pace, Plan
from hdlm.sampling.results import Frame
from hdlm.sampling.rng import TOKEN, StepRandom
from hdlm.sampling.rule import Prediction
from hdlm.theory.layout import Layout, Slots, build_layout, stack_layouts
from hdlm.theory.reading import Reading


@lru_cache(maxsize=256)
def draft_layout(known: int, drafted: int, cached: int, windows: tuple[int, ...], width: int) -> Layout:
    """A pass over one row: BOS, `known` tokens and `drafted` ones, settled, less the `cached` first slots.

    Then windows of `width` masks, one after the known tokens and so many of the draft each. `drafted` = -1: the last
    known token is left to the windows, each of which holds the token before it.
    """
    starts = [known + kept for kept in windows]
    length, settled = known + max(drafted, 0) + max(width, 1), known + drafted + 1
    spans = [(start, start + width) for start in starts]
    return build_layout(length, spans, shifted=True, settled=settled, skip=cached, one_level_a_window=True)


class Drafter:
    """The rows of a run on their way, and their network asked for verdicts and drafts.

    `known`: tokens that are settled, of each row. Behind them in the run's tokens stand the `drafted` ones, then MASK.
    """

    def __init__(self, run: Run) -> None:
        batch, length = run.tokens.shape
        assert run.drafts is not None
        assert run.reading.process.mask_id is not None
        self.run, self.drafts, self.mask_id = run, run.drafts, run.reading.process.mask_id
        self.known, self.drafted = list(run.starts), [0] * batch
        self.cache = run.network.new_cache(batch, length + 1) if run.settings.cache else None
        self._row = torch.arange(batch, device=run.tokens.device).unsqueeze(1)
        position = (
            torch.arange(length, device=run.tokens.device) - torch.tensor(run.starts, device=run.tokens.device)[:, None]
        )
        self._uniform = run.rng.uniform_at(TOKEN, self._row, position, position)  # of every column, [batch, length]
        self._masks = torch.full_like(run.tokens, self.mask_id)
        self._noise = torch.ones(run.tokens.shape, dtype=run.dtype, device=run.tokens.device)
        self._settled: list[int] = []  # settled slots of each row in the last pass

    def trunk(self, slots: Slots) -> Tensor:
        """Features [batch, slots, width] of a pass."""
        return self.run.network.trunk(slots, cache=self.cache)

    def head(self, features: Tensor) -> Tensor:
        """Outputs [..., N] of features [..., width]."""
        return self.run.network.head(features)

    def columns(self, count: int) -> Tensor:
        """Where the `count` positions behind what is known stand in the run's tokens: [batch, count]."""
        known = torch.tensor(self.known, device=self._row.device).unsqueeze(1)
        return known + torch.arange(count, device=self._row.device)

    def verify(self, windows: list[tuple[int, ...]], width: int) -> tuple[Prediction, Tensor]:
        """A pass over the draft and each row's `windows` of `width` masks, as of `draft_layout`.

        What is the law of the next token after what is known, and after each drafted token: [batch, drafted + 1]? And
        the features of all slots.
        """
        features, most = self._pass(self.drafted, windows, width), max(self.drafted)
        last = torch.tensor(self._settled, device=features.device).unsqueeze(1) - 1
        count = torch.tensor(self.drafted, device=features.device).unsqueeze(1)
        slot = last - count + torch.arange(most + 1, device=features.device).minimum(count)
        return self._prediction(features[self._row, slot], self.run.reading), features

    def draft(self, count: int) -> None:
        """A pass of its own: `count` tokens are drafted behind what is known."""
        features = self._pass([-1] * len(self.known), [(0,)] * len(self.known), count)
        self.read_draft(features, [0] * len(self.known), count, skip=0)

    def read_draft(self, features: Tensor, window: list[int], count: int, *, skip: int) -> None:
        """`count` tokens behind what is known, of each row's window number `window`; no number (-1): nothing.

        `skip`: how many of the window's masks stand for tokens that are known by now.
        """
        number = torch.tensor(window, device=features.device).unsqueeze(1)
        start = torch.tensor(self._settled, device=features.device).unsqueeze(1)
        start = start + number.clamp(min=0) * (skip + count + 1)
        seen = features[self._row, start + torch.arange(skip + count, device=features.device)]
        drawn = self.walk(seen, self.random(count), skip)
        columns = self.columns(count)
        self.run.tokens.scatter_(1, columns, torch.where(number >= 0, drawn, self.mask_id))
        self.drafted = [count if found >= 0 else 0 for found in window]

    def walk(self, seen: Tensor, random: StepRandom, skip: int) -> Tensor:
        """Tokens [batch, count] of a window's features [batch, skip + count, width]; `random` [batch, count].

        Where the network has a draft head, one after the other: each knows those before it. The window's first position
        sees the token before it, and is read as it is.
        """
        network = self.run.network
        if getattr(network, "draft", None) is None:
            return self._prediction(seen[:, skip:], self.drafts).draw(random)
        drawn, state, previous = [], network.draft.start(seen), self.tokens_before(skip + 1)
        token = previous[:, 0]
        for depth in range(seen.shape[1]):
            known, state = network.draft(seen[:, depth], network.embedding[token], state)
            if depth < skip:
                token = previous[:, depth + 1]
                continue
            here = random.at((slice(None), slice(depth - skip, depth - skip + 1)))
            features = (known if depth else seen[:, 0]).unsqueeze(1)
            drawn.append(self._prediction(features, self.drafts).draw(here))
            token = drawn[-1].squeeze(1)
        return torch.cat(drawn, dim=1)

    def tokens_before(self, count: int) -> Tensor:
        """The last `count` tokens that are known, [batch, count]; BOS before the first."""
        assert self.run.bos_id is not None
        index = self.columns(1) - count + torch.arange(count, device=self._row.device)
        return torch.where(index < 0, self.run.bos_id, self.run.tokens.gather(1, index.clamp(min=0)))

    def random(self, count: int) -> StepRandom:
        """The numbers with which autoregression draws the `count` tokens behind what is known: [batch, count]."""
        token = self._uniform.gather(1, self.columns(count))
        return StepRandom(token, token, races=True)

    def keep(self, known: list[int]) -> None:
        """So many tokens are settled; what the cache holds of refused ones is forgotten."""
        self.known = known
        if self.cache is not None:
            self.cache.keep([min(held, kept) for held, kept in zip(self.cache.settled, known, strict=True)])

    def _pass(self, drafted: list[int], windows: list[tuple[int, ...]], width: int) -> Tensor:
        run, cached = self.run, [0] * len(self.known) if self.cache is None else self.cache.settled
        rows = list(zip(self.known, drafted, cached, windows, strict=True))
        layout = _layout_of(rows, width).to(run.tokens.device)
        slots = layout.fill(run.tokens, self._masks, self._noise, run.reading.process, bos_id=run.bos_id)
        self._settled = [known + count + 1 - held for known, count, held, _ in rows]
        run.stats.add_branched_call(
            [
                (held, settled, [known + kept for kept in at])
                for (known, _, held, at), settled in zip(rows, self._settled, strict=True)
            ],
            width=width + 1,
            cached=self.cache is not None,
        )
        return self.trunk(slots)

    def _prediction(self, features: Tensor, reading: Reading) -> Prediction:
        """The view of positions that are MASK, at full noise, of features [batch, positions, width]."""
        self.run.stats.head_slots += features.shape[0] * features.shape[1]
        noise = torch.ones(features.shape[:-1], dtype=torch.float64, device=features.device)
        masks = torch.full(features.shape[:-1], self.mask_id, device=features.device)
        return Prediction(self.head(features), masks, noise, reading, self.run.settings, self.run.witness)


def _layout_of(rows: list[tuple[int, int, int, tuple[int, ...]]], width: int) -> Layout:
    """The layout of rows (known, drafted, cached, windows): one that is moved where only `known` differs."""
    known, drafted, cached, windows = zip(*rows, strict=True)
    if known == cached and len(set(drafted)) == len(set(windows)) == 1:
        return draft_layout(0, drafted[0], 0, windows[0], width).moved(torch.tensor(known))
    return stack_layouts([draft_layout(*row, width) for row in rows])


@torch.no_grad()
def sample(
    run: Run, drafter: Drafter, *, watched: bool = True, progress: Callable[[int], None] | None = None
) -> Iterator[Frame]:
    """Write all rows to their ends, with a frame for every verdict where somebody watches.

    `progress` is told how many tokens further the last row is.
    """
    pace, number = Pace.of(run), 0
    ends = [start + run.schedule.length for start in run.starts]
    while not all(done := _done(run, drafter, ends)):
        began, behind = time.perf_counter(), _behind(run, drafter)
        plan, before, known, drafted = pace.plan(), run.tokens.clone(), drafter.known, drafter.drafted
        verdict, features = drafter.verify([plan.windows(count) for count in drafted], plan.width)
        index = drafter.columns(max(drafted) + 1)
        drawn = verdict.draw(drafter.random(index.shape[1]))
        agrees = drawn == before.gather(1, index)  # beyond a draft is MASK, which is never drawn
        kept = agrees[:, :-1].long().cumprod(1).sum(1).tolist()
        rows = zip(kept, known, ends, done, strict=True)
        gained = [0 if over else min(count + 1, end - start) for count, start, end, over in rows]
        fresh = torch.arange(index.shape[1], device=drawn.device) < torch.tensor(gained, device=drawn.device).unsqueeze(
            1
        )
        run.tokens.scatter_(1, index, torch.where(fresh, drawn, drafter.mask_id))
        if run.eos_id is not None:
            run.ended |= (fresh & (drawn == run.eos_id)).any(1)
        drafter.keep([start + count for start, count in zip(known, gained, strict=True)])
        run.stats.add_verdicts(drafted, kept, gained)
        if not all(_done(run, drafter, ends)):
            _draft_next(drafter, plan, features, kept)
        pace.learn(plan, drafted, kept, gained, seconds=time.perf_counter() - began)
        if watched:
            yield _frame(run, drafter, verdict, before, known, drawn, fresh, number)
        number += 1
        if progress is not None and (further := behind - _behind(run, drafter)) > 0:
            progress(further)


def _done(run: Run, drafter: Drafter, ends: list[int]) -> list[bool]:
    return [known >= end or over for known, end, over in zip(drafter.known, ends, run.ended.tolist(), strict=True)]


def _behind(run: Run, drafter: Drafter) -> int:
    """What the last of the rows that go on has still to write."""
    rows = zip(drafter.known, run.starts, run.ended.tolist(), strict=True)
    return max((run.schedule.length - (known - start) for known, start, over in rows if not over), default=0)


def _draft_next(drafter: Drafter, plan: Plan, features: Tensor, kept: list[int]) -> None:
    """Draft what follows, from the windows of the pass that has verified, or in a pass of its own."""
    if plan.count == 0:
        drafter.drafted = [0] * len(kept)
    elif plan.apart:
        drafter.draft(plan.count)
    else:
        windows = [plan.windows(count) for count in drafter.drafted]
        found = [at.index(count) if count in at else -1 for at, count in zip(windows, kept, strict=True)]
        drafter.read_draft(features, found, plan.count, skip=1)


def _frame(
    run: Run,
    drafter: Drafter,
    verdict: Prediction,
    before: Tensor,
    known: list[int],
    drawn: Tensor,
    fresh: Tensor,
    number: int,
) -> Frame:
    """What a verdict settled, and the draft behind it, which may still change; nothing that lies behind the texts."""
    length = max(run.starts) + run.schedule.length
    start, now = (torch.tensor(values, device=drawn.device).unsqueeze(1) for values in (known, drafter.known))
    index = start + torch.arange(drawn.shape[1], device=drawn.device)
    size = min(drawn.shape[1] + max(drafter.drafted), length)
    window = start.clamp(max=length - size) + torch.arange(size, device=drawn.device)
    was = before.gather(1, index)
    moved = fresh & (drawn != was)

    def in_window(values: Tensor, where: Tensor, rest: float = torch.nan) -> Tensor:
        empty = torch.full(before.shape, rest, dtype=values.dtype, device=values.device)
        return empty.scatter(1, index, torch.where(where, values, rest)).gather(1, window)

    def each_in_window(values: Tensor, rest: float) -> Tensor:
        return torch.stack([in_window(one, fresh, rest) for one in values.unbind(-1)], dim=-1)

    told = verdict.told(drawn, run.logprobs, run.likeliest)
    if told["logprobs"] is not None:
        told["logprobs"] = in_window(told["logprobs"], fresh)
    if told["likeliest"] is not None:
        tokens, values = told["likeliest"]
        told["likeliest"] = each_in_window(tokens, 0), each_in_window(values, torch.nan)

    return Frame(
        number,
        run.tokens[:, :length].clone(),
        window,
        before.gather(1, window),
        (window >= now).long(),
        in_window(verdict.probability(drawn), moved),
        in_window(verdict.probability(was), moved),
        run.given[:, :length],
        max_level=1,
        **told,
    )
