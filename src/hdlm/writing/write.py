"""Writing with a bundle: batches go through the loop, tokens become text."""

import secrets
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from hdlm.config import ScheduleConfig, sampler
from hdlm.sampling.canvas import canvas_of
from hdlm.sampling.dice import Dice, row_keys
from hdlm.sampling.frame import Frame, Stats
from hdlm.sampling.generate import Run, generate
from hdlm.sampling.rule import Rule
from hdlm.theory.hyperschedule import Flat, Quench
from hdlm.writing.prompts import Row, decode
from hdlm.writing.request import Batch, Options, Request

if TYPE_CHECKING:
    from hdlm.bundle import Bundle

_EMPTY = 2**32  # what an empty place counts as in a row's fingerprint


@dataclass(frozen=True)
class Samples:
    """Texts and what they took. `tokens` and `text` are whole, prompt included, up to EOS; `new_text` begins
    where the first thing was written. `seed` and `settings`, what each was drawn with after the model's own defaults,
    give them again.
    """

    tokens: list[list[int]]
    prompt_lengths: list[int]
    ended: list[bool]
    settings: list[dict[str, Any]]
    stats: Stats
    seed: int
    bundle: "Bundle"

    @property
    def text(self) -> list[str]:
        """Whole texts."""
        return [decode(self.bundle.tokenizer, row) for row in self.tokens]

    @property
    def new_text(self) -> list[str]:
        """Texts without their prompts."""
        rows = zip(self.tokens, self.prompt_lengths, strict=True)
        return [decode(self.bundle.tokenizer, row[length:]) for row, length in rows]

    def to_json(self) -> list[dict]:
        """One object per sample."""
        named = self.bundle.tokenizer is not None
        rows, texts = [], self.text if named else []
        for i, tokens in enumerate(self.tokens):
            row = {"sample": i, "seed": self.seed, "ended": self.ended[i], "prompt_tokens": self.prompt_lengths[i]}
            row["settings"] = self.settings[i]
            rows.append(row | ({"text": texts[i]} if named else {}) | {"tokens": tokens})
        return rows


def write(
    bundle: "Bundle", request: Request, *, watched: bool = True, progress: Callable[[int], None] | None = None
) -> Generator[Frame, None, Samples]:
    """Take all batches through the loop, one frame a step; the samples are the generator's return value.

    Not `watched` there are no frames, and it is faster. `progress` is told of steps as they are done.
    """
    batches, options = request.batches, request.options
    seed = options.seed if options.seed is not None else secrets.randbits(62)
    count = sum(len(batch.rows) for batch in batches)
    by_number = {n: row for batch in batches for n, row in zip(batch.numbers, batch.rows, strict=True)}
    keys = row_keys([[_EMPTY if token is None else token for token in _asked(by_number[n])] for n in range(count)])
    samples: dict[int, tuple[list[int], int, bool, dict[str, Any]]] = {}
    total = Stats()
    for batch in batches:
        began = time.perf_counter()
        run = _start(bundle, batch, options, seed, [keys[n] for n in batch.numbers], watched)
        for frame in generate(run, progress=progress):
            handed = time.perf_counter()
            yield replace(frame, rows=batch.numbers)
            began += time.perf_counter() - handed  # that time was the viewer's
        used = _settings(request, batch, run)
        for place, (number, row) in enumerate(zip(batch.numbers, batch.rows, strict=True)):
            samples[number] = (*_finish(run.tokens[place].tolist(), row, run.eos_id), used)
        run.stats.seconds = time.perf_counter() - began
        run.stats.tokens = sum(_written(samples[n][0], by_number[n]) for n in batch.numbers)
        total = total + run.stats
    tokens, prompts, ended, settings = map(list, zip(*(samples[n] for n in range(count)), strict=True))
    return Samples(tokens, prompts, ended, settings, total, seed, bundle)


def _start(bundle: "Bundle", batch: Batch, options: Options, seed: int, keys: list[int], watched: bool) -> Run:
    config, process = bundle.config, bundle.process
    weight = bundle.model.embedding
    reading = config.reading(process)
    rule, threshold, own = options.sampler, options.threshold, config.sampling
    if rule is None and not isinstance(batch.schedule, Quench):
        rule = own.sampler
    if not isinstance(rule, Rule):
        threshold = own.threshold if threshold is None and rule == own.sampler else threshold
        rule = sampler(rule, reading, batch.schedule, eta=options.eta, threshold=threshold)
    dice = Dice(seed, torch.tensor(keys, device=weight.device), flawed=options.draws == "float32")
    return Run(
        bundle.model,
        canvas_of(batch.rows, batch.starts, process, dice, device=weight.device),
        batch.schedule,
        rule,
        reading,
        dice,
        shifted=config.shifted,
        bos_id=config.bos_id,
        eos_id=config.eos_id if options.stop_at_eos and batch.open_ended else None,
        shaping=options.shaping(),
        cached=options.cache,
        reads_noise=config.model.reads_noise,
        watched=watched,
        block=config.hyperschedule.width if config.block_causal and not isinstance(batch.schedule, Flat) else None,
        dtype=torch.promote_types(weight.dtype, torch.float32),
    )


def _settings(request: Request, batch: Batch, run: Run) -> dict[str, Any]:
    """What a batch was drawn with, by the words of `generate`; `steps` says how many its windows took at most."""
    rule = {"sampler": run.rule.name} | {name: getattr(run.rule, name, None) for name in ("eta", "threshold")}
    schedule = {"hyperschedule": vars(ScheduleConfig.of(request.schedule)), "steps": batch.schedule.steps}
    others = {name: getattr(request.options, name) for name in ("draws", "cache", "stop_at_eos")}
    return rule | vars(run.shaping) | schedule | others


def _finish(tokens: list[int], row: Row, eos_id: int | None) -> tuple[list[int], int, bool]:
    """A row's tokens up to its first new EOS, the length of its prompt, and whether it has ended."""
    prompt, tokens = row.index(None), tokens[: len(row)]
    if eos_id is None or eos_id not in tokens[prompt:]:
        return tokens, prompt, False
    return tokens[: tokens.index(eos_id, prompt)], prompt, True


def _asked(row: Row) -> Row:
    """A row up to its last given token: what it is known by, however many tokens are to follow."""
    given = [place for place, token in enumerate(row) if token is not None]
    return row[: given[-1] + 1] if given else []


def _written(tokens: list[int], row: Row) -> int:
    """How many of a row's tokens were not given."""
    return sum(given is None for given in row[: len(tokens)])


def exhaust(written: Generator[Frame, None, Samples], *viewers: Callable[[Frame], None]) -> Samples:
    """Run to the end, every frame shown to the viewers."""
    while True:
        try:
            frame = next(written)
        except StopIteration as end:
            return end.value
        for see in viewers:
            see(frame)


def frames(written: Generator[Frame, None, Samples]) -> Iterator[Frame]:
    """The frames alone."""
    yield from written
