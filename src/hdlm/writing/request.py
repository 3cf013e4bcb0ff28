"""What a user asks for, as batches that the loop can take and settings of the draw.

Rows of one batch may have prompts of several lengths, except where the prompt lies inside the window (flat schedules,
block-causal networks): there rows of equal length go together. What a row becomes does not depend on its company.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from hdlm.config import DRAWS
from hdlm.sampling.rule import Rule
from hdlm.sampling.shaping import Shaping
from hdlm.theory import checks
from hdlm.theory.hyperschedule import Block, Flat, Hyperschedule
from hdlm.writing.prompts import Prompt, Row, gap_row, prompt_rows
from hdlm.writing.schedules import choose_schedule, context, default_length, warn_untrained

if TYPE_CHECKING:
    from hdlm.bundle import Bundle

BATCH_SIZE = 32


@dataclass(frozen=True)
class Options:
    """How to draw: the step rule by name or as an object, and everything else that is not the schedule."""

    sampler: str | Rule | None = None
    eta: float | None = None
    threshold: float | None = None
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    cache: bool = True
    draws: str = "float64"
    stop_at_eos: bool = True
    seed: int | None = None
    batch_size: int = BATCH_SIZE

    def __post_init__(self) -> None:
        if self.draws not in DRAWS:
            raise ValueError(f"draws = {self.draws!r} is not accepted: it must be one of {', '.join(DRAWS)}")
        if self.seed is not None:
            checks.integer("seed", self.seed, low=0, high=2**63 - 1)
        checks.integer("batch_size", self.batch_size, low=1)
        if isinstance(self.sampler, Rule) and (self.eta is not None or self.threshold is not None):
            raise ValueError(f"eta and threshold are not accepted beside {self.sampler!r}: it has its own")
        self.shaping()

    def shaping(self) -> Shaping:
        """Temperature and truncation."""
        return Shaping(self.temperature, self.top_k, self.top_p)


@dataclass(frozen=True)
class Batch:
    """Rows that go through the loop together: token rows with empty places, where the schedule starts in each.

    `open_ended`: the empty places are at the end, so that a row may end before it is full.
    """

    numbers: tuple[int, ...]
    rows: tuple[Row, ...]
    starts: tuple[int, ...]
    schedule: Hyperschedule
    open_ended: bool = True


@dataclass(frozen=True)
class Request:
    """All batches of one request. `schedule`: the one asked for, of new tokens alone, whatever windows it takes."""

    batches: tuple[Batch, ...]
    options: Options
    schedule: Hyperschedule

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
    **options: Any,
) -> Request:
    """`num_samples` continuations of each prompt, by a schedule or by the network's own with something changed."""
    checked = _options(bundle, options)
    rows = prompt_rows(prompt, bundle.tokenizer, bundle.config.model.vocab_size)
    rows = [row for row in rows for _ in range(checks.integer("num_samples", num_samples, low=1))]
    if hyperschedule is None:
        length = default_length(bundle.config, max(map(len, rows))) if length is None else length
        hyperschedule = choose_schedule(bundle.config, length, kind=kind, width=width, rate=rate)
    elif not isinstance(hyperschedule, Hyperschedule):
        raise ValueError(f"hyperschedule = {hyperschedule!r} is not accepted: it must be a Hyperschedule or None")
    elif (kind, width, rate) != (None, None, None) or length not in (None, hyperschedule.length):
        raise ValueError(f"{hyperschedule!r} has a length, width and rate of its own: give it alone")
    return Request(tuple(_prompt_batches(bundle, rows, hyperschedule, checked.batch_size)), checked, hyperschedule)


def gap_request(bundle: "Bundle", text: str, *, num_samples: int = 1, rate: float = 1.0, **options: Any) -> Request:
    """`num_samples` ways to fill the gaps of a text."""
    checked = _options(bundle, options)
    row = gap_row(text, bundle.tokenizer, longest=context(bundle.config))
    rows = [row] * checks.integer("num_samples", num_samples, low=1)
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < float("inf"):
        raise ValueError(f"rate = {rate!r} is not accepted: it must be a finite number above 0")
    missing = row.count(None)
    steps = max(1, round(missing / rate))
    batches = _gap_batches(bundle, rows, steps=steps, batch_size=checked.batch_size)
    return Request(tuple(batches), checked, _flat(missing, steps))


def _options(bundle: "Bundle", given: dict[str, Any]) -> Options:
    """The options asked for; draws are shaped as the model has it where nothing is said of that."""
    unknown = sorted(set(given) - set(Options.__dataclass_fields__))
    if unknown:
        accepted = ", ".join(Options.__dataclass_fields__)
        raise ValueError(f"{unknown[0]} is no setting of generation: it may be one of {accepted}")
    own = {f.name: getattr(bundle.config.sampling, f.name) for f in fields(Shaping) if given.get(f.name) is None}
    return Options(**(given | own))


