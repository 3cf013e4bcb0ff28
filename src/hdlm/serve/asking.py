"""What a body asks for, as the library's own objects: checked, within the limits, and ready to be written.

The same words as `Bundle.generate`, but where OpenAI has others. Knows no HTTP but the fields that it refuses by.
"""

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hdlm.config.sampling import MAX_SEED, DrawSettings
from hdlm.sampling.company import Seat, seats_of
from hdlm.sampling.generate import seed_of
from hdlm.sampling.prompts import prompt_rows
from hdlm.sampling.request import Request, prompt_request
from hdlm.serve.limits import Limits
from hdlm.serve.refusal import Fields, RefusalError, about, listed, whole
from hdlm.theory import numbers
from hdlm.theory.custom import Custom
from hdlm.theory.level_matrix import check_levels

if TYPE_CHECKING:
    from hdlm.bundle import Bundle

HYPERSCHEDULES = {"ar": "quench", "block": "block", "slide": "slide", "flat": "flat", "custom": Custom.kind}
_FLOOR = 64  # tokens that a text's steps are counted for at least
_building = threading.Lock()  # warnings are caught for the whole process: one request at a time is built


@dataclass(frozen=True)
class Decoding:
    """How to decode: arguments of `prompt_request` for the hyperschedule, and the settings of a draw."""

    schedule: dict[str, Any]
    settings: DrawSettings


@dataclass
class Asked:
    """A request that can be met: its seed is drawn and its seats are taken."""

    model: str
    bundle: "Bundle"
    request: Request
    seats: list[Seat]
    prompt_tokens: int  # of each prompt once
    warnings: list[str] = field(default_factory=list)
    stop: tuple[str, ...] = ()

    @property
    def seed(self) -> int:
        """What gives the same again."""
        assert self.request.settings.seed is not None
        return self.request.settings.seed


def decoding(fields: Fields, *, filling: bool = False) -> Decoding:
    """The fields of how to decode; `filling`: gaps, which have a hyperschedule of their own."""
    said: dict[str, Any] = {
        "temperature": fields.get("temperature", lambda name, value: numbers.positive(name, value, zero=True)),
        "top_p": fields.get("top_p", _share),
        "top_k": fields.get("top_k", whole(1)),
        "seed": fields.get("seed", _seed),
        "sampler": fields.get("sampler", _word),
        "eta": fields.get("eta", numbers.fraction),
        "threshold": fields.get("threshold", lambda name, value: numbers.positive(name, value, zero=True)),
    }
    rate = fields.get("rate", numbers.positive)
    if filling:
        with about(*said):
            return Decoding({"rate": 1.0 if rate is None else rate}, DrawSettings(**said))
    said["stop_at_eos"] = not fields.flag("ignore_eos")
    kind, width = fields.get("hyperschedule", _kind), fields.get("width", whole(1))
    levels = fields.get("levels", check_levels)
    schedule: dict[str, Any] = {"kind": kind, "width": width, "rate": rate}
    if levels is not None:
        if {kind, width, rate} - {None, Custom.kind}:
            raise RefusalError(
                400, "levels are a hyperschedule of their own: give no other, nor width or rate", "levels"
            )
        with about("levels"):
            schedule = {"hyperschedule": Custom(levels)}
    if fields.flag("speculate"):
        if said["sampler"] is not None or {kind, width, rate} - {None, HYPERSCHEDULES["ar"]} or levels is not None:
            words = "speculate writes the text of autoregression: give no sampler, and no hyperschedule but ar"
            raise RefusalError(400, words, "speculate")
        said["sampler"], schedule["kind"] = "speculative", HYPERSCHEDULES["ar"]
    with about(*said):
        return Decoding(schedule, DrawSettings(**said))


def _kind(name: str, value: Any) -> str:
    return HYPERSCHEDULES[numbers.choice(name, value, HYPERSCHEDULES)]


def _word(name: str, value: Any) -> str:
    return numbers.instance(name, value, str)


def _share(name: str, value: Any) -> float:
    if numbers.fraction(name, value) == 0:
        raise ValueError(f"{name} = 0 is not accepted: it must be above 0 and at most 1")
    return float(value)


def _seed(name: str, value: Any) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= len(str(MAX_SEED)):
        value = int(value)
    return numbers.integer(name, value, low=0, high=MAX_SEED)


