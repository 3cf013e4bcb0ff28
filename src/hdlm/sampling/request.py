"""What a user asks for, as batches that the loop can take.

Rows of one batch may have prompts of several lengths, except where the prompt lies inside the window (flat schedules,
block-causal networks): there rows of equal length go together. What a row becomes does not depend on its company.
"""

import math
import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hdlm.config.sampling import DrawSettings
from hdlm.config.schedule import ScheduleConfig
from hdlm.sampling.gaps import GapText, gap_row
from hdlm.sampling.prompts import Prompt, Row, prompt_rows
from hdlm.sampling.results import Stats
from hdlm.theory import checks
from hdlm.theory.entries import Block, Flat
from hdlm.theory.hyperschedule import Hyperschedule
from hdlm.theory.numbers import fits_memory

if TYPE_CHECKING:
    from hdlm.bundle import Bundle


@dataclass(frozen=True)
class Batch:
    """Rows that go through the loop together: token rows with empty positions, where the schedule starts in each.

    `numbers`: which samples they are. `asked`: the schedule asked for, of new tokens alone, whatever window it takes.
    `open_ended`: the empty positions are at the end, so that a row may end before it is full. `gaps`: the lengths that
    were found for gaps of open length, and those of the gaps beside them.
    """

    numbers: tuple[int, ...]
    rows: tuple[Row, ...]
    starts: tuple[int, ...]
    schedule: Hyperschedule
    asked: Hyperschedule
    open_ended: bool = True
    gaps: tuple[int, ...] | None = None

    def share(self, rank: int, size: int) -> "Batch | None":
        """Every `size`-th row, from number `rank` on; None where that is none."""
        own = {name: getattr(self, name)[rank::size] for name in ("numbers", "rows", "starts")}
        return replace(self, **own) if own["numbers"] else None


@dataclass(frozen=True)
class Request:
    """All batches of one request. `keys`: of each row, where it is not known by its own text and number alone.

    `spent`: the work that was done to know what to ask for.
    """

    batches: tuple[Batch, ...]
    settings: DrawSettings
    keys: tuple[int, ...] | None = None
    spent: Stats = field(default_factory=Stats)

    def share(self, rank: int, size: int) -> "Request":
        """What process `rank` of `size` does of it."""
        return replace(self, batches=tuple(filter(None, (batch.share(rank, size) for batch in self.batches))))

    @property
    def steps(self) -> int:
        """Frames that it gives if no row ends early."""
        return sum(sum(1 for _ in batch.schedule.walk()) for batch in self.batches)


def prompt_request(
    bundle: "Bundle",
    prompt: Prompt = None,
    *,
    num_samples: int = 1,
    length: int | None = None,
    hyperschedule: Hyperschedule | None = None,
    kind: str | None = None,
    width: int | None = None,
    rate: float | None = None,
    settings: DrawSettings | None = None,
) -> Request:
    """`num_samples` continuations of each prompt, by a schedule or by the network's own with something changed."""
    prompts = prompt_rows(prompt, bundle.tokenizer, bundle.config.model.vocab_size)
    longest = max(map(len, prompts))
    if hyperschedule is None:
        if kind is None and settings is not None and settings.one_after_the_other:
            kind = "quench"
        length = bundle.config.default_length(longest) if length is None else checks.integer("length", length, low=1)
        check_memory(num_samples, len(prompts), longest + length)
        hyperschedule = bundle.config.schedule_for(length, kind=kind, width=width, rate=rate).build()
    elif not isinstance(hyperschedule, Hyperschedule):
        raise ValueError(f"hyperschedule = {hyperschedule!r} is not accepted: it must be a Hyperschedule or None")
    elif (kind, width, rate) != (None, None, None) or length not in (None, hyperschedule.length):
        raise ValueError(f"{hyperschedule!r} has a length, width and rate of its own: give it alone")
    check_memory(num_samples, len(prompts), longest + hyperschedule.length)
    rows = [row for row in prompts for _ in range(num_samples)]
    settings = _resolved(bundle, settings, hyperschedule)
    batches = _prompt_batches(bundle, rows, hyperschedule, settings.batch_size)
    return Request(tuple(batches), settings)


def gap_request(
    bundle: "Bundle", text: GapText, *, num_samples: int = 1, rate: float = 1.0, settings: DrawSettings | None = None
) -> Request:
    """`num_samples` ways to fill the gaps of a text, each of one length; `open_gaps.py` finds lengths that are open."""
    row = gap_row(text, bundle.tokenizer, bundle.config.model.vocab_size, longest=bundle.config.context)
    check_memory(num_samples, 1, len(row))
    rows = [row] * num_samples
    missing = row.count(None)
    wanted = missing / checks.positive("rate", rate)
    if math.isinf(wanted):
        raise ValueError(f"rate = {rate} is not accepted: {missing} tokens at that rate have no number of steps")
    steps = max(1, round(wanted))
    schedule = Flat(missing, missing / steps)
    settings = _resolved(bundle, settings, schedule)
    return Request(tuple(_gap_batches(bundle, rows, schedule, batch_size=settings.batch_size)), settings)


