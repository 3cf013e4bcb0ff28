"""Generation with a bundle: batches go through the loop, tokens become text."""

import functools
import secrets
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hdlm import backend
from hdlm.config.build import build_rule
from hdlm.config.sampling import OF_RULES, DrawSettings
from hdlm.processes import ALONE, World
from hdlm.sampling.loop import Run
from hdlm.sampling.prompts import Row
from hdlm.sampling.request import Batch, Request
from hdlm.sampling.results import Frame, LogProbs, Samples, Stats, Wording
from hdlm.sampling.rng import START, SampleRNG, row_keys
from hdlm.sampling.rules import MOST_DRAFTED, Autoregressive, Speculative
from hdlm.theory.process import Process
from hdlm.theory.random import uniform_token
from hdlm.theory.reading import NextTokenReading

if TYPE_CHECKING:
    from hdlm.bundle import Bundle

FEW_TEXTS = 2  # at once, up to which speculation pays on a CPU (docs/sampling.md)
_EMPTY = 2**32  # what an empty position counts as in a row's fingerprint


@dataclass(frozen=True)
class Written:
    """One text that is done, as `Samples` has it: `positions` are those that were not given."""

    tokens: list[int]
    prompt_length: int
    ended: bool
    settings: dict[str, Any]
    positions: list[int]
    logprobs: list[float]


def generate(
    bundle: "Bundle",
    request: Request,
    *,
    watched: bool = True,
    logprobs: bool = False,
    progress: Callable[[int], None] | None = None,
    world: World = ALONE,
) -> Generator[Frame, None, Samples]:
    """Take all batches through the loop, one frame a step; the samples are the generator's return value.

    Not `watched` there may be no frames, and it is faster. `logprobs`: samples and frames have them; then the reference
    loop runs, whatever the backend, for it asks the network about every token. `progress` is told of steps as they are
    done. `world`: this process among others, of which each writes its share of every batch, and all have the samples
    in the end; frames and `progress` are those of its share. They go by one seed, which must be said.
    """
    settings = request.settings
    assert world.size == 1 or settings.seed is not None
    seed = seed_of(settings)
    by_number = {n: row for batch in request.batches for n, row in zip(batch.numbers, batch.rows, strict=True)}
    numbers = range(len(by_number))
    keys = keys_of([by_number[n] for n in numbers]) if request.keys is None else request.keys
    samples: dict[int, Written] = {}
    chosen = "reference" if logprobs else settings.backend
    total = request.spent if world.is_main else Stats()
    for batch in request.share(world.rank, world.size).batches:
        began = time.perf_counter()
        run = start_run(bundle, batch, request, seed, [keys[n] for n in batch.numbers], logprobs=logprobs)
        said = LogProbs(run.tokens) if logprobs else None
        wording = Wording(bundle.tokenizer, tuple(map(len, batch.rows)), bundle.process.mask_id, run.eos_id)
        for frame in backend.sampler(run, backend=chosen, watched=watched or logprobs, progress=progress):
            check_finite(bundle, run)
            if said is not None:
                said.see(frame)
            handed = time.perf_counter()
            yield replace(frame, rows=batch.numbers, wording=wording)
            began += time.perf_counter() - handed  # that time was the viewer's
        check_finite(bundle, run)
        for index, number in enumerate(batch.numbers):
            samples[number] = written(run, batch, index, said)
        run.stats.seconds = time.perf_counter() - began
        run.stats.tokens = sum(len(samples[n].positions) for n in batch.numbers)
        total = total + run.stats
    if world.size > 1:
        parts = world.gather((samples, total))
        samples = {number: text for part, _ in parts for number, text in part.items()}
        total = functools.reduce(Stats.beside, (stats for _, stats in parts))
    return as_samples([samples[n] for n in numbers], total, seed, bundle, logprobs=logprobs)


def written(run: Run, batch: Batch, index: int, said: LogProbs | None) -> Written:
    """A row of a batch whose run is over; `said`: the log-probabilities that were kept of it."""
    row = batch.rows[index]
    tokens, prompt, ended = finish_row(run.tokens[index].tolist(), row, run.eos_id)
    positions = [position for position in range(len(tokens)) if row[position] is None]
    found = [] if said is None else said.values[index][positions].tolist()
    return Written(tokens, prompt, ended, _record(run.settings, batch, run), positions, found)


def as_samples(texts: Sequence[Written], stats: Stats, seed: int, bundle: "Bundle", *, logprobs: bool) -> Samples:
    """Texts as a user gets them, in this order."""
    values = [text.logprobs for text in texts] if logprobs else None
    columns = ([getattr(text, name) for text in texts] for name in ("tokens", "prompt_length", "ended", "settings"))
    tokens, prompts, ended, settings = columns
    written = [text.positions for text in texts]
    return Samples(tokens, prompts, ended, settings, written, values, stats, seed, bundle.tokenizer)


