"""What stands before every answer: who may ask, from where, how much; a request's id, its line in the log, its count.

Plain ASGI around the application, so that what fails inside is answered and told of here.
"""

import asyncio
import hashlib
import hmac
import ipaddress
import re
import secrets
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from hdlm.files import json_text
from hdlm.serve.exchange import ClientLeftError
from hdlm.serve.limits import Limits
from hdlm.serve.metrics import Metrics
from hdlm.serve.refusal import RefusalError, read_object

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
_BODY_SECONDS = 30.0  # for a body to arrive
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True)
class Access:
    """Who may ask. `keys`: any of these; none: everybody. `origins`: pages from elsewhere that may; "*": all.

    `local`: the server listens on this machine alone, and answers to its names alone: a page from elsewhere whose name
    was made to lead here is refused.
    """

    keys: Sequence[str] = ()
    origins: Sequence[str] = ()
    local: bool = True

    def check(self, headers: Headers, path: str) -> None:
        """Refuse who may not."""
        host = _host_of(headers.get("host", ""))
        if self.local and not _is_local(host):
            raise RefusalError(403, "this server answers to the names of this machine alone")
        origin = headers.get("origin")
        if origin is not None and not self.allows(origin) and _place_of(origin) != headers.get("host"):
            raise RefusalError(403, "pages from elsewhere may not ask: start the server with --cors for them")
        if self.keys and (path.startswith("/v1/") or path == "/metrics"):
            kind, _, given = headers.get("authorization", "").partition(" ")
            if kind.lower() != "bearer" or not self._knows(given.strip()):
                raise RefusalError(401, "a key is wanted: Authorization: Bearer KEY", code="invalid_api_key")

    def allows(self, origin: str) -> bool:
        """Whether pages of an origin may ask."""
        return "*" in self.origins or origin in self.origins

    def _knows(self, given: str) -> bool:
        """In the same time whatever is given."""
        found = _digest(given)
        return bool(sum(hmac.compare_digest(found, _digest(key)) for key in self.keys))


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _host_of(value: str) -> str:
    """The name in a Host header, without its port."""
    try:
        return urlsplit(f"//{value}").hostname or ""
    except ValueError:
        return ""


def _place_of(origin: str) -> str | None:
    """The name and port in an Origin header; None where it is no address."""
    try:
        return urlsplit(origin).netloc or None
    except ValueError:
        return None


def _answer(refusal: RefusalError) -> Response:
    """A refusal as it is sent; in ASCII, since it may name a field that is no valid Unicode."""
    text = json_text(refusal.to_json())
    return Response(text, refusal.status, refusal.headers, media_type="application/json")


def _is_local(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """The application behind the checks."""

    def __init__(self, app: Any, access: Access, limits: Limits, metrics: Metrics, *, quiet: bool = False) -> None:
        self._app, self._access, self._limits, self._metrics, self._quiet = app, access, limits, metrics, quiet

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, began = Headers(scope=scope), time.perf_counter()
        given = headers.get("x-request-id", "")
        log: dict[str, Any] = {"id": given if _ID.fullmatch(given) else f"req-{secrets.token_hex(8)}"}
        scope.setdefault("state", {})["log"] = log
        status = 0

        async def told(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self._mark(MutableHeaders(raw=message["headers"]), log["id"], headers.get("origin"))
            await send(message)

        try:
            response = self._before(scope, headers)
            await (response or self._app)(scope, receive, told)
        except RefusalError as refusal:
            log["error"], log["param"] = str(refusal), refusal.param
            await _answer(refusal)(scope, receive, told)
        except (ClientLeftError, ClientDisconnect):
            log["left"] = True
        except Exception:
            log["error"] = traceback.format_exc()
            if not status:
                refusal = RefusalError(500, f"something failed here: request {log['id']}")
                await _answer(refusal)(scope, receive, told)
        finally:
            self._note(scope, status, time.perf_counter() - began)

    def _before(self, scope: Any, headers: Headers) -> Response | None:
        """Refuse, or answer what browsers ask before they ask; None: go on."""
        if scope["method"] == "OPTIONS" and self._access.allows(headers.get("origin", "")):
            allowed = {"Access-Control-Allow-Methods": "GET, POST", "Access-Control-Max-Age": "600"}
            names = "Authorization, Content-Type, X-Request-Id"
            return Response(status_code=204, headers=allowed | {"Access-Control-Allow-Headers": names})
        self._access.check(headers, scope["path"])
        if scope["method"] not in _METHODS:
            raise RefusalError(405, f"{scope['method'][:40]} is nothing here: GET and POST are")
        if int(_digits(headers.get("content-length", "0"))) > self._limits.max_body:
            raise RefusalError(413, f"the body is larger than {self._limits.max_body:,} bytes")
        return None

    def _mark(self, headers: MutableHeaders, id: str, origin: str | None) -> None:
        for name, value in {**_HEADERS, "X-Request-Id": id}.items():
            headers[name] = value
        if origin is not None and self._access.allows(origin):
            headers["Access-Control-Allow-Origin"] = origin
            headers["Cross-Origin-Resource-Policy"] = "cross-origin"
            headers.add_vary_header("Origin")

    def _note(self, scope: Any, status: int, seconds: float) -> None:
        """Count a request, and say what became of it in one line of JSON."""
        log, path = scope["state"]["log"], scope.get("route_path", "other")
        self._metrics.count("hdlm_requests_total", path=path, status=str(status))
        if path.startswith("/v1/"):
            self._metrics.observe("hdlm_request_seconds", seconds)
        if log.get("left"):
            self._metrics.count("hdlm_left_total")
        if not self._quiet:
            head = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "method": scope["method"]}
            line = head | {"path": path, "status": status, "seconds": round(seconds, 4)} | log
            print(json_text(line), file=sys.stderr, flush=True)


def _digits(word: str) -> str:
    return word if word.isascii() and word.isdigit() and len(word) < 19 else "0"


async def read_body(request: Request, limits: Limits) -> dict[str, Any]:
    """The JSON object in a request, whose size and whose time to arrive are bounded."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RefusalError(415, "the body is not accepted: send Content-Type: application/json")
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > limits.max_body:
                    raise RefusalError(413, f"the body is larger than {limits.max_body:,} bytes")
    except TimeoutError:
        raise RefusalError(408, f"the body did not arrive in {_BODY_SECONDS:g} seconds") from None
    data = read_object(bytes(body))
    with suppress(KeyError):
        request.state.log["model"] = str(data["model"])[:100]
    return data
