"""A server at work on a socket, until it is told to stop: then it finishes what it has begun, and takes nothing new."""

import asyncio
import signal
import socket
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import uvicorn

from hdlm.serve.app import Server

_IDLE = 10  # seconds that a connection may be silent between two requests


class _Uvicorn(uvicorn.Server):
    """uvicorn, which tells when it is ready, and leaves signals to `run`."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    @contextmanager
    def capture_signals(self) -> Any:
        yield


def prepare(server: Server, *, drain: float, ready: Callable[[], None]) -> uvicorn.Server:
    """A server that is to `serve(sockets=[...])`; `ready` is called once it does."""
    config = uvicorn.Config(
        server.app,
        log_config=None,
        log_level="critical",  # a request that is no HTTP is answered 400, and is no line of the log
        access_log=False,
        server_header=False,
        lifespan="on",
        ws="none",
        timeout_keep_alive=_IDLE,
        timeout_graceful_shutdown=int(drain),
    )
    return _Uvicorn(config, ready)


def run(server: Server, listening: socket.socket, *, drain: float, ready: Callable[[], None]) -> None:
    """Answer until SIGTERM or SIGINT; then `drain` seconds at most for what is on its way. A second signal ends it."""
    prepared = prepare(server, drain=drain, ready=ready)

    def stop() -> None:
        prepared.force_exit = server.closing
        server.closing = prepared.should_exit = True

    async def serve() -> None:
        for sign in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(sign, stop)
        await prepared.serve(sockets=[listening])

    asyncio.run(serve())
