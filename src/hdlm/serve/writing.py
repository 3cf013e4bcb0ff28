"""Requests on their way: what the engine tells of texts, on its way to the client that waits for them.

`Writer` sends what is settled, `Watcher` every step. Both are called in the engine's thread and `post` to the client's.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from hdlm.sampling.company import Seat
from hdlm.sampling.generate import as_samples
from hdlm.sampling.prompts import Pieces
from hdlm.sampling.results import Frame
from hdlm.serve.asking import Asked
from hdlm.serve.flow import Flow
from hdlm.serve.metrics import Metrics
from hdlm.viz.history import History
from hdlm.viz.replay import replay_data

Post = Callable[[Any], None]


@dataclass(frozen=True)
class Token:
    """A token that was written: its id, the text that it adds, its log-probability and, by their ids, others'."""

    id: int
    text: str
    logprob: float | None
    others: list[tuple[int, float]]


@dataclass(frozen=True)
class Delta:
    """What is new of text `index`; `finish`: why it has ended, "" while it has not."""

    index: int
    text: str
    tokens: list[Token]
    finish: str = ""


@dataclass
class Usage:
    """What a request took."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    network_calls: int = 0

    def to_json(self) -> dict[str, Any]:
        """As OpenAI says it, and what a token cost in calls."""
        total = self.prompt_tokens + self.completion_tokens
        each = round(self.completion_tokens / self.network_calls, 3) if self.network_calls else None
        return vars(self) | {"total_tokens": total, "tokens_per_call": each}


@dataclass
class Writer:
    """Sends `Delta`s of settled text. `used` is whole once all texts are."""

    asked: Asked
    post: Post
    metrics: Metrics
    began: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        seats, tokenizer = self.asked.seats, self.asked.bundle.tokenizer
        self._flows = {seat: Flow(seat, tokenizer, self.asked.stop) for seat in seats}
        self._sent = dict.fromkeys(seats, 0)
        self._first = True
        self.used = Usage(self.asked.prompt_tokens)

    def moved(self, seat: Seat) -> bool:
        """A text has taken a step: whether it is to go on."""
        flow, sent = self._flows[seat], self._sent[seat]
        goes_on, ready = flow.see(seat), flow.ready()
        if self._first and flow.tokens:
            self._first = False
            self.metrics.observe("hdlm_first_token_seconds", time.perf_counter() - self.began)
        if not goes_on:
            self.used.completion_tokens += len(flow.tokens)
            self.used.network_calls += seat.run.stats.network_calls
        if ready > sent or not goes_on:
            self._sent[seat] = ready
            said = "".join(flow.pieces[sent:ready])
            self.post(Delta(seat.number, said, tokens_of(seat, flow, sent, ready), flow.finish))
        return goes_on


def tokens_of(seat: Seat, flow: Flow, start: int, stop: int) -> list[Token]:
    """Tokens start..stop-1 of what a seat has written."""
    first, found = seat.row.index(None), []
    for n in range(start, stop):
        value, others = None, []
        if seat.said is not None:
            value = _finite(seat.said.values[0, first + n].item())
            if seat.said.likeliest is not None:
                ids, logs = (kept[0, first + n].tolist() for kept in seat.said.likeliest)
                others = [(token, log) for token, log in zip(ids, logs, strict=True) if math.isfinite(log)]
        found.append(Token(flow.tokens[n], flow.pieces[n], value, others))
    return found


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


@dataclass
class Watcher:
    """Sends events of every step, as docs/serving.md has them. `id`: the request's."""

    asked: Asked
    post: Post
    metrics: Metrics
    id: str
    replay: bool = False
    began: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self._piece = Pieces(self.asked.bundle.tokenizer)
        self._known: set[int] = set()
        self._seats = list(self.asked.seats)
        self._history = History(self.asked.request) if self.replay else None
        self._first = True
        self.used = Usage(self.asked.prompt_tokens)
        self.post(self._start())

    def _start(self) -> dict[str, Any]:
        asked, samples = self.asked, []
        for seat in self._seats:
            tokens, run = seat.run.tokens[0, : len(seat.row)].tolist(), seat.run
            samples.append(
                {
                    "index": seat.number,
                    "start": run.starts[0],
                    "prompt_tokens": seat.row.index(None),
                    "max_level": run.schedule.max_level,
                    "steps": run.schedule.steps,
                    "tokens": tokens,
                    "given": [token is not None for token in seat.row],
                }
            )
        return {
            "type": "start",
            "id": self.id,
            "model": asked.model,
            "seed": str(asked.seed),
            "settings": self._seats[0].written().settings,
            "schedule": repr(self._seats[0].batch.asked),
            "mask": asked.bundle.process.mask_id,
            "pieces": self._pieces({token for sample in samples for token in sample["tokens"]}),
            "samples": samples,
            "spent": {"seconds": round(asked.request.spent.seconds, 4), "calls": asked.request.spent.network_calls},
            "warnings": asked.warnings,
        }

    def _pieces(self, tokens: set[int]) -> dict[str, str]:
        """The texts of tokens that were not told of before."""
        fresh = sorted(tokens - self._known - {self.asked.bundle.process.mask_id})
        self._known |= tokens
        return {str(token): self._piece(token) for token in fresh}

    def moved(self, seat: Seat) -> bool:
        """A text has taken steps."""
        for frame in seat.frames:
            if self._history is not None:
                self._history.see(replace(frame, rows=(seat.number,)))
            self.post(self._event(seat, frame, time.perf_counter() - seat.joined))
        if self._first and seat.settled > seat.row.index(None):
            self._first = False
            self.metrics.observe("hdlm_first_token_seconds", time.perf_counter() - self.began)
        return True

    def _event(self, seat: Seat, frame: Frame, seconds: float) -> dict[str, Any]:
        width = min(frame.window.shape[1], len(seat.row) - int(frame.window[0, 0]))
        window, before = frame.window[0, :width], frame.before[0, :width]
        held, levels = frame.tokens[0, window], frame.levels[0, window]
        changes, top, told = [], {}, set[int]()
        changed = (held != before).nonzero().flatten().tolist()
        columns = (window, held, frame.confidence[0, :width], frame.doubt[0, :width])
        rows = list(zip(*(column.tolist() for column in columns), strict=True))
        for place in changed:
            position, token, said, doubt = rows[place]
            changes.append([position, token, _share(said), _share(doubt)])
            told.add(token)
            if frame.likeliest is not None:
                ids, logs = (kept[0, place].tolist() for kept in frame.likeliest)
                found = [[one, _share(math.exp(log))] for one, log in zip(ids, logs, strict=True) if log == log]
                if found:
                    top[str(position)] = found
                    told |= {one for one, _ in found}
        return {
            "type": "frame",
            "index": seat.number,
            "step": frame.step,
            "seconds": round(seconds, 4),
            "calls": seat.run.stats.network_calls,
            "first": int(window[0]),
            "levels": levels.tolist(),
            "settled": min(int(frame.settled[0].long().cumprod(0).sum()), len(seat.row)),
            "changes": changes,
            "top": top,
            "pieces": self._pieces(told),
        }

    def end(self) -> dict[str, Any]:
        """The last event, of texts that are all done."""
        asked, texts = self.asked, [seat.written() for seat in self._seats]
        stats = sum((seat.run.stats for seat in self._seats), asked.request.spent)
        seconds = time.perf_counter() - min(seat.joined for seat in self._seats)
        stats = replace(stats, tokens=sum(len(text.positions) for text in texts), seconds=seconds)
        samples = as_samples(texts, stats, asked.seed, asked.bundle, logprobs=False)
        self.used = Usage(asked.prompt_tokens, stats.tokens, stats.network_calls)
        read = samples.text if asked.bundle.tokenizer is not None else [""] * len(texts)
        choices = [
            {
                "index": seat.number,
                "text": read[n],
                "tokens": texts[n].tokens,
                "finish_reason": "stop" if texts[n].ended else "length",
            }
            for n, seat in enumerate(self._seats)
        ]
        event: dict[str, Any] = {"type": "end", "choices": choices, "usage": self.used.to_json()}
        if self._history is not None:
            mask, title = asked.bundle.process.mask_id, f"{asked.model} writes"
            event["replay"] = replay_data(samples, self._history, mask_id=mask, title=title)
        return event


def _share(value: float) -> float | None:
    """A probability as it is sent; None where nobody was asked."""
    return round(value, 4) if value == value else None
