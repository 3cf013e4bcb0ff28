"""What happened to every token of every sample, kept from the frames as they pass."""

from dataclasses import dataclass, field
from typing import NamedTuple

from hdlm.sampling.request import Batch, Request
from hdlm.sampling.results import Frame


class Change(NamedTuple):
    """A position that took another state in one step, and the probability that the network gave it, if it was asked.

    `doubt`: the probability that it gave, in that step, to the token that was taken back.
    """

    step: int
    position: int
    token: int
    confidence: float | None
    doubt: float | None = None


@dataclass
class SampleHistory:
    """One sample: the row it began as, where its schedule starts, and every change since.

    `settled`: the step that settled each position of the schedule, where that is the row's own affair (speculation).
    """

    batch: Batch
    row: list[int | None]
    start: int
    steps: int = 0
    first: list[int] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    settled: list[int] = field(default_factory=list)


class History:
    """Collects frames of one request."""

    def __init__(self, request: Request) -> None:
        self.samples: dict[int, SampleHistory] = {}
        for batch in request.batches:
            for number, row, start in zip(batch.numbers, batch.rows, batch.starts, strict=True):
                self.samples[number] = SampleHistory(batch, list(row), start)

    def see(self, frame: Frame) -> None:
        """Keep what a frame changed. The first frame of a sample must be among those seen."""
        own = frame.settled.sum(1).tolist() if frame.window_levels.ndim > 1 else None
        fields = (frame.tokens, frame.window, frame.before, frame.window_changed, frame.confidence, frame.doubt)
        for number, tokens, *columns in zip(frame.rows, *(values.tolist() for values in fields), strict=True):
            sample = self.samples[number]
            sample.steps = frame.step + 1
            if own is not None:
                more = own[frame.rows.index(number)] - sample.start - len(sample.settled)
                sample.settled += [frame.step] * more
            inside = [column for column in zip(*columns, strict=True) if column[0] < len(sample.row)]
            if not sample.first:
                sample.first = tokens[: len(sample.row)]
                for position, before, *_ in inside:
                    sample.first[position] = before
            for position, _, changed, *shares in inside:
                if changed:  # NaN: the network was not asked
                    said, doubt = (round(share, 4) if share == share else None for share in shares)
                    sample.changes.append(Change(frame.step, position, tokens[position], said, doubt))
