"""Gaps whose length nobody knows: each length is filled, and the network's own likelihood of the whole text decides.

A text is written once for every length that its open gaps may have, as it would be with that number in the gap. Then
all of them go through one autoregressive pass, which gives the exact log-likelihood of each whole text, right side
included, by the network itself (temperature 1). One sample has the length of the likeliest text; of several, each has
texts of its own and draws among their lengths in proportion to likelihood.

Texts of different lengths can be compared since something stands right of the gap: "a text begins with all of this" are
events of which none holds another. Behind an open gap at the very end nothing would stand, and each further token would
only cost: it is refused, unless the end of text itself is written behind it. No end is added where none is written: it
may be a text's beginning that is given.

What comes of it is an ordinary request with the lengths that were found, by the same random numbers: whoever watches it
sees those texts being written.
"""

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hdlm import backend
from hdlm.config.sampling import DrawSettings
from hdlm.config.schedule import ScheduleConfig
from hdlm.sampling.company import seats_of
from hdlm.sampling.gaps import Gaps, GapText, read_gaps
from hdlm.sampling.generate import check_finite, keys_of, seed_of
from hdlm.sampling.prompts import Row
from hdlm.sampling.request import Request, check_memory, gap_request
from hdlm.sampling.results import Stats
from hdlm.sampling.rng import LENGTH, SampleRNG
from hdlm.theory.entries import Quench
from hdlm.theory.layout import next_token_layout
from hdlm.theory.random import categorical

if TYPE_CHECKING:
    from hdlm.bundle import Bundle

MOST_TOKENS = 32  # of a gap that says nothing of its length
MOST_TEXTS = 64  # lengths, or combinations of lengths, that are tried
_MOST_GAPS = MOST_TEXTS.bit_length() - 1  # of open length: so that each can have two lengths


