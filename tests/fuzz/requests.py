"""Random requests to a server: every answer is a correct result or a refusal that names the field, and none is missing.

`PYTHONPATH=tests python -m fuzz.requests --cases 10000` asks small random models in this process; `--case 1234` one
again. Case n of seed s is drawn from `random.Random("s:n")`, as in `fuzz.sections`.
"""

import argparse
import http.client
import json
import random
import socket
import sys
import time
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from support.bundles import SAMPLERS, bundle
from support.server import serving

from fuzz.request_answers import Answer, judge, strict
from fuzz.request_fields import HOW, JUNK, POSTS, PROCESSES

LIMITS = {"max_body": 2**17, "steps_a_token": 4}
SECONDS = 60  # without an answer, until a request counts as lost
KINDS = ("right", "refused", "left", "failed")


@dataclass(frozen=True)
class Case:
    """`expect`: "right" or "refused" where only that is correct; `proper`: whether it is HTTP; `leaves`: after so many
    bytes of the answer; `length`: what is said of the body's."""

    section: str
    path: str
    body: bytes = b""
    method: str = "POST"
    headers: tuple[tuple[str, str], ...] = ()
    expect: str | None = None
    chunks: tuple[int, ...] = ()
    length: int | None = None
    proper: bool = True
    leaves: int | None = None

    def sent(self):
        names, body = {name.lower() for name, _ in self.headers}, self.body
        given = [("Connection", "close"), *self.headers, *[("Host", "127.0.0.1")] * ("host" not in names)]
        given += [("Content-Type", "application/json")] * (self.method == "POST" and "content-type" not in names)
        if self.chunks:
            given.append(("Transfer-Encoding", "chunked"))
            size = self.chunks[0]
            parts = [body[start : start + size] for start in range(0, len(body), size)]
            body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
        elif body or self.method == "POST":
            given.append(("Content-Length", str(len(body) if self.length is None else self.length)))
        lines = [f"{self.method} {self.path} HTTP/1.1", *(f"{name}: {value}" for name, value in given), "", ""]
        return "\r\n".join(lines).encode("utf-8", "surrogatepass") + body

    @property
    def short(self):
        return self.length is not None and self.length > len(self.body)

    def fields(self):
        """The object that the server reads; None: there is none."""
        try:
            found = strict(self.body[: self.length])
        except (ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None


def draw(seed, number):
    """Case `number`."""
    lot = random.Random(f"{seed}:{number}")
    makers = {_valid: 30, _damaged: 40, _garbage: 8, _framed: 8, _headed: 6, _elsewhere: 8}
    return lot.choices([*makers], [*makers.values()])[0](lot)


def _some(lot, names, most):
    return {name: lot.choice(HOW[name]) for name in lot.sample(names, lot.randint(0, most))}


def _body(lot, path):
    """What is in order."""
    model = lot.choice([*PROCESSES])
    draws = {
        "seed": lot.choice([0, 5, "77", 2**40]),
        "temperature": lot.choice([0.5, 1.0, 2]),
        "top_k": lot.randint(1, 9),
    }
    body = {name: draws[name] for name in lot.sample([*draws], lot.randint(0, 3))} | {"model": model}
    letters = "".join(lot.choices("abcdefghij ", k=lot.randint(0, 8)))
    if path == "/v1/score":
        body = {"model": model, "text": "a" + letters, "samples": lot.randint(1, 4)} | _some(lot, ["seed"], 0)
        return body | ({"text": [1, 2, 3]} if model == "ids" else {})
    rules = [name for name in SAMPLERS[PROCESSES[model]] if name not in ("left-to-right", "confidence", "remask")]
    body |= {"sampler": lot.choice(rules)} if lot.random() < 0.3 else {}
    if path == "/v1/fill" or (path == "/v1/stream" and lot.random() < 0.4):
        gap = lot.choice(["[[gap:2]]", "[[gap:1]]", *["[[gap:1-2]]b"] * (model in ("hybrid", "masked"))])
        body |= {"text": f"a{letters}{gap}", "n": lot.randint(1, 2), "model": "hybrid" if model == "ids" else model}
        if model == "ids":
            body.pop("sampler", None)
        return body
    body |= {"max_tokens": lot.randint(1, 12), "n": lot.randint(1, 3), "ignore_eos": lot.random() < 0.5}
    if model in ("hybrid", "ids") and "sampler" not in body and lot.random() < 0.5:
        kind = lot.choice(["ar", "block", "slide", "flat"])
        body |= {"hyperschedule": kind} | ({"width": lot.randint(1, 4)} if kind in ("block", "slide") else {})
    if path != "/v1/stream":
        stream = lot.random() < 0.3
        body |= {"stream": stream} | ({"stream_options": {"include_usage": True}} if stream else {})
        if model != "ids" and lot.random() < 0.3:
            body["stop"] = lot.choice(["a", ["bc", "j"], " "])
    else:
        body |= _some(lot, ["replay"], 1) | {"top": lot.randint(0, 3)}
    if path == "/v1/chat/completions":
        told = {"logprobs": True, "top_logprobs": lot.randint(0, 3)} if lot.random() < 0.3 else {}
        return (
            body | told | {"model": "hybrid", "messages": [{"role": "user", "content": letters}]} | _plain(body, model)
        )
    told = {"logprobs": lot.randint(0, 3)} if path == "/v1/completions" and lot.random() < 0.3 else {}
    return body | told | {"prompt": [3, 1, 2] if model == "ids" else lot.choice([letters, [letters, "ab"], [1, 2], ""])}


def _plain(body, model):
    """A sampler that fits the model that chats."""
    return {"sampler": "posterior"} if "sampler" in body and model != "hybrid" else {}


def _text(body):
    return json.dumps(body).encode()


def _valid(lot):
    path = lot.choice(POSTS)
    return Case("valid", path, _text(_body(lot, path)), expect="right")


def _damaged(lot):
    path = lot.choice(POSTS)
    body = _body(lot, path)
    for _ in range(lot.choice([1, 1, 2, 3])):
        name, way = lot.choice([*body, *HOW]), lot.random()
        if way < 0.1:
            body.pop(name, None)
        elif way < 0.2:
            body[lot.choice([name.upper(), "x" * 600, "", "\ud800", "a\nb", "__class__", f"{name} "])] = lot.choice(
                JUNK
            )
        else:
            body[name] = lot.choice(HOW.get(name, JUNK) if lot.random() < 0.6 else JUNK)
    return Case("damaged", path, _text(body))


def _garbage(lot):
    path = lot.choice(POSTS)
    text = _text(_body(lot, path))
    place = lot.randrange(1, len(text))
    found = [
        b"", b"null", b"3", b"[]", b'"a"', lot.randbytes(lot.randint(1, 300)), text[:place], text + text, b"{" * 9999,
        b"[" * 99999, b'{"text":' * 9999, b"\xef\xbb\xbf" + text, text.decode().encode("utf-16"), b"\x00" + text,
        text[:place] + lot.randbytes(3) + text[place:], text[:-1] + b',"model":"a","model":"b"}', b'{"prompt":NaN}',
        text[:-1] + b',"eta":-Infinity}', text[:-1] + b',"user":"\xff"}', b'{"seed":' + b"9" * 9999 + b"}",
        text[:-1] + b',"eta":1e999}', text[:-1] + b',"user":{"x":1,"x":2}}', text[:-1] + b',"\\ud800":1,"\\ud800":2}',
    ]  # fmt: skip
    return Case("garbage", path, lot.choice(found))


def _framed(lot):
    """Other lengths than are told, pieces, bodies that are too large, and clients that leave."""
    valid = _valid(lot)
    case, size = replace(valid, section="framed"), len(valid.body)
    ways = [
        lambda: replace(case, chunks=(lot.choice([1, 7, 100, 10**6]),)),
        lambda: replace(case, length=size + lot.randint(1, 50), expect="refused"),
        lambda: replace(case, length=lot.randrange(size), expect="refused"),
        lambda: replace(case, leaves=lot.choice([0, 0, 1, 100, 700])),
        lambda: replace(case, body=case.body + b" " * 2**17, expect="refused"),
        lambda: replace(case, body=case.body + b" " * 2**17, chunks=(2**14,), expect="refused"),
        lambda: replace(case, headers=(("Content-Length", "5"),), expect="refused", proper=False),
        lambda: replace(case, headers=(("Transfer-Encoding", lot.choice(["gzip", "x"])),), expect=None, proper=False),
        lambda: replace(case, chunks=(9,), headers=(("Content-Length", "-1"),), expect=None, proper=False),
        lambda: replace(case, length=lot.choice([-1, 10**30]), expect="refused", proper=False),
    ]
    return lot.choice(ways)()


def _headed(lot):
    odd = lot.choice(["", "a b", "x" * 100, "é", "\t", "%00", "<script>", '"', "💥", "a,b;c=d"])
    fine = [("X-Request-Id", odd), ("Accept", odd), ("Authorization", odd), ("User-Agent", "x" * 5000), ("Expect", odd)]
    fine += [("Content-Encoding", "gzip"), ("Content-Type", "application/json; charset=utf-16"), ("Cookie", odd)]
    fine += [("Upgrade", "websocket"), ("Host", "localhost:1"), ("Content-Type", "APPLICATION/JSON ;x"), ("TE", odd)]
    wrong = [("Content-Type", lot.choice(["text/plain", "", "multipart/form-data", "application/jsonp"]))]
    wrong += [
        ("Host", lot.choice(["evil.example", "", "a@b", "[::", odd])),
        ("Origin", lot.choice(["null", "http://[", odd])),
    ]
    broken = [("A" * 70000, "x"), ("X", "y" * 70000), ("X\r\n", "y"), ("X", "a\r\n\x00b"), ("", "")]
    kind = lot.choices([fine, wrong, broken], [6, 4, 1])[0]
    expect = "right" if kind is fine else "refused" if kind is wrong else None
    return replace(_valid(lot), section="headed", headers=(lot.choice(kind),), expect=expect, proper=kind is not broken)


def _elsewhere(lot):
    """Other paths and methods."""
    known = ["/health", "/metrics", "/v1/models", "/v1/models/hybrid", "/", "/page/replay.html", "/health?a=%ff"]
    odd = [
        "/v1/models/%ff",
        "/v1/models/a/b",
        "/..%2f..",
        "//",
        "/%00",
        "/page/..",
        "/v1",
        "/v1/completions/",
        "*",
        "é",
    ]
    path = lot.choice([*known, *POSTS, *odd, "http://x/y", "/\ud83d", "/page/index.html%00", "/" + "a" * 5000])
    method = lot.choice(["GET"] * 4 + ["HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "X", "get"])
    proper = path[0] == "/" and path.isascii()
    expect = "right" if path in known and method == "GET" else None if path in known and method == "HEAD" else "refused"
    return Case("elsewhere", path, b"{" if method == "POST" else b"", method, expect=expect, proper=proper)


def send(port, case):
    """The answer to a case."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as connection:
            with suppress(BrokenPipeError, ConnectionResetError):  # refused before all of it was there
                connection.sendall(case.sent())
            if case.leaves is not None:
                left = case.leaves
                while left > 0 and (part := connection.recv(left)):
                    left -= len(part)
                return Answer(lost="the client left")
            if case.short:
                connection.shutdown(socket.SHUT_WR)
            response = http.client.HTTPResponse(connection, method=case.method)
            response.begin()
            return Answer(response.status, response.getheader("content-type", ""), response.read())
    except TimeoutError:
        return Answer(lost=f"no answer in {SECONDS} seconds")
    except (http.client.HTTPException, OSError) as error:
        return Answer(lost=f"no whole answer: {type(error).__name__}")


def models():
    """Small random models of every kind, by name; the same each time."""
    found = {
        "hybrid": bundle(process="epsilon", eos_id=2),
        "masked": bundle("flat", process="absorbing"),
        "aligned": bundle(process="absorbing", shifted=False),
        "even": bundle(process="uniform", shifted=False),
        "ids": bundle(process="gamma"),
    }
    found["hybrid"].chat_template = "{% for one in messages %}{{ one.content }} {% endfor %}"
    found["ids"].tokenizer = None
    return found


def rows(client, seed, numbers, *, share, threads=4):
    """What became of cases; every `share`-th result is compared with the library's."""
    own = models()
    with ThreadPoolExecutor(threads) as pool, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, answer in zip(numbers, pool.map(lambda n: send(client.port, draw(seed, n)), numbers), strict=True):
            case = draw(seed, number)
            kind, why = judge(case, answer, own if number % share == 0 else None)
            yield {"case": number, "section": case.section, "kind": kind, "why": why, "path": case.path[:60]}


def settled(client):
    """That a server answers, and that nothing is running or waiting in the end."""
    for _ in range(200):
        health = client.get("/health")[2]
        if (health["texts"], health["waiting"]) == (0, 0):
            return client.post("/v1/completions", {"prompt": "a", "max_tokens": 3})["choices"] != []
        time.sleep(0.05)
    return False


def main():
    parser = argparse.ArgumentParser(prog="fuzz.requests", description="Random requests to a server.")
    parser.add_argument("--cases", type=int, default=200, metavar="N", help="how many (200)")
    parser.add_argument("--seed", type=int, default=0, help="of all of them (0)")
    parser.add_argument("--case", type=int, metavar="N", help="this one alone, and show all of it")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the counts here")
    args = parser.parse_args()
    torch.set_num_threads(1)
    began, counts, failures = time.monotonic(), Counter(), []
    numbers = range(args.cases) if args.case is None else [args.case]
    with serving(models(), **LIMITS) as client:
        if args.case is not None:
            client.server.app._quiet = False
            case = draw(args.seed, args.case)
            print(f"{case.sent()[:2000]!r}\n{send(client.port, case)}"[:6000])
        for row in rows(client, args.seed, numbers, share=2 if args.case is None else 1):
            counts[row["section"], row["kind"]] += 1
            if row["kind"] == "failed":
                failures.append(row)
                print(f"case {row['case']} ({row['section']}, {row['path']}): {row['why']}", file=sys.stderr)
        answers = settled(client)
    sections = {name: {kind: counts[name, kind] for kind in KINDS} for name in sorted({name for name, _ in counts})}
    for name, row in sections.items():
        print(f"{name:<12}" + "".join(f"{kind} {row[kind]:>6,}   " for kind in KINDS))
    print(f"afterwards the server {'answers, and nothing is running or waiting' if answers else 'DOES NOT ANSWER'}")
    if args.json is not None:
        command = f"PYTHONPATH=tests python -m fuzz.requests --cases {args.cases} --seed {args.seed}"
        found = {"command": command, "cases": sum(counts.values()), "seconds": round(time.monotonic() - began)}
        found |= {"compared_with_the_library": "every second case", "sections": sections, "answers_afterwards": answers}
        args.json.write_text(json.dumps(found, indent=2) + "\n")
    return int(bool(failures) or not answers)


if __name__ == "__main__":
    sys.exit(main())
