"""Members of a mixture of hyperschedules, and the words for a whole one: block:16:6,flat:2."""

import math
from dataclasses import dataclass, replace

from hdlm.config.fields import check_fields, setting
from hdlm.config.levels import read_levels
from hdlm.config.schedule import ScheduleConfig
from hdlm.theory import numbers
from hdlm.theory.level_matrix import check_levels

MAX_SHARE = 1e9
_WITHOUT_WIDTH = ("quench", "flat")
_CUSTOM = "custom"


@dataclass(frozen=True)
class MixtureMember:
    """A hyperschedule and its share of the steps."""

    kind: str = setting("flat", "its word: quench, flat, block, slide or custom")
    width: int | None = setting(None, "tokens of a window, of block and slide")
    share: float = setting(1.0, "how often a step trains it, relative to the others")
    levels: tuple[tuple[int, ...], ...] | None = setting(
        None, "of custom: the matrix, read by --schedules custom:FILE", later=True
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if numbers.positive("share", self.share) > MAX_SHARE:
            raise ValueError(f"share = {self.share!r} is not accepted: it must be above 0 and at most {MAX_SHARE:g}")
        if (self.kind == _CUSTOM) != (self.levels is not None):
            raise ValueError(f"kind = {self.kind!r} is not accepted: custom, and nothing else, is given by its levels")
        if self.levels is not None:
            check_levels("levels", self.levels)

    def __str__(self) -> str:
        """Its words, as in "block:16:6"."""
        width = self.width if self.levels is None else "FILE"
        share = None if self.share == 1 else str(self.share).removesuffix(".0")
        return ":".join(str(part) for part in (self.kind, width, share) if part is not None)

    def schedule(self, length: int) -> ScheduleConfig:
        """The schedule for a context length."""
        return ScheduleConfig(self.kind, length, width=self.width, levels=self.levels)

    def shrunk(self, length: int, *, context: int) -> "MixtureMember":
        """The same for the first `length` of a context's tokens, its window narrower in proportion."""
        levels = self.levels and tuple(row[:length] for row in self.levels)
        return replace(self, width=self.width and max(1, self.width * length // context), levels=levels)


def read_mixture(words: str, name: str) -> tuple[MixtureMember, ...]:
    """The mixture of words kind[:width][:share] parted by commas; custom:FILE[:share] has its levels in a file."""
    return tuple(_member(word.strip(), name) for word in words.split(","))


def _member(word: str, name: str) -> MixtureMember:
    kind, _, rest = word.partition(":")
    if kind == _CUSTOM:
        file, _, share = rest.rpartition(":")
        file, share = (file, share) if file and _is_number(share) else (rest, "1")
        _accept(bool(file), word, name, "write custom:FILE, or custom:FILE:2 for a share of 2")
        return MixtureMember(kind, share=_share(share, word, name), levels=read_levels(file))
    parts, has_width = rest.split(":") if rest else [], kind not in _WITHOUT_WIDTH
    form = f"{kind or 'block'}:{'WIDTH:' if has_width else ''}SHARE"
    _accept(bool(kind) and len(parts) <= 1 + has_width, word, name, f"write {form}, as in block:16:6,flat:2")
    width = None
    if has_width and parts:
        _accept(parts[0].isdecimal() and int(parts[0]) > 0, word, name, f"the width {parts[0]!r} must be 1 or more")
        width = int(parts.pop(0))
    return MixtureMember(kind, width, _share(parts[0], word, name) if parts else 1.0)


def _share(text: str, word: str, name: str) -> float:
    good = _is_number(text) and 0 < float(text) <= MAX_SHARE
    _accept(good, word, name, f"the share {text!r} must be a number above 0 and at most {MAX_SHARE:g}")
    return float(text)


def _is_number(text: str) -> bool:
    try:
        return not math.isnan(float(text))
    except ValueError:
        return False


def _accept(good: bool, word: str, name: str, why: str) -> None:
    if not good:
        raise ValueError(f"{name} = {numbers.shown(word)} is not accepted: {why}")