def _prompt_batches(
    bundle: "Bundle", prompts: Sequence[Sequence[int]], schedule: Hyperschedule, batch_size: int
) -> list[Batch]:
    """Continuations of prompts: settled before the window, or given inside it."""
    length = schedule.length
    if bundle.config.block_causal:
        _check_blocks(bundle, schedule)
    groups: dict[int, list[int]] = defaultdict(list)
    inside = isinstance(schedule, Flat) or bundle.config.block_causal
    for number, prompt in enumerate(prompts):
        groups[len(prompt) if inside else 0].append(number)
    warn_untrained(bundle.config, schedule, max(map(len, prompts)) + length)
    batches = []
    for numbers in groups.values():
        longest = max(len(prompts[n]) for n in numbers)
        start, along = None, schedule
        if isinstance(schedule, Flat):
            limit = context(bundle.config)
            if longest + length > limit:
                raise ValueError(
                    f"a prompt of {longest} tokens and {length} new ones are not accepted: a flat schedule has one "
                    f"window, and this network was trained on {limit} tokens"
                )
            start, along = 0, _flat(longest + length, schedule.max_level)
        elif bundle.config.block_causal and isinstance(schedule, Block):
            # Settled tokens see their own block whole: windows must start where blocks do.
            width = _block_width(bundle)
            start = longest // width * width
            # A block longer than the text is cut at the text's end, and its steps stay those of the whole block.
            count, rate = longest - start + length, schedule.width / schedule.max_level
            along = Block(count, min(width, count), rate * min(width, count) / width)
        for i in range(0, len(numbers), batch_size):
            chosen = tuple(numbers[i : i + batch_size])
            rows = tuple([*prompts[n], *[None] * length] for n in chosen)
            starts = tuple(len(prompts[n]) if start is None else start for n in chosen)
            batches.append(Batch(chosen, rows, starts, along))
    return batches


def _gap_batches(bundle: "Bundle", rows: Sequence[Row], *, steps: int, batch_size: int) -> list[Batch]:
    """Rows with gaps, each with all that is right of its first gap in one window."""
    first, length = rows[0].index(None), len(rows[0])
    trained = (bundle.config.hyperschedule, *bundle.config.mixture)
    flat = any(s.kind == "flat" for s in trained) and length <= context(bundle.config)
    start = 0 if flat else first
    if bundle.config.block_causal and not flat:
        start = first // _block_width(bundle) * _block_width(bundle)
    if not flat:
        _check_sight(bundle, length - start, [s.width for s in trained if s.width], flat=length)
    schedule = _flat(length - start, steps) if flat else Block(length - start, length - start, (length - start) / steps)
    numbers = range(len(rows))
    return [
        Batch(
            tuple(numbers[i : i + batch_size]),
            tuple(rows[i : i + batch_size]),
            (start,) * len(rows[i : i + batch_size]),
            schedule,
            open_ended=False,
        )
        for i in range(0, len(rows), batch_size)
    ]


def _check_sight(bundle: "Bundle", needed: int, widths: list[int], *, flat: int) -> None:
    """Refuse a gap whose right side no window of this network can hold."""
    widest = max(widths, default=0)
    if any(s.kind == "flat" for s in (bundle.config.hyperschedule, *bundle.config.mixture)):
        raise ValueError(f"a text of {flat} tokens is not accepted: this network sees {context(bundle.config)} at most")
    if widest <= 1:
        raise ValueError(
            "this network cannot fill gaps: it reads from left to right and never sees what is right of one"
        )
    if needed > widest:
        raise ValueError(
            f"the gap cannot be filled: it and all that is right of it are {needed} tokens, and this network's "
            f"widest window holds {widest}; what lies beyond would not be seen"
        )


def _block_width(bundle: "Bundle") -> int:
    width = bundle.config.hyperschedule.width
    assert width is not None
    return width


def _check_blocks(bundle: "Bundle", schedule: Hyperschedule) -> None:
    """Refuse windows that do not lie where a block-causal network's blocks do."""
    width = _block_width(bundle)
    blocks = isinstance(schedule, Block) and schedule.width in (width, schedule.length)
    if not blocks and not isinstance(schedule, Flat):
        raise ValueError(
            f"{schedule!r} is not accepted: this network's settled tokens see whole blocks of {width}, so it writes by "
            f"blocks of {width} only"
        )


def _flat(length: int, steps: int) -> Flat:
    """A flat schedule of so many steps, whatever its length."""
    return Flat(length, length / steps)
