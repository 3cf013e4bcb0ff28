"""The exact likelihood of decoding in an order that the network chooses, or that is given.

Where a step settles one position, and which one follows from the network's view and not from what is drawn there, a
text comes about in one way only: its probability is the product of what the network gave to each of its tokens when
that was settled. So the loop that writes is walked with the text's own tokens in place of draws, and what the network
gave them is added up. A bound averages over all orders; this is the number of the decoder that runs. Knows rows of
tokens, no text.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hdlm.config.sampling import DrawSettings
from hdlm.evaluate.bound import Bound
from hdlm.evaluate.likelihood import summarise
from hdlm.processes import ALONE, World
from hdlm.sampling import loop
from hdlm.sampling.loop import Run
from hdlm.sampling.results import LogProbs
from hdlm.sampling.rng import SampleRNG, StepRandom
from hdlm.sampling.rules import Certain, LeftToRight
from hdlm.theory import checks, numbers
from hdlm.theory.hyperschedule import Hyperschedule

if TYPE_CHECKING:
    from hdlm.bundle import Bundle

ORDERS = {rule.name: rule for rule in (Certain, LeftToRight)}


@dataclass(frozen=True)
class _Told(StepRandom):
    """Draws that come out as they were told: `truth` [batch, W]."""

    truth: Tensor | None = None

    def draw(self, weights: Tensor) -> Tensor:
        assert self.truth is not None
        return self.truth


class _Teacher(SampleRNG):
    """Random numbers of a loop that is to write `truth` [batch, length of the schedule]."""

    def __init__(self, truth: Tensor) -> None:
        super().__init__(0, torch.arange(len(truth), device=truth.device))
        self._truth = truth

    def step(self, number: int, positions: Tensor) -> StepRandom:
        nothing = torch.zeros(len(self._truth), len(positions), dtype=torch.float64, device=positions.device)
        return _Told(nothing, nothing, truth=self._truth[:, positions])


def ordered_likelihood(
    bundle: "Bundle",
    rows: Sequence[Sequence[int]],
    order: str,
    *,
    prefix: int = 0,
    hyperschedule: Hyperschedule | None = None,
    batch_size: int = 8,
    progress: Callable[[int, int], None] | None = None,
    world: World = ALONE,
) -> Bound:
    """The exact negative log-likelihood of rows of tokens, after their first `prefix` tokens, which are given.

    `order`: "certain" settles where the network is surest, "left-to-right" the leftmost position of a window.
    `hyperschedule`: another than the network's own; its rate counts as 1. `progress` is told rows done and rows to do.
    `world`: this process among others, of which each scores its share.
    """
    numbers.choice("order", order, ORDERS)
    if not rows or any(len(row) <= prefix for row in rows):
        raise ValueError("there is no text to score: every row needs at least one token after what is given")
    schedule = bundle.hyperschedule if hyperschedule is None else hyperschedule
    if not bundle.process.masks_only or bundle.config.reading(bundle.process).gives_scores:
        raise ValueError(
            f"order = {order!r} is not accepted for {bundle.process!r}: only a network of clean tokens whose noise is "
            "MASK alone has a likelihood by order"
        )
    if schedule.autoregressive:
        raise ValueError(f"order = {order!r} is not accepted for {schedule!r}: its likelihood is exact without one")
    bundle.check_masks(repr(schedule))
    if not schedule.has_prefix and prefix:
        raise ValueError(f"prefix = {prefix} is not accepted for {schedule!r}: its one window holds everything")
    began, done = time.perf_counter(), 0
    nats = torch.zeros(1, len(rows), dtype=torch.float64)
    groups: dict[int, list[int]] = {}
    own = range(world.rank, len(rows), world.size)
    for number in own:
        groups.setdefault(len(rows[number]), []).append(number)
    for length, group in groups.items():
        for start in range(0, len(group), checks.integer("batch_size", batch_size, low=1)):
            chosen = group[start : start + batch_size]
            x0 = torch.tensor([list(rows[number]) for number in chosen], device=bundle.device)
            checks.tokens("rows", x0, bundle.config.model.vocab_size)
            nats[0, chosen] = _nats(bundle, x0, order, prefix, schedule.resized(length - prefix)).cpu()
            done += len(chosen)
            if progress is not None:
                progress(done, len(own))
    if world.size > 1:
        nats = world.sum(nats.to(bundle.device)).cpu()
    tokens = torch.tensor([len(row) - prefix for row in rows], dtype=torch.float64)
    name = f"exact negative log-likelihood, {order}"
    return summarise(name, schedule.name, nats, tokens, time.perf_counter() - began)


def _nats(bundle: "Bundle", x0: Tensor, order: str, prefix: int, schedule: Hyperschedule) -> Tensor:
    """-log p of rows x0 [batch, length] of one length: [batch]."""
    config, mask = bundle.config, bundle.process.mask_id
    assert mask is not None
    given = (torch.arange(x0.shape[1], device=x0.device) < prefix).expand(x0.shape)
    run = Run(
        bundle.model,
        config.reading(bundle.process),
        ORDERS[order](),
        schedule,
        _Teacher(x0[:, prefix:]),
        torch.where(given, x0, mask),
        given,
        (prefix,) * len(x0),
        DrawSettings(temperature=1.0, top_p=1.0),
        shifted=config.shifted,
        bos_id=config.bos_id,
        block=config.hyperschedule.width if config.block_causal and schedule.has_prefix else None,
        dtype=torch.promote_types(bundle.model.embedding.dtype, torch.float32),
        logprobs=True,
    )
    said = LogProbs(run.tokens)
    for frame in loop.sample(run, loop.Predictor(run)):
        if int(frame.window_changed.sum(1).max()) > 1:
            raise ValueError(
                f"{schedule!r} is not accepted: a step of it settles several positions, whose draws do not know of "
                "each other; an exact likelihood needs one a step, as linear noise has it"
            )
        said.see(frame)
    return -said.values[:, prefix:].sum(1)
