"""The paths that ask the networks: a body becomes a job of the engine, and what the job posts becomes the answer."""

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hdlm.evaluate.score import TextScore, score
from hdlm.files import json_text
from hdlm.sampling.company import Seat
from hdlm.sampling.open_gaps import infill_request, open_lengths
from hdlm.serve import asking
from hdlm.serve.asking import Asked
from hdlm.serve.bodies import DECODING, Bodies, Filling, Wished
from hdlm.serve.engine import Engine, Job, Work
from hdlm.serve.exchange import EventStream, Exchange, attended
from hdlm.serve.guard import read_body
from hdlm.serve.limits import Limits
from hdlm.serve.openai import Completion, Text
from hdlm.serve.refusal import Fields, about, whole
from hdlm.serve.writing import Usage, Watcher, Writer


class Json(JSONResponse):
    """JSON in which what is no finite number is null."""

    def render(self, content: Any) -> bytes:
        return json_text(content, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


class Answers:
    """The answers of a server, by the engine that does the work."""

    def __init__(self, engine: Engine, limits: Limits) -> None:
        self._engine, self._limits, self._bodies = engine, limits, Bodies(engine, limits)

    async def completions(self, request: Request) -> Response:
        """`/v1/completions`."""
        fields = await self._read(request)
        return await self._write(request, fields, await run_in_threadpool(self._bodies.completion, fields))

    async def chat(self, request: Request) -> Response:
        """`/v1/chat/completions`."""
        fields = await self._read(request)
        return await self._write(request, fields, await run_in_threadpool(self._bodies.chat, fields))

    async def fill(self, request: Request) -> Response:
        """`/v1/fill`."""
        fields = await self._read(request)
        filling = await run_in_threadpool(self._bodies.filling, fields)
        asked = await self._filled(request, filling)
        exchange = Exchange(self._engine)
        self._begin(exchange, asked, lambda seat: True)
        await self._attended(request, exchange)
        choices = [filling.choice(seat) for seat in asked.seats]
        stats = sum((seat.run.stats for seat in asked.seats), asked.request.spent)
        written = sum(len(gap["tokens"]) for choice in choices for gap in choice["gaps"])
        told = self._told(request, asked, Usage(asked.prompt_tokens, written, stats.network_calls))
        return Json(_head(request, "fill") | {"model": asked.model, "choices": choices} | told)

    async def score(self, request: Request) -> Response:
        """`/v1/score`."""
        scoring = await run_in_threadpool(self._bodies.scoring, await self._read(request))

        def work(tell: Callable[..., None]) -> TextScore:
            return score(scoring.bundle, scoring.text, **scoring.how, progress=tell)

        names = ("hyperschedule" if "hyperschedule" in scoring.how else "text", "width")
        found: TextScore = await self._worked(request, scoring.model, work, names)
        bound = {name: value for name, value in found.bound.to_json().items() if name not in ("positions", "beside")}
        rows = zip(found.tokens, found.pieces, found.logprobs, strict=True)
        tokens = [{"id": token, "text": piece, "logprob": value} for token, piece, value in rows]
        head = _head(request, "score") | {"model": scoring.model, "exact": found.exact}
        return Json(head | {"tokens": tokens, "bound": bound})

    async def stream(self, request: Request) -> Response:
        """`/v1/stream`."""
        fields = await self._read(request)
        top, replay = fields.get("top", whole(0, 10)) or 0, fields.flag("replay")
        watching: dict[str, Any] = {"watched": True, "likeliest": top}
        if fields.has("text"):
            asked = await self._filled(request, await run_in_threadpool(self._bodies.filling, fields), **watching)
        else:
            asked = await run_in_threadpool(self._bodies.watched, fields, **watching)
        exchange = Exchange(self._engine)
        watcher = Watcher(asked, exchange.post, self._engine.metrics, f"stream-{request.state.log['id']}", replay)

        async def events() -> AsyncIterator[dict[str, Any]]:
            async for event in exchange:
                yield event
            yield await run_in_threadpool(watcher.end)
            self._told(request, asked, watcher.used)

        self._begin(exchange, asked, watcher.moved)
        return EventStream(events(), seconds=self._limits.timeout, close=exchange.leave)

    async def _read(self, request: Request) -> Fields:
        """The fields of a body, where there is room for what they may ask for."""
        fields = Fields(await read_body(request, self._limits))
        self._engine.check_room()
        return fields

    def _begin(self, exchange: Exchange, asked: Asked, moved: Callable[[Seat], bool]) -> None:
        """Put the texts in line."""
        exchange.begin(Job(asked.model, exchange.ended, list(asked.seats), moved))

    async def _attended(self, request: Request, exchange: Exchange) -> Any:
        """What a job comes to, for as long as the client waits for it."""
        try:
            return await attended(request, exchange.result(), self._limits.timeout)
        finally:
            exchange.leave()

    async def _worked(self, request: Request, model: str, work: Work, fields: tuple[str, ...]) -> Any:
        """What a piece of work comes to; `fields`: what an error of it may be about."""
        exchange = Exchange(self._engine, fields)
        exchange.begin(Job(model, exchange.ended, work=work))
        return await self._attended(request, exchange)

    async def _filled(self, request: Request, filling: Filling, **watching: Any) -> Asked:
        """The seats of a text with gaps, whose lengths are found first where they are open."""
        names, told, found = ("text", "rate", "n", *DECODING), list[str](), None
        if any(filling.gaps.open):

            def look() -> list[str]:
                with about(*names), asking.built() as noted:
                    open_lengths(filling.bundle, filling.gaps)
                return noted

            def work(tell: Callable[..., None]) -> Any:
                return infill_request(filling.bundle, filling.text, **filling.draws, progress=tell)

            told = await run_in_threadpool(look)
            found = await self._worked(request, filling.model, work, names)

        def seated() -> Asked:
            model, bundle = filling.model, filling.bundle
            return asking.seated(model, bundle, build, self._limits, names, given=filling.given, **watching)

        def build() -> Any:
            return found if found is not None else infill_request(filling.bundle, filling.text, **filling.draws)

        asked = await run_in_threadpool(seated)
        return replace(asked, warnings=[*told, *asked.warnings])

    async def _write(self, request: Request, fields: Fields, wished: Wished) -> Response:
        """A completion or a chat, all at once or as it comes."""
        request.state.log["user"] = str(fields.said("user") or "")[:100]
        asked, form, exchange = wished.asked, wished.form, Exchange(self._engine)
        writer = Writer(asked, exchange.post, self._engine.metrics)
        self._begin(exchange, asked, writer.moved)
        if wished.stream:
            chunks = self._chunks(request, exchange, writer, form, wished.usage)
            return EventStream(chunks, seconds=self._limits.timeout, close=exchange.leave)
        texts = [Text() for _ in asked.seats]

        async def gathered() -> None:
            async for delta in exchange:
                texts[delta.index].add(delta)

        try:
            await attended(request, gathered(), self._limits.timeout)
        finally:
            exchange.leave()
        choices = [form.choice(index, text) for index, text in enumerate(texts)]
        return Json(form.frame(choices, chunk=False) | self._told(request, asked, writer.used))

    async def _chunks(
        self, request: Request, exchange: Exchange, writer: Writer, form: Completion, usage: bool
    ) -> AsyncIterator[dict[str, Any]]:
        said = [0] * len(writer.asked.seats)
        for index in range(len(said)):
            if (opening := form.opening(index)) is not None:
                yield form.frame([opening], chunk=True)
        async for delta in exchange:
            yield form.frame([form.part(delta, said[delta.index])], chunk=True)
            said[delta.index] += len(delta.text)
        told = self._told(request, writer.asked, writer.used)
        if usage:
            yield form.frame([], chunk=True) | told

    def _told(self, request: Request, asked: Asked, used: Usage) -> dict[str, Any]:
        """What stands beside the texts, in the log and in the metrics too."""
        metrics = self._engine.metrics
        metrics.count("hdlm_prompt_tokens_total", used.prompt_tokens)
        metrics.count("hdlm_tokens_total", used.completion_tokens)
        metrics.count("hdlm_network_calls_total", used.network_calls)
        request.state.log.update(tokens=used.completion_tokens, calls=used.network_calls)
        told = {"seed": str(asked.seed), "settings": asked.seats[0].written().settings, "warnings": asked.warnings}
        return {"usage": used.to_json(), "hdlm": told}


def _head(request: Request, kind: str) -> dict[str, Any]:
    return {"id": f"{kind}-{request.state.log['id']}", "object": kind, "created": int(time.time())}
