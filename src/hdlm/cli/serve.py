"""`hdlm serve`: models over HTTP, as OpenAI's API and as a playground."""

import argparse
import os
import socket
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hdlm.cli.flags import add_device, note


def add(commands) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "serve",
        help="answer over HTTP: an OpenAI-compatible API and a playground",
        usage="hdlm serve [MODEL ...] [options]  (MODEL: stories, a folder, owner/model, or NAME=one of these)",
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", default=["stories"], help=argparse.SUPPRESS)
    parser.add_argument("--host", default="127.0.0.1", help="where to listen (127.0.0.1: for this machine alone)")
    parser.add_argument("--port", type=int, default=8000, help="(8000; 0: any that is free)")
    parser.add_argument("--api-key", action="append", metavar="KEY", help="may repeat; or $HDLM_API_KEY, out of sight")
    parser.add_argument(
        "--cors", action="append", metavar="ORIGIN", help="pages from elsewhere that may ask; may repeat"
    )
    parser.add_argument("--max-batch", type=int, default=16, metavar="N", help="texts written at once (16)")
    parser.add_argument("--max-queue", type=int, default=64, metavar="N", help="requests that may wait (64)")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="new tokens of a text (the model's context)")
    parser.add_argument("--max-prompt", type=int, metavar="N", help="tokens of a prompt (the model's context)")
    parser.add_argument("--max-body", type=int, default=2**20, metavar="BYTES", help="of a request (1 MiB)")
    parser.add_argument("--timeout", type=float, default=300.0, metavar="S", help="seconds for a request (300)")
    parser.add_argument("--drain", type=float, default=30.0, metavar="S", help="seconds to finish when stopped (30)")
    parser.add_argument("--dtype", metavar="T", help="float32, float64 (CPU), bfloat16 (as it is; float32 on a CPU)")
    add_device(parser)
    parser.add_argument("--quiet", action="store_true", help="no line for each request")
    parser.set_defaults(run=_serve)


def _serve(args: argparse.Namespace) -> None:
    lacking = next((name for name in ("starlette", "uvicorn", "jinja2") if find_spec(name) is None), None)
    if lacking is not None:
        raise ValueError(f"serving needs {lacking}: pip install 'hdlm[serve]'")
    from hdlm.serve.guard import Access
    from hdlm.serve.limits import Limits
    from hdlm.theory import numbers

    names = ("max_batch", "max_queue", "max_tokens", "max_prompt", "max_body", "timeout")
    limits = Limits(**{name: getattr(args, name) for name in names})
    numbers.integer("port", args.port, low=0, high=65535)
    numbers.positive("drain", args.drain, zero=True)
    keys = [*(args.api_key or []), *filter(None, [os.environ.get("HDLM_API_KEY")])]
    if any(not key or not key.isascii() or not key.isprintable() or " " in key for key in keys):
        raise ValueError("--api-key is not accepted: a key is of visible ASCII signs, without spaces")
    listening = _listen(args.host, args.port)
    with listening:
        models = _models(args)
        access = Access(keys, args.cors or [], local=_is_local(listening))
        if not access.local and not keys:
            note(f"everybody who reaches {args.host} may use this server: --api-key KEY keeps others out")
        _run(models, limits, access, listening, args)


def _listen(host: str, port: int) -> socket.socket:
    """A socket that is bound, so that a port that is taken is told of before models are read."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, UnicodeError):
        raise ValueError(f"--host {host} is not accepted: it is no name or address of this machine") from None
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind(address)
    except OSError as error:
        found.close()
        raise ValueError(f"cannot listen on {host} port {port}: {error.strerror}") from None
    return found


def _is_local(listening: socket.socket) -> bool:
    import ipaddress

    return ipaddress.ip_address(listening.getsockname()[0].partition("%")[0]).is_loopback


def _models(args: argparse.Namespace) -> dict[str, Any]:
    """The models by the names that requests call them: NAME of NAME=MODEL, else the end of the path."""
    from hdlm.bundle import load
    from hdlm.device import choose_device

    wanted: dict[str, str] = {}
    for word in args.models:
        name, mark, place = word.partition("=")
        name, place = (name, place) if mark else (Path(word).resolve().name if Path(word).exists() else word, word)
        if not name or name in wanted:
            raise ValueError(f"{word} is not accepted: every model needs a name of its own, as in NAME={word}")
        wanted[name] = place
    device = choose_device(args.device)
    return {name: load(place, device=device, dtype=args.dtype) for name, place in wanted.items()}


def _run(models: dict[str, Any], limits: Any, access: Any, listening: socket.socket, args: argparse.Namespace) -> None:
    from hdlm.serve.app import Server
    from hdlm.serve.run import run

    server = Server(models, limits=limits, access=access, backend=args.backend, quiet=args.quiet)
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    ready = lambda: print(f"{', '.join(models)} at http://{shown}:{port}", file=sys.stderr, flush=True)  # noqa: E731
    run(server, listening, drain=args.drain, ready=ready)