def start_run(
    bundle: "Bundle",
    batch: Batch,
    request: Request,
    seed: int,
    keys: Sequence[int],
    *,
    logprobs: bool = False,
    likeliest: int = 0,
    beside: int = 0,
) -> Run:
    """A batch at its beginning, with all that the loop needs. `beside`: other texts that are written meanwhile."""
    config, settings, schedule = bundle.config, request.settings, batch.schedule
    weight = bundle.model.embedding
    reading = config.reading(bundle.process)
    rule = build_rule(settings, reading, schedule)
    drafts = reading if isinstance(rule, Speculative) and _pays(rule, len(batch.rows) + beside, weight.device) else None
    if schedule.autoregressive and config.shifted:  # from full noise to clean in one step: any rule is one draw
        reading, rule = NextTokenReading(bundle.process), rule if isinstance(rule, Speculative) else Autoregressive()
    rng = SampleRNG(seed, torch.tensor(keys, device=weight.device), flawed=settings.precision == "float32")
    tokens, given = initial_tokens(batch.rows, batch.starts, bundle.process, rng)
    if isinstance(rule, Speculative):
        _check_speculation(bundle, settings)
    if drafts is not None:
        spare = (0, 2 * (MOST_DRAFTED + 1))  # what is drafted behind a text's end is never kept
        tokens, given = F.pad(tokens, spare, value=bundle.process.mask_id), F.pad(given, spare)
    return Run(
        bundle.model,
        reading,
        rule,
        schedule,
        rng,
        tokens,
        given,
        batch.starts,
        settings,
        shifted=config.shifted,
        bos_id=config.bos_id,
        eos_id=config.eos_id if settings.stop_at_eos and batch.open_ended else None,
        block=config.hyperschedule.width if config.block_causal and schedule.has_prefix else None,
        dtype=torch.promote_types(weight.dtype, torch.float32),
        logprobs=logprobs,
        likeliest=likeliest,
        drafts=drafts,
    )


def _pays(rule: Speculative, rows: int, device: torch.device) -> bool:
    """Whether to draft at all where nothing is said of how: many texts at once fill a call without drafts.

    On a GPU calls of plain autoregression are recorded, and those of speculation are not.
    """
    asked = rule.draft is not None or rule.ahead is not None
    return asked or (rows <= FEW_TEXTS and device.type == "cpu")


def _check_speculation(bundle: "Bundle", settings: DrawSettings) -> None:
    """Refuse networks that cannot verify a draft, and draws that two laws cannot share."""
    if not bundle.config.shifted:
        raise ValueError("sampler 'speculative' does not fit this network: it is aligned and has no next token to draw")
    bundle.check_masks("sampler 'speculative'")
    if settings.precision != "float64":
        raise ValueError(f"precision = {settings.precision!r} is not accepted for sampler 'speculative': float64 only")


def initial_tokens(
    rows: Sequence[Row], starts: Sequence[int], process: Process, rng: SampleRNG
) -> tuple[Tensor, Tensor]:
    """What generation starts from, of rows in which None is to be filled: tokens and which are given, [batch, length].

    Empty positions hold MASK, or where the process never masks a token of its prior.
    """
    width = max(len(row) for row in rows)
    values = torch.tensor([[-1 if x is None else x for x in [*row, *[None] * (width - len(row))]] for row in rows])
    values = values.to(rng.device)
    given = values >= 0
    if process.starts_masked:
        assert process.mask_id is not None
        return torch.where(given, values, process.mask_id), given
    # Chance goes by the position within the schedule, so that a row's text does not depend on its neighbours.
    index = torch.arange(width, device=values.device)
    shift = torch.tensor(starts, device=values.device).unsqueeze(1)
    u = rng.uniform(START, 0, index).gather(1, (index - shift).clamp(min=0))
    return torch.where(given, values, uniform_token(u, process.vocab_size)), given


def seed_of(settings: DrawSettings) -> int:
    """The seed that is asked for, or one that nobody knows."""
    return settings.seed if settings.seed is not None else secrets.randbits(32)


def keys_of(rows: Sequence[Row]) -> list[int]:
    """What chance goes by in each row: its own text and gaps, and its number among rows that have the same."""
    return row_keys([[_EMPTY if token is None else token for token in _asked(row)] for row in rows])


def check_finite(bundle: "Bundle", run: Run) -> None:
    """Refuse what a network wrote whose outputs were not finite. Waits for the device, as whoever reads tokens does."""
    if run.witness.isnan():
        raise bundle.not_finite()


def _record(asked: DrawSettings, batch: Batch, run: Run) -> dict[str, Any]:
    """What a batch was drawn with, by the words of `Bundle.generate`; `steps`: how many its windows took at most."""
    rule = {"sampler": run.rule.name} | {name: getattr(run.rule, name, None) for name in OF_RULES}
    names = ("temperature", "top_k", "top_p", "precision", "cache", "stop_at_eos")
    settings = {name: getattr(asked, name) for name in names}
    gaps = {} if batch.gaps is None else {"gaps": list(batch.gaps)}
    return rule | settings | {"hyperschedule": batch.asked.settings, "steps": batch.schedule.steps} | gaps


def finish_row(tokens: list[int], row: Row, eos_id: int | None) -> tuple[list[int], int, bool]:
    """A row's tokens up to its first new EOS, the length of its prompt, and whether it has ended."""
    prompt, tokens = row.index(None), tokens[: len(row)]
    if eos_id is None or eos_id not in tokens[prompt:]:
        return tokens, prompt, False
    return tokens[: tokens.index(eos_id, prompt)], prompt, True


def _asked(row: Row) -> Row:
    """A row up to its last given token: what it is known by, however many tokens are to follow."""
    given = [index for index, token in enumerate(row) if token is not None]
    return row[: given[-1] + 1] if given else []


def exhaust(generation: Generator[Frame, None, Samples], *viewers: Callable[[Frame], None]) -> Samples:
    """Run to the end, every frame shown to the viewers."""
    while True:
        try:
            frame = next(generation)
        except StopIteration as end:
            return end.value
        for see in viewers:
            see(frame)
