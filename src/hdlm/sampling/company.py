"""Texts of many requests side by side, each at a step of its own: one that ends makes room for the next at once.

A text is what it would be alone, whatever company it is in. Here each goes through the loop by itself, one step a turn;
`fast/company.py` asks the network about all of them in one call, and writes the same. Knows no server.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from hdlm.sampling.generate import Written, finish_row, keys_of, start_run, written
from hdlm.sampling.loop import Run
from hdlm.sampling.prompts import Row
from hdlm.sampling.request import Batch, Request
from hdlm.sampling.results import Frame, LogProbs

if TYPE_CHECKING:
    from hdlm.bundle import Bundle


@dataclass(eq=False)
class Seat:
    """One text on its way: a run of one row. `settled`: so many of its first tokens are final, the prompt counted.

    `number`: which sample of its request it is. `frames`: of its last turn, one a step, where it is watched. `over`:
    nothing is left to do, since it is full, or its end of text is settled. `joined`: when it took its seat.
    """

    run: Run
    row: Row
    batch: Batch
    number: int
    watched: bool = False
    settled: int = 0
    over: bool = False
    frames: list[Frame] = field(default_factory=list)
    said: LogProbs | None = None
    joined: float = 0.0

    def __post_init__(self) -> None:
        self.settled = self.row.index(None)
        self.said = LogProbs(self.run.tokens) if self.run.logprobs else None

    @property
    def tokens(self) -> list[int]:
        """The tokens as they are now, MASK among them, up to a new end of text; those that are settled stay."""
        return finish_row(self.run.tokens[0].tolist(), self.row, self.run.eos_id)[0]

    def written(self) -> Written:
        """The text, of a seat that is over."""
        return written(self.run, self.batch, 0, self.said)

    def see(self, frame: Frame) -> None:
        """Take note of a step."""
        self.frames.append(frame)
        if self.said is not None:
            self.said.see(frame)

    def settle(self, count: int) -> None:
        """Its first `count` tokens are final from now on; what is given behind them is too."""
        while count < len(self.row) and self.row[count] is not None:
            count += 1
        self.settled = min(count, len(self.row))
        self.over = self.run.note_ends(count - self.run.starts[0]) or self.settled == len(self.row)


def seats_of(
    bundle: "Bundle",
    request: Request,
    seed: int,
    *,
    watched: bool = False,
    logprobs: bool = False,
    likeliest: int = 0,
    beside: int = 0,
) -> list[Seat]:
    """A seat for each text of a request, by number; what is written there is what `generate` writes with that seed.

    `watched`: seats have frames, with `logprobs` and so many `likeliest` tokens where asked for; those need frames.
    `beside`: how many other texts are on their way (speculation alone cares, and not about its text).
    """
    rows = sorted(
        (number, row, start, batch)
        for batch in request.batches
        for number, row, start in zip(batch.numbers, batch.rows, batch.starts, strict=True)
    )
    keys = keys_of([row for _, row, _, _ in rows]) if request.keys is None else request.keys
    found = []
    for number, row, start, batch in rows:
        alone = replace(batch, numbers=(number,), rows=(row,), starts=(start,))
        how = {"logprobs": logprobs, "likeliest": likeliest, "beside": beside + len(rows) - 1}
        run = start_run(bundle, alone, request, seed, [keys[number]], **how)
        found.append(Seat(run, row, alone, number, watched=watched or logprobs or likeliest > 0))
    return found


class Company:
    """Seats that take turns. `open`: all steps of a run, a frame each, on some floor.

    `calls`: of the network, so far; one may be for several texts, each of which counts it in its own stats.
    """

    def __init__(self, open: Callable[[Run], Iterator[Frame]]) -> None:
        self._open, self.calls = open, 0
        self._frames: dict[Seat, Iterator[Frame]] = {}

    def __len__(self) -> int:
        """How many texts are on their way."""
        return len(self._frames)

    def join(self, seat: Seat) -> None:
        """Let a text take part from the next turn on."""
        self._frames[seat] = self._open(seat.run)

    def leave(self, seat: Seat) -> None:
        """Let a text go that is over, or that nobody waits for any more."""
        self._frames.pop(seat, None)

    @torch.no_grad()
    def turn(self) -> list[Seat]:
        """Every text takes a step; those that have moved. Who is over has left."""
        moved = list(self._frames)
        for seat in moved:
            seat.frames, before = [], seat.run.stats.network_calls
            frame = next(self._frames[seat])
            self.calls += seat.run.stats.network_calls - before
            if seat.watched:
                seat.see(frame)
            seat.settle(int(frame.settled[0].long().cumprod(0).sum()))
            if seat.over:
                self.leave(seat)
        return moved
