"""The one thread that asks the networks: texts of all requests take turns, as many at once as there is room for.

What is asked for waits in line, first come, first served. A text that ends, or that nobody waits for any more, makes
room at once. Work of another kind (a score, the length of a gap) is done in between and lets the texts take turns while
it lasts. Knows no HTTP.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hdlm import backend as floors
from hdlm.sampling.company import Seat
from hdlm.sampling.generate import check_finite
from hdlm.serve.metrics import Metrics
from hdlm.serve.refusal import RefusalError

if TYPE_CHECKING:
    from hdlm.bundle import Bundle

Work = Callable[[Callable[..., None]], Any]


class LeftError(Exception):
    """Nobody waits for this any more."""


@dataclass(eq=False)
class Job:
    """The texts of one request by a model, or one piece of `work` in place of them.

    `moved` is told of a text that has taken a turn, and says whether it is to go on; `ended` is told in the end: the
    result of the work, or None, and the error that stopped it, or None. Both are called in the engine's thread.
    """

    model: str
    ended: Callable[[Any, BaseException | None], None]
    seats: list[Seat] = field(default_factory=list)
    moved: Callable[[Seat], bool] = lambda seat: True
    work: Work | None = None
    waits: bool = True  # for its first turn
    left: bool = False
    began: float = field(default_factory=time.perf_counter)


class Engine:
    """Models by their names, and what is asked of them. `start` and `stop` it."""

    def __init__(
        self,
        models: Mapping[str, "Bundle"],
        *,
        metrics: Metrics,
        max_batch: int = 16,
        max_queue: int = 64,
        backend: str | None = None,
    ) -> None:
        self.models, self.metrics = dict(models), metrics
        self._companies = {name: floors.company(backend=backend) for name in models}
        self._max_batch, self._max_queue = max_batch, max_queue
        self._lock = threading.Condition()
        self._queue: deque[Job] = deque()  # those that have a text, or work, that has not begun
        self._jobs: dict[Seat, Job] = {}  # of texts that are on their way
        self._gone: list[Job] = []
        self._stopped, self._took = False, 1.0  # seconds that a job takes, on average
        self._thread = threading.Thread(target=self._run, name="hdlm-engine", daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def stop(self) -> None:
        """Leave all work where it is, and wait until the thread has ended."""
        with self._lock:
            self._stopped = True
            self._lock.notify()
        self._thread.join()

    @property
    def running(self) -> int:
        """Texts on their way."""
        return len(self._jobs)

    @property
    def waiting(self) -> int:
        """Requests that wait for their first turn."""
        with self._lock:
            return sum(job.waits for job in self._queue)

    @property
    def alive(self) -> bool:
        """Whether there is somebody to do the work."""
        return self._thread.is_alive()

    def check_room(self) -> None:
        """Refuse what would wait behind more requests than may."""
        with self._lock:
            waiting = self.waiting
            if self._stopped:
                raise RefusalError(503, "the server is shutting down", wait=1)
            if waiting >= self._max_queue and (waiting or len(self._jobs) >= self._max_batch):
                wait = self._took * (1 + waiting / self._max_batch)
                raise RefusalError(429, f"{waiting} requests are waiting already: come again later", wait=wait)

    def submit(self, job: Job) -> Job:
        """Put a job in line, or refuse it where the line is full."""
        with self._lock:
            self.check_room()
            self._queue.append(job)
            self._lock.notify()
        return job

    def leave(self, job: Job) -> None:
        """Say that nobody waits for a job any more; one that is done does not mind."""
        with self._lock:
            job.left = True
            self._gone.append(job)
            if job in self._queue:
                self._queue.remove(job)
            self._lock.notify()

    def _run(self) -> None:
        while True:
            with self._lock:
                while not (self._queue or self._jobs or self._gone or self._stopped):
                    self._lock.wait()
                if self._stopped:
                    return
            self._take_leave()
            self._admit()
            self._turn()
            if (job := self._next_work()) is not None:
                self._do(job)

    def _take_leave(self) -> None:
        """Let all go that nobody waits for."""
        with self._lock:
            gone, self._gone = self._gone, []
        for job in gone:
            self._drop(job)

    def _drop(self, job: Job) -> None:
        job.left = True
        job.seats.clear()
        for seat in [seat for seat, owner in self._jobs.items() if owner is job]:
            self._companies[job.model].leave(seat)
            del self._jobs[seat]

    def _admit(self) -> None:
        """Seat those that are first in line, while there is room."""
        while len(self._jobs) < self._max_batch:
            with self._lock:
                job = next((job for job in self._queue if job.work is None), None)
                if job is None:
                    return
                seat = job.seats.pop(0)
                if not job.seats:
                    self._queue.remove(job)
                if job.waits:
                    job.waits = False
                    self.metrics.observe("hdlm_queue_seconds", time.perf_counter() - job.began)
            self._jobs[seat], seat.joined = job, time.perf_counter()
            self._companies[job.model].join(seat)

    def _turn(self) -> None:
        """One turn of every model's texts."""
        for name, company in self._companies.items():
            if not len(company):
                continue
            began = time.perf_counter()
            try:
                moved = company.turn()
                for seat in moved:
                    check_finite(self.models[name], seat.run)
            except Exception as error:  # of the model, not of one request: all of its texts are lost
                self._fail(name, error)
                continue
            self.metrics.observe("hdlm_turn_seconds", time.perf_counter() - began)
            self.metrics.observe("hdlm_turn_texts", len(moved))
            for seat in moved:
                self._note(seat)

    def _fail(self, name: str, error: Exception) -> None:
        company = self._companies[name]
        for seat, job in list(self._jobs.items()):
            if job.model == name and seat in self._jobs:
                self._end(job, None, error)
        assert not len(company)

    def _note(self, seat: Seat) -> None:
        """Tell a text's job that it has moved."""
        if (job := self._jobs.get(seat)) is None:  # its job ended in this very turn
            return
        company = self._companies[job.model]
        try:
            goes_on = job.moved(seat)
        except Exception as error:
            self._end(job, None, error)
            return
        if goes_on and not seat.over:
            return
        company.leave(seat)
        del self._jobs[seat]
        if not job.seats and job not in self._jobs.values():
            self._end(job, None, None)

    def _next_work(self) -> Job | None:
        with self._lock:
            job = next((job for job in self._queue if job.work is not None), None)
            if job is not None:
                self._queue.remove(job)
                job.waits = False
        return job

    def _do(self, job: Job) -> None:
        """One piece of work; whenever it tells how far it is, the texts take a turn."""

        def go_on(*_: Any) -> None:
            self._take_leave()
            if job.left or self._stopped:
                raise LeftError
            self._admit()
            self._turn()

        assert job.work is not None
        try:
            result = job.work(go_on)
        except LeftError:
            return
        except Exception as error:
            self._end(job, None, error)
        else:
            self._end(job, result, None)

    def _end(self, job: Job, result: Any, error: BaseException | None) -> None:
        with self._lock:
            if job in self._queue:
                self._queue.remove(job)
        self._drop(job)
        self._took = 0.9 * self._took + 0.1 * (time.perf_counter() - job.began)
        job.ended(result, error)
