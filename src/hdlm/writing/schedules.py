"""Which hyperschedule to write with, and how far it is from what a network was trained on."""

import warnings

from hdlm.config import BundleConfig, ScheduleConfig
from hdlm.theory import checks
from hdlm.theory.hyperschedule import Block, Flat, Hyperschedule, Quench, Slide


def context(config: BundleConfig) -> int:
    """The number of tokens that a network was trained on at once."""
    return config.hyperschedule.length


def default_length(config: BundleConfig, longest_prompt: int) -> int:
    """What fills the context after the prompt; at least one window."""
    return max(context(config) - longest_prompt, config.hyperschedule.width or 1)


def choose_schedule(
    config: BundleConfig,
    length: int,
    *,
    kind: str | None = None,
    width: int | None = None,
    rate: float | None = None,
) -> Hyperschedule:
    """The network's own hyperschedule for `length` tokens, with any of kind, width and rate changed."""
    checks.integer("length", length, low=1)
    own = config.hyperschedule
    kind = own.kind if kind is None else kind
    if kind == "quench":
        if rate not in (None, 1) or width not in (None, 1):
            raise ValueError("rate and width are not accepted for quench: autoregression gives one token a step")
        return ScheduleConfig("quench", length).build()
    if kind in ("block", "slide"):
        known = next((s.width for s in (own, *config.mixture) if s.kind == kind), None)
        width = width if width is not None else known
        if width is None:
            raise ValueError(f"width = None is not accepted: this network was not trained on {kind}, so say a width")
        width = min(checks.integer("width", width, low=1), length)
    elif width is not None:
        raise ValueError(f"width = {width} is not accepted for {kind}: it has the width of the whole text")
    return ScheduleConfig(kind, length, width=width, rate=1.0 if rate is None else rate).build()


def warn_untrained(config: BundleConfig, schedule: Hyperschedule, total: int) -> None:
    """Say so, once, where a schedule asks a network for what it never saw in training; `total` counts the prompt."""
    trained = (config.hyperschedule, *config.mixture)
    names = ", ".join(s.name for s in trained)
    names += " and next-token prediction" if config.next_token else ""
    if total > context(config) and not isinstance(schedule, Flat):
        _warn(f"{total} tokens are more than the {context(config)} that this network was trained on")
    kinds = {s.kind for s in trained}
    widths = {(s.kind, s.width) for s in trained}
    if isinstance(schedule, Quench):
        fits = ("quench" in kinds or config.next_token) if config.shifted else ("block", 1) in widths
    elif isinstance(schedule, Flat):
        fits = "flat" in kinds
    elif isinstance(schedule, Block | Slide):
        kind = type(schedule).__name__.lower()
        # A lone block is a trained one cut at the text's end, as the last block of any text may be.
        seen = schedule.width if isinstance(schedule, Block) and schedule.width == schedule.length else total
        fits = any(k == kind and (w == schedule.width or w >= seen) for k, w in widths if w is not None)
    else:
        return
    if not fits:
        _warn(f"{schedule!r} is outside what this network was trained on ({names}): expect worse text")


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=2)
