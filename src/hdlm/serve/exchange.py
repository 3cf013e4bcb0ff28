"""Between the engine's thread and a client: what is posted there is read here, until one leaves or time is up."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from hdlm.errors import NotFiniteError, first_line
from hdlm.files import json_text
from hdlm.serve.engine import Engine, Job
from hdlm.serve.refusal import RefusalError, about

T = TypeVar("T")
_LAST_WORDS = 1.0  # seconds for an error to reach a client whose time is up
DONE = "data: [DONE]\n\n"


class ClientLeftError(Exception):
    """Nobody is there to answer."""


class Exchange:
    """What a job posts, in order. `fields`: those that an error of the job may be about."""

    def __init__(self, engine: Engine, fields: tuple[str, ...] = ("text",)) -> None:
        self._engine, self._fields = engine, fields
        self._loop, self._posted = asyncio.get_running_loop(), asyncio.Queue[Any]()
        self._job: Job | None = None
        self._result: asyncio.Future[Any] = self._loop.create_future()

    def post(self, item: Any) -> None:
        """Send something from the engine's thread."""
        with suppress(RuntimeError):  # the loop is gone: so is the client
            self._loop.call_soon_threadsafe(self._posted.put_nowait, item)

    def ended(self, result: Any, error: BaseException | None) -> None:
        """Say from the engine's thread that the job is done."""

        def tell() -> None:
            if not self._result.done():
                self._result.set_result((result, error))
            self._posted.put_nowait(None)

        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(tell)

    def begin(self, job: Job) -> None:
        """Put the job in line, which may be refused."""
        self._job = self._engine.submit(job)

    def leave(self) -> None:
        """Nobody reads this any more."""
        if self._job is not None and not self._result.done():
            self._engine.leave(self._job)

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (item := await self._posted.get()) is not None:
            yield item
        await self.result()

    async def result(self) -> Any:
        """What the job came to; its error is raised as a refusal."""
        result, error = await self._result
        if error is None:
            return result
        if isinstance(error, ValueError) and not isinstance(error, NotFiniteError):
            with about(*self._fields):
                raise error
        raise RefusalError(500, f"the model failed: {first_line(error)}") from error


async def attended(request: Request, work: Awaitable[T], seconds: float) -> T:
    """What work comes to, unless the client leaves first, or so many seconds pass."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(request.receive))
    try:
        await asyncio.wait({task, gone}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientLeftError if gone.done() else RefusalError(504, f"not done in {seconds:g} seconds")
    finally:
        await _cancelled(task, gone)


async def _gone(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancelled(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class EventStream(Response):
    """Server-sent events, each an object as JSON; an error is the last of them. `close` is called however it ends."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[dict[str, Any]], *, seconds: float, close: Callable[[], None]) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events, self._seconds, self._close = events, seconds, close

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        request = Request(scope, receive)
        try:
            last = ""
            try:
                await attended(request, self._send_all(send), self._seconds)
            except RefusalError as refusal:
                scope["state"]["log"]["error"] = str(refusal)
                last = f"data: {json_text(refusal.to_json() | {'type': 'error'})}\n\n"
            with suppress(TimeoutError):
                await asyncio.wait_for(self._send(send, last + DONE, more=False), _LAST_WORDS)
        except ClientLeftError:
            scope["state"]["log"]["left"] = True
        finally:
            self._close()

    async def _send_all(self, send: Any) -> None:
        async for event in self._events:
            await self._send(send, f"data: {json_text(event)}\n\n", more=True)

    async def _send(self, send: Any, text: str, *, more: bool) -> None:
        await send({"type": "http.response.body", "body": text.encode(), "more_body": more})
