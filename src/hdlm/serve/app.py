"""The application: what each path answers. `docs/serving.md` says it for users."""

import mimetypes
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import resources
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route, Router

from hdlm.serve.answers import Answers
from hdlm.serve.describe import describe, limits_of
from hdlm.serve.engine import Engine
from hdlm.serve.guard import Access, Guard
from hdlm.serve.limits import Limits
from hdlm.serve.metrics import Metrics
from hdlm.serve.refusal import RefusalError

if TYPE_CHECKING:
    from hdlm.bundle import Bundle

Answer = Callable[[Request], Any]


class Server:
    """Models, the engine that asks them, and the application that lets the world ask. `app` is plain ASGI."""

    def __init__(
        self,
        models: dict[str, "Bundle"],
        *,
        limits: Limits | None = None,
        access: Access | None = None,
        backend: str | None = None,
        quiet: bool = False,
    ) -> None:
        self.limits, self.metrics = limits or Limits(), Metrics()
        how = {"max_batch": self.limits.max_batch, "max_queue": self.limits.max_queue, "backend": backend}
        self.engine = Engine(models, metrics=self.metrics, **how)
        self.closing = False
        self._listed = [describe(name, bundle, int(time.time())) for name, bundle in models.items()]
        self._page = _page()
        for name, words, ask in (
            ("hdlm_texts_running", "Texts that are being written.", lambda: self.engine.running),
            ("hdlm_jobs_waiting", "Requests that wait for their first turn.", lambda: self.engine.waiting),
        ):
            self.metrics.gauge(name, words, ask)
        inner = Router(routes=self._routes(Answers(self.engine, self.limits)), lifespan=self._lifespan)
        self.app = Guard(inner, access or Access(), self.limits, self.metrics, quiet=quiet)

    @asynccontextmanager
    async def _lifespan(self, _: Any) -> AsyncIterator[None]:
        self.engine.start()
        yield
        await run_in_threadpool(self.engine.stop)

    def _routes(self, answers: Answers) -> list[Route]:
        posts = {
            "/v1/completions": answers.completions,
            "/v1/chat/completions": answers.chat,
            "/v1/fill": answers.fill,
            "/v1/score": answers.score,
            "/v1/stream": answers.stream,
        }
        gets = {
            "/": self._asset,
            "/page/{name}": self._asset,
            "/v1/models": self._models,
            "/v1/models/{model:path}": self._model,
            "/health": self._health,
            "/metrics": self._metrics,
        }
        routes = [Route(path, self._named(path, answer), methods=["POST"]) for path, answer in posts.items()]
        routes += [Route(path, self._named(path, answer), methods=["GET"]) for path, answer in gets.items()]
        return [*routes, Route("/{rest:path}", self._nothing, methods=["GET", "POST", "PUT", "PATCH", "DELETE"])]

    def _named(self, path: str, answer: Answer) -> Answer:
        """The answer, which the log and the metrics know by its path."""

        async def found(request: Request) -> Response:
            request.scope["route_path"] = path
            if self.closing and path.startswith("/v1/"):
                raise RefusalError(503, "the server is shutting down", wait=5)
            return await answer(request)

        return found

    async def _nothing(self, request: Request) -> Response:
        shown = request.url.path[:200]
        raise RefusalError(404, f"{request.method} {shown} is nothing here: /v1/models, /v1/completions and so on are")

    async def _asset(self, request: Request) -> Response:
        """A file of the page: one of those that were read at the start, by its name."""
        name = request.path_params.get("name", "index.html")
        if name not in self._page:
            raise RefusalError(404, "there is no such file of the page")
        body, kind = self._page[name]
        return Response(body, media_type=kind, headers={"Cache-Control": "no-cache"})

    async def _models(self, request: Request) -> Response:
        limits = limits_of(self.engine.models, self.limits)
        return JSONResponse({"object": "list", "data": self._listed, "limits": limits})

    async def _model(self, request: Request) -> Response:
        name = request.path_params["model"]
        found = next((one for one in self._listed if one["id"] == name), None)
        if found is None:
            raise RefusalError(404, f"there is no model {name[:200]!r} here", "model", code="model_not_found")
        return JSONResponse(found)

    async def _health(self, request: Request) -> Response:
        status = "stopping" if self.closing else "failed" if not self.engine.alive else "ok"
        told = {"status": status, "models": list(self.engine.models), "texts": self.engine.running}
        return JSONResponse(told | {"waiting": self.engine.waiting}, 200 if status == "ok" else 503)

    async def _metrics(self, request: Request) -> Response:
        return PlainTextResponse(str(self.metrics), media_type="text/plain; version=0.0.4")


def _page() -> dict[str, tuple[bytes, str]]:
    """The files of the playground, and the replay page, by name: contents and kinds."""
    files = [*resources.files("hdlm.serve").joinpath("page").iterdir()]
    files.append(resources.files("hdlm.viz").joinpath("replay.html"))
    kinds = {".js": "text/javascript"}
    found = {}
    for file in files:
        suffix = "." + file.name.rpartition(".")[2]
        kind = kinds.get(suffix) or mimetypes.types_map.get(suffix, "application/octet-stream")
        found[file.name] = (file.read_bytes(), kind)
    return found
