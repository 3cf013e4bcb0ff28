"""Hyperschedules by their words and numbers."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hdlm.config.fields import setting

if TYPE_CHECKING:
    from hdlm.theory.hyperschedule import Hyperschedule


@dataclass(frozen=True)
class ScheduleConfig:
    """A hyperschedule by its word; `length` is the context that a network was trained on.

    `levels` [steps + 1][at least length]: the matrix of a custom one, of which it has the first columns; it has neither
    width nor rate besides.
    """

    kind: str
    length: int
    width: int | None = None
    rate: float | None = None
    levels: tuple[tuple[int, ...], ...] | None = setting(None, later=True)

    def __post_init__(self) -> None:
        if self.levels is not None:
            object.__setattr__(self, "levels", tuple(map(tuple, self.levels)))  # of JSON they are lists

    def build(self) -> "Hyperschedule":
        """The schedule."""
        from hdlm.config.build import build_schedule

        return build_schedule(self)

    @classmethod
    def of(cls, schedule: "Hyperschedule") -> "ScheduleConfig":
        """The words for a schedule, from which it can be built again."""
        return cls(**schedule.settings)

    @property
    def name(self) -> str:
        """Kind and width, as in "block 16"."""
        return f"{self.kind} {self.width}" if self.width else self.kind

    @property
    def sees_all(self) -> bool:
        """Whether its one window holds the whole text: of custom ones, where none but a last step settles a prefix."""
        if self.levels is None:
            return self.kind == "flat"
        rows = [[level > 0 for level in row] for row in self.levels[:-1]]
        return not all(row == sorted(row) for row in rows) or all(map(all, rows))