def infill_request(
    bundle: "Bundle",
    text: GapText,
    *,
    num_samples: int = 1,
    rate: float = 1.0,
    settings: DrawSettings | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Request:
    """`num_samples` ways to fill the gaps of a text; where their lengths are open, those are found first.

    `progress` is told texts done and texts to do, after every step.
    """
    size, context = bundle.config.model.vocab_size, bundle.config.context
    gaps = read_gaps(text, bundle.tokenizer, size, longest=context)
    settings = DrawSettings() if settings is None else settings
    if not any(gaps.open):
        return gap_request(bundle, text, num_samples=num_samples, rate=rate, settings=settings)
    lengths = open_lengths(bundle, gaps)
    rows = [gaps.row(one) for one in lengths]
    check_memory(num_samples, len(rows), max(map(len, rows)))
    seed = seed_of(settings)
    settings = replace(settings, seed=seed)

    def asked(row: Row, count: int) -> Request:
        return gap_request(bundle, row, num_samples=count, rate=rate, settings=settings)

    requests = [asked(row, num_samples) for row in rows]  # all of them, before one is filled: some may not fit
    scores, spent = _scored(bundle, requests, seed, progress)
    chosen = choose(scores, SampleRNG(seed, torch.tensor(keys_of([rows[0]] * num_samples)))).tolist()
    batches, keys = [], [0] * num_samples
    for choice in sorted(set(chosen)):
        numbers = [number for number, one in enumerate(chosen) if one == choice]
        for batch in asked(rows[choice], len(numbers)).batches:
            own = tuple(numbers[n] for n in batch.numbers)
            batches.append(replace(batch, numbers=own, gaps=lengths[choice]))
        # Chance goes by a sample's number among all, as when it was filled, not among those that have its length.
        found = keys_of([rows[choice]] * num_samples)
        for number in numbers:
            keys[number] = found[number]
    return Request(tuple(batches), requests[0].settings, tuple(keys), spent)


def open_lengths(bundle: "Bundle", gaps: Gaps) -> list[tuple[int, ...]]:
    """The lengths of all gaps that are tried together; refused where no likelihood can decide between them."""
    _check(bundle, gaps)
    return list(product(*_thinned(_lengths(bundle, gaps))))


def _scored(
    bundle: "Bundle", requests: Sequence[Request], seed: int, progress: Callable[[int, int], None] | None
) -> tuple[Tensor, Stats]:
    """Log-likelihoods [samples, lengths] of what requests of one length each come to, and the work that it took.

    The texts of all lengths are written side by side.
    """
    began, most = time.perf_counter(), requests[0].settings.batch_size
    seats = [seat for request in requests for seat in seats_of(bundle, request, seed)]
    company, waiting, done = backend.company(backend=requests[0].settings.backend), list(reversed(seats)), 0
    while waiting or len(company):
        while waiting and len(company) < most:
            company.join(waiting.pop())
        for seat in company.turn():
            check_finite(bundle, seat.run)
            done += seat.over
        if progress is not None:
            progress(done, len(seats))
    spent = sum((seat.run.stats for seat in seats), Stats())  # of texts that are not kept: they count no tokens
    spent = replace(spent, network_calls=company.calls, seconds=time.perf_counter() - began)
    written = [seat.written().tokens for seat in seats]
    return log_likelihoods(bundle, written, most, spent).view(len(requests), -1).T, spent


@torch.no_grad()
def log_likelihoods(bundle: "Bundle", rows: Sequence[list[int]], batch_size: int, stats: Stats) -> Tensor:
    """The exact log-likelihood of rows of tokens by autoregression, float64 [rows]; the work is added to `stats`."""
    began, found = time.perf_counter(), []
    for first in range(0, len(rows), batch_size):
        part = rows[first : first + batch_size]
        width = max(map(len, part))
        # What is settled looks to its left alone, so that what fills a shorter row is never seen.
        x = torch.tensor([[*row, *[0] * (width - len(row))] for row in part], device=bundle.device)
        there = torch.tensor([[column < len(row) for column in range(width)] for row in part], device=bundle.device)
        layout, t = next_token_layout(width - 1).to(bundle.device), torch.zeros(x.shape, device=bundle.device)
        slots = layout.fill(x, x, t, bundle.process, bos_id=bundle.config.bos_id)
        features, targets = bundle.model.trunk(slots).flatten(0, 1), x.flatten()
        log_p = [
            bundle.model.head(features[some])[:, : bundle.process.vocab_size]
            .double()
            .log_softmax(-1)
            .gather(-1, targets[some].unsqueeze(-1))
            for some in bundle.model.head.chunks(len(features))
        ]
        found.append(torch.where(there, torch.cat(log_p).view(x.shape), 0.0).sum(1))
        stats.add_call([(0, width, width)] * len(part), scored=x.numel(), cached=False)
    scores = torch.cat(found).cpu()
    if not scores.isfinite().all():
        raise bundle.not_finite()
    stats.seconds += time.perf_counter() - began
    return scores


def choose(scores: Tensor, rng: SampleRNG) -> Tensor:
    """Which length each sample has, of log-likelihoods [samples, lengths]: the best; of several samples, a draw."""
    if len(scores) == 1:
        return scores.argmax(1)
    return categorical(scores.softmax(1), rng.uniform(LENGTH, 0, torch.zeros(1, dtype=torch.int64)).squeeze(1))


def _check(bundle: "Bundle", gaps: Gaps) -> None:
    """Refuse what no likelihood can decide."""
    config, count = bundle.config, sum(gaps.open)
    if not config.shifted or not config.was_trained_on(ScheduleConfig.of(Quench(1)), 1):
        raise ValueError(
            "a gap without a number is not accepted: exact likelihoods decide how long it is, and this network did not "
            "learn to predict the next token; give a number, as in [[gap:8]]"
        )
    if gaps.open[-1] and not gaps.parts[-1]:
        tokenizer, end = bundle.tokenizer, config.eos_id
        mark = None if tokenizer is None or end is None else tokenizer.id_to_token(end)
        raise ValueError(
            "a gap without a number is not accepted at the end of a text: what stands right of it tells how long it "
            f"is; give a number, as in [[gap:8]]{f', or write {mark}, the end of text, behind it' if mark else ''}"
        )
    if count > _MOST_GAPS:
        raise ValueError(
            f"{count} gaps without a number are not accepted: {_MOST_GAPS} at most, since {MOST_TEXTS} texts are tried"
        )


def _lengths(bundle: "Bundle", gaps: Gaps) -> list[range]:
    """How long each gap may be: as it says, else 1 to MOST_TOKENS, as far as there is room.

    The room is what the context holds, or the widest window from the first gap on.
    """
    config, said = bundle.config, [lengths for lengths in gaps.lengths if lengths is not None]
    right, needed = sum(map(len, gaps.parts[1:])), sum(lengths[-1] for lengths in said)
    room = config.context - len(gaps.parts[0]) - right
    if needed > room:
        raise ValueError(
            f"a text of up to {config.context - room + needed} tokens is not accepted with a gap of open length: its "
            f"likelihood counts, and this network was trained on {config.context} tokens"
        )
    if not config.sees_all:
        room = min(room, config.widest_window - right)
    each = (room - needed) // max(1, len(gaps.lengths) - len(said))
    unsaid = range(1, max(1, min(MOST_TOKENS, each)) + 1)
    return [unsaid if lengths is None else lengths for lengths in gaps.lengths]


def _thinned(lengths: list[range]) -> list[list[int]]:
    """At most MOST_TEXTS combinations: of a gap with too many lengths some of them, evenly, with the first and last."""
    counts = [min(len(one), MOST_TEXTS) for one in lengths]
    while math.prod(counts) > MOST_TEXTS:
        counts[counts.index(max(counts))] -= 1
    kept = [
        [one[round(k * (len(one) - 1) / max(1, count - 1))] for k in range(count)]
        for one, count in zip(lengths, counts, strict=True)
    ]
    for some, one in zip(kept, lengths, strict=True):
        if len(some) < len(one):
            tried = ", ".join(map(str, some))
            warnings.warn(
                f"a gap of {one[0]} to {one[-1]} tokens is tried with {tried} alone: at most {MOST_TEXTS} texts are",
                stacklevel=2,
            )
    return kept
