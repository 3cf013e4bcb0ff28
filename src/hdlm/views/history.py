"""What happened to every token of every sample, kept from the frames as they pass."""

from dataclasses import dataclass, field

from hdlm.sampling.frame import Frame
from hdlm.writing.request import Batch, Request


@dataclass(frozen=True)
class Change:
    """One place that took another state in one step, and the probability that the network gave it (None: not asked)."""

    step: int
    place: int
    token: int
    confidence: float | None


@dataclass
class SampleHistory:
    """One sample: the row it began as, where its schedule starts, and every change since."""

    batch: Batch
    row: list[int | None]
    start: int
    steps: int = 0
    first: list[int] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)


class History:
    """Collects frames of one request."""

    def __init__(self, request: Request) -> None:
        self.samples: dict[int, SampleHistory] = {}
        for batch in request.batches:
            for number, row, start in zip(batch.numbers, batch.rows, batch.starts, strict=True):
                self.samples[number] = SampleHistory(batch, list(row), start)

    def see(self, frame: Frame) -> None:
        """Keep what a frame changed. The first frame of a sample must be among those seen."""
        where, changed, said = frame.where.tolist(), frame.window_changed.tolist(), frame.confidence.tolist()
        tokens = frame.tokens.tolist()
        before = frame.before.tolist()
        for place_in_batch, number in enumerate(frame.rows):
            sample = self.samples[number]
            length = len(sample.row)
            sample.steps = frame.step + 1
            if not sample.first:
                sample.first = list(tokens[place_in_batch][:length])
                for place, old in zip(where[place_in_batch], before[place_in_batch], strict=True):
                    if place < length:
                        sample.first[place] = old
            for column, place in enumerate(where[place_in_batch]):
                if changed[place_in_batch][column] and place < length:
                    share = said[place_in_batch][column]
                    confidence = share if share == share else None
                    token = tokens[place_in_batch][place]
                    sample.changes.append(Change(frame.step, place, token, confidence))
