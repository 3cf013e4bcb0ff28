"""Processes that encode text into shards, side by side, each on one core and with one shard at a time.

They hear of their work through pipes, and end when the pipe does, so that none outlives the process that began them.
A shard is written aside and renamed, its record after it: who is killed loses the shards in work and no more. Loads no
torch.
"""

import errno
import multiprocessing
import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path

import numpy as np

from hdlm.data.places import MAKING
from hdlm.data.shard import Shard, Work, write_shard
from hdlm.data.tokenizer import CorpusTokenizer, read_tokenizer
from hdlm.files import json_text, written_aside


@dataclass(frozen=True)
class Task:
    """What a process needs to know once: where shards go, by which tokenizer, as which numbers."""

    folder: Path
    tokenizer_file: Path
    eos_id: int
    dtype: str


@dataclass(frozen=True)
class Told:
    """What was done: so many tokens, documents and characters more, or a whole shard."""

    tokens: int = 0
    documents: int = 0
    characters: int = 0
    shard: Shard | None = None


def record_of(folder: Path, file: str) -> Path:
    """Where it is said that a shard is whole, until the index says it of all."""
    return folder / MAKING / f"{file}.json"


def encode(works: Iterable[Work], task: Task, *, workers: int) -> Iterator[Told]:
    """Make shards of texts by up to so many processes, and tell what they have done as they do it."""
    crew: list[_Worker] = []
    idle: list[_Worker] = []

    def listen(timeout: float | None) -> Iterator[Told]:
        for connection in wait([worker.connection for worker in crew], timeout):
            worker = next(worker for worker in crew if worker.connection is connection)
            told = worker.receive()
            if told.shard is not None:
                idle.append(worker)
            yield told

    try:
        for work in works:
            if not idle and len(crew) < workers:
                crew.append(_Worker(task))
                idle.append(crew[-1])
            while not idle:
                yield from listen(None)
            idle.pop().send(work)
            yield from listen(0)
        while len(idle) < len(crew):
            yield from listen(None)
    finally:
        for worker in crew:
            worker.end()


class _Worker:
    """One process and our end of the pipe to it."""

    def __init__(self, task: Task) -> None:
        context = multiprocessing.get_context("spawn")  # forked, it would share pipes and threads that it must not
        self._folder = task.folder
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, task), daemon=True)
        self._process.start()
        theirs.close()  # else the end of the process would not be the end of the pipe

    def send(self, work: Work) -> None:
        """Give it a shard to make."""
        try:
            self.connection.send((work.file, work.chunks))
        except OSError:
            raise self._gone() from None

    def receive(self) -> Told:
        """What it has to tell; what stopped it is raised here."""
        try:
            told = self.connection.recv()
        except (EOFError, OSError):
            raise self._gone() from None
        if isinstance(told, Exception):
            raise told
        return told

    def end(self) -> None:
        """Let it go: at once, if it is still at work."""
        self.connection.close()
        self._process.terminate()
        self._process.join()

    def _gone(self) -> ChildProcessError:
        self._process.join(5)
        code = self._process.exitcode
        why = f"a process that encodes has ended (exit code {code}); finished shards are kept: run again to go on"
        return ChildProcessError(errno.ECHILD, why, str(self._folder))


def _work(connection: Connection, task: Task) -> None:
    """A process's life: shards, until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that began it hears of that, and ends the pipe
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a process is a core
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        try:
            tokenizer = CorpusTokenizer(read_tokenizer(task.tokenizer_file), task.eos_id, task.eos_id)
            while True:
                file, chunks = connection.recv()
                shard = _make(task, tokenizer, file, chunks, lambda *done: connection.send(Told(*done)))
                connection.send(Told(shard=shard))
        except EOFError:
            raise
        except Exception as error:
            connection.send(error)


def _make(task: Task, tokenizer: CorpusTokenizer, file: str, chunks, tell) -> Shard:
    with written_aside(task.folder / file) as aside:
        shard = write_shard(aside, chunks, tokenizer, np.dtype(task.dtype), tell=tell)
    with written_aside(record_of(task.folder, file)) as aside:
        aside.write_text(json_text(asdict(shard)), encoding="utf-8")
    return shard