def check_memory(num_samples: int, prompts: int, length: int) -> None:
    """Refuse more texts, or longer ones, than there is room for: 8 bytes a token as asked for, and 8 as written."""
    count = checks.integer("num_samples", num_samples, low=1) * prompts
    fits_memory(f"{count:,} samples of {length:,} tokens", 16 * count * length)


def _resolved(bundle: "Bundle", settings: DrawSettings | None, schedule: Hyperschedule) -> DrawSettings:
    """What is asked for, and where nothing is, what the model wishes."""
    if not schedule.autoregressive:
        bundle.check_masks(repr(schedule))
    asked = settings if settings is not None else DrawSettings()
    return asked.over(bundle.config.sampling, autoregressive=schedule.autoregressive)


def _prompt_batches(
    bundle: "Bundle", prompts: Sequence[Sequence[int]], schedule: Hyperschedule, batch_size: int
) -> list[Batch]:
    """Continuations of prompts: settled before the window, or given inside it."""
    config, length = bundle.config, schedule.length
    block = config.hyperschedule.width if config.block_causal else None
    if block is not None and not schedule.fits_blocks(block):
        raise ValueError(
            f"{schedule!r} is not accepted: this network's settled tokens see whole blocks of {block}, so it writes by "
            f"blocks of {block} only"
        )
    total = max(map(len, prompts)) + length
    if not schedule.has_prefix and schedule.with_prompt(0) is not None and total > config.context:
        raise ValueError(
            f"a prompt of {total - length} tokens and {length} new ones are not accepted: {schedule.name} has one "
            f"window, and this network was trained on {config.context} tokens"
        )
    _warn_untrained(bundle, schedule, total)
    groups: dict[int, list[int]] = defaultdict(list)
    inside = schedule.with_prompt(0, block=block) is not None
    for number, prompt in enumerate(prompts):
        groups[len(prompt) if inside else 0].append(number)
    batches = []
    for numbers in groups.values():
        start, along = None, schedule
        if inside:
            given = len(prompts[numbers[0]])
            start = given // block * block if block is not None and schedule.has_prefix else 0
            along = schedule.with_prompt(given - start, block=block)
            assert along is not None
        for chosen in _parts(numbers, batch_size):
            rows = tuple([*prompts[n], *[None] * length] for n in chosen)
            starts = tuple(len(prompts[n]) if start is None else start for n in chosen)
            batches.append(Batch(chosen, rows, starts, along, schedule))
    return batches


def _parts(numbers: Sequence[int], size: int) -> list[tuple[int, ...]]:
    return [tuple(numbers[i : i + size]) for i in range(0, len(numbers), size)]


def _warn_untrained(bundle: "Bundle", schedule: Hyperschedule, total: int) -> None:
    """Say so, once, where a schedule asks a network for what it never saw in training; `total` counts the prompt."""
    config = bundle.config
    if total > config.context:
        warnings.warn(
            f"{total} tokens are more than the {config.context} that this network was trained on", stacklevel=2
        )
    if not config.was_trained_on(ScheduleConfig.of(schedule), total):
        names = ", ".join(one.name for one in config.schedules)
        names += " and next-token prediction" if config.next_token else ""
        warnings.warn(
            f"{schedule!r} is outside what this network was trained on ({names}): expect worse text", stacklevel=2
        )


def _gap_batches(bundle: "Bundle", rows: Sequence[Row], asked: Hyperschedule, *, batch_size: int) -> list[Batch]:
    """Rows with gaps, each with all that is right of its first gap in one window."""
    config, first, length = bundle.config, rows[0].index(None), len(rows[0])
    whole = config.sees_all and length <= config.context
    start = 0 if whole else first
    if config.block_causal and not whole and config.hyperschedule.width is not None:
        start = first // config.hyperschedule.width * config.hyperschedule.width
    if not whole:
        _check_sight(bundle, length - start, length)
    count, steps = length - start, asked.steps
    schedule = Flat(count, count / steps) if whole else Block(count, count, count / steps)
    return [
        Batch(numbers, tuple(rows[n] for n in numbers), (start,) * len(numbers), schedule, asked, open_ended=False)
        for numbers in _parts(range(len(rows)), batch_size)
    ]


def _check_sight(bundle: "Bundle", needed: int, length: int) -> None:
    """Refuse a gap whose right side no window of this network can hold."""
    config = bundle.config
    if config.sees_all:
        raise ValueError(f"a text of {length} tokens is not accepted: this network sees {config.context} at most")
    if config.widest_window <= 1:
        raise ValueError(
            "this network cannot fill gaps: it reads from left to right and never sees what is right of one"
        )
    if needed > config.widest_window:
        raise ValueError(
            f"the gap cannot be filled: it and all that is right of it are {needed} tokens, and this network's "
            f"widest window holds {config.widest_window}; what lies beyond would not be seen"
        )