@contextmanager
def built() -> Iterator[list[str]]:
    """Build a request; what the library warns of meanwhile, a line each."""
    told: list[str] = []
    with _building, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield told
        told += dict.fromkeys(str(warning.message) for warning in caught if warning.category is UserWarning)


def prompts_of(bundle: "Bundle", prompt: Any, limits: Limits, *, name: str = "prompt") -> list[list[int]]:
    """The rows of tokens of what stands in a field: a text, token ids, or several of either."""
    with about(name):
        if prompt is not None and not isinstance(prompt, str | list):
            raise ValueError(f"{name} = {numbers.shown(prompt)} is not accepted: it must be a text or a list")
        if prompt == []:
            raise ValueError(f"{name} = [] is not accepted: it must have something in it; a text may be empty")
        for text in prompt if isinstance(prompt, list) else [prompt]:
            if isinstance(text, str):
                numbers.text(name, text)
        rows = prompt_rows(prompt, bundle.tokenizer, bundle.config.model.vocab_size)
        most = limits.prompt(bundle.config.context)
        for row in rows:
            if len(row) > most:
                raise ValueError(f"a {name} of {len(row):,} tokens is not accepted: {most:,} is the most here")
    return rows


def count_of(fields: Fields, limits: Limits) -> int:
    """How many texts of each prompt."""
    return fields.get("n", whole(1, limits.max_batch)) or 1


def length_of(fields: Fields, names: tuple[str, ...], bundle: "Bundle", limits: Limits) -> int | None:
    """How many new tokens, by the first of these fields that says so."""
    most = limits.tokens(bundle.config.context)
    found = [fields.get(name, whole(1, most)) for name in names]
    return next((length for length in found if length is not None), None)


def continuations(
    bundle: "Bundle", prompts: list[list[int]], count: int, length: int | None, how: Decoding, limits: Limits
) -> Request:
    """`count` texts after each prompt, within the limits."""
    if (texts := len(prompts) * count) > limits.max_batch:
        raise RefusalError(400, f"{texts} texts are not accepted: {limits.max_batch} is the most here", "n")
    most, own = limits.tokens(bundle.config.context), how.schedule.get("hyperschedule")
    if own is not None and own.length > most:
        raise ValueError(f"levels of {own.length:,} tokens are not accepted: {most:,} is the most here")
    if length is None and own is None:
        length = min(bundle.config.default_length(max(map(len, prompts))), most)
    return prompt_request(bundle, prompts, num_samples=count, length=length, **how.schedule, settings=how.settings)


def seated(
    model: str,
    bundle: "Bundle",
    build: Callable[[], Request],
    limits: Limits,
    fields: tuple[str, ...],
    *,
    given: int,
    stop: tuple[str, ...] = (),
    **watching: Any,
) -> Asked:
    """Build a request, take its seats, and refuse what cannot be had before it waits in line.

    `fields`: the names that a refusal may be about, the likeliest first. `given`: tokens of its prompts. `watching`: as
    of `seats_of`.
    """
    with about(*fields), built() as told:
        request = build()
        for batch in request.batches:
            steps, most = batch.schedule.steps, limits.steps_a_token * max(_FLOOR, batch.schedule.length)
            if steps > most:
                raise ValueError(f"rate is not accepted: {steps:,} steps, and {most:,} is the most for such a text")
        request = replace(request, settings=replace(request.settings, seed=seed_of(request.settings)))
        assert request.settings.seed is not None
        seats = seats_of(bundle, request, request.settings.seed, **watching)
    return Asked(model, bundle, request, seats, given, told, stop)


def stops_of(fields: Fields, bundle: "Bundle") -> tuple[str, ...]:
    """The texts before which to stop."""

    def check(name: str, value: Any) -> tuple[str, ...]:
        found = [value] if isinstance(value, str) else listed(name, value)
        if len(found) > 4 or not all(isinstance(one, str) and 0 < len(one) <= 200 for one in found):
            raise ValueError(f"{name} = {numbers.shown(value)} is not accepted: it must be up to 4 short texts")
        if bundle.tokenizer is None:
            raise ValueError(f"{name} is not accepted: this model has no tokenizer, and writes no text")
        return tuple(numbers.text(name, one) for one in found)

    return fields.get("stop", check) or ()
