"""Processes that encode text into shards, side by side, each on one core and with one shard at a time.

They hear of their work through pipes, and end when the pipe does, so that none outlives the process that began them.
A shard is written aside and renamed, its record after it: who is killed loses the shards in work and no more. Loads no
torch.
"""

import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

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
        ours, theirs = socket.socketpair()
        self._folder, self.connection = task.folder, Connection(ours.detach())
        code = f"from hdlm.data.workers import live; live({theirs.fileno()})"
        how = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TOKENIZERS_PARALLELISM": "false"}
        # Ctrl-C is for the process that began it, which ends the pipe.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with theirs:  # closed here, else the end of the process would not be the end of the pipe
                self._process = subprocess.Popen(
                    [sys.executable, "-c", code], env=os.environ | how, pass_fds=[theirs.fileno()]
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self._send(task)

    def send(self, work: Work) -> None:
        """Give it a shard to make."""
        self._send((work.file, work.chunks))

    def _send(self, what: Any) -> None:
        try:
            self.connection.send(what)
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
        self._process.wait()

    def _gone(self) -> ChildProcessError:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        code = self._process.returncode
        why = f"a process that encodes has ended (exit code {code}); finished shards are kept: run again to go on"
        return ChildProcessError(errno.ECHILD, why, str(self._folder))


def live(descriptor: int) -> None:
    """The life of a process that encodes: a task, then shards, until the pipe ends."""
    connection = Connection(descriptor)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        try:
            task = connection.recv()
            tokenizer = CorpusTokenizer(read_tokenizer(task.tokenizer_file), task.eos_id, task.eos_id)
            while True:
                file, chunks = connection.recv()
                shard = _make(task, tokenizer, file, chunks, lambda *done: connection.send(Told(*done)))
                connection.send(Told(shard=shard))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise
        except Exception as error:
            connection.send(error)


def _make(task: Task, tokenizer: CorpusTokenizer, file: str, chunks, tell) -> Shard:
    with written_aside(task.folder / file) as aside:
        shard = write_shard(aside, chunks, tokenizer, np.dtype(task.dtype), tell=tell)
    with written_aside(record_of(task.folder, file)) as aside:
        aside.write_text(json_text(asdict(shard)), encoding="utf-8")
    return shard
