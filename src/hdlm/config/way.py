"""A way of decoding in one word, as in "block:16,sampler=certain,rate=4": a hyperschedule and how to draw."""

from dataclasses import asdict, dataclass
from typing import Any

from hdlm.config.parse import override
from hdlm.config.sampling import DrawSettings
from hdlm.theory import numbers

_ALIASES = {"ar": "quench"}


@dataclass(frozen=True)
class Way:
    """A hyperschedule's kind and width, and settings of a draw; None leaves it to the model."""

    kind: str | None = None
    width: int | None = None
    rate: float | None = None
    sampler: str | None = None
    eta: float | None = None
    threshold: float | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    precision: str | None = None

    def __post_init__(self) -> None:
        DrawSettings.among(self.said)

    @property
    def said(self) -> dict[str, Any]:
        """What is not left to the model."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def drawn(self) -> dict[str, Any]:
        """What changes samples and no likelihood."""
        return {name: value for name, value in self.said.items() if name not in ("kind", "width")}


def parse_way(word: str) -> Way:
    """The way that a word stands for: KIND or KIND:WIDTH, then NAME=VALUE, all parted by commas, any of them left out.

    A kind is any hyperschedule's own word; `ar` is quench.
    """
    way, parts = Way(), word.split(",")
    if "=" not in parts[0]:
        way = _scheduled(parts.pop(0))
    seen = set(way.said)
    for part in parts:
        name, mark, value = part.partition("=")
        if not mark or not value:
            raise ValueError(f"way {word!r} is not accepted: write it as block:16,sampler=certain,rate=4")
        if name in seen:
            raise ValueError(f"way {word!r} is not accepted: {name} is there twice")
        seen.add(name)
        way = override(way, name, value)
    return way


def _scheduled(word: str) -> Way:
    from hdlm.config.build import SCHEDULES

    kind, mark, width = word.partition(":")
    way = Way(kind=_ALIASES.get(kind, numbers.choice("way", kind, (*SCHEDULES, *_ALIASES))))
    return override(way, "width", width) if mark else way
