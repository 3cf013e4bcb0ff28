"""Hyperschedules by their words and numbers."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hdlm.theory.hyperschedule import Hyperschedule


@dataclass(frozen=True)
class ScheduleConfig:
    """A hyperschedule by its word; `length` is the context that a network was trained on."""

    kind: str
    length: int
    width: int | None = None
    rate: float | None = None

    def build(self) -> "Hyperschedule":
        """The schedule."""
        from hdlm.config.build import build_schedule

        return build_schedule(self)

    @classmethod
    def of(cls, schedule: "Hyperschedule") -> "ScheduleConfig":
        """The words for a schedule, from which it can be built again; `custom`, for want of its levels, cannot."""
        return cls(**schedule.settings)

    @property
    def name(self) -> str:
        """Kind and width, as in "block 16"."""
        return f"{self.kind} {self.width}" if self.width else self.kind
