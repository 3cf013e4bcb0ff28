"""The server and many clients: throughput, the wait for a first token, equality with the library, the start.

    python benchmarks/serving.py --out serving.json

Starts `hdlm serve stories` on a free port of this machine, on two threads unless OMP_NUM_THREADS says otherwise; its
clients are threads of this process, and share its cores. Texts have fixed seeds. Of each way to
decode: tokens per second of texts asked for one at a time and all at once, and seconds to the first settled token of a
stream, alone and in company; then the share of texts under load that are the library's, in float32 and in float64; then
the seconds from the command to the first whole story.
"""

import argparse
import http.client
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

THREADS = os.environ.setdefault("OMP_NUM_THREADS", "2")

import hdlm  # noqa: E402

WAYS = {
    "own": {},
    "ar": {"hyperschedule": "ar"},
    "block 16 rate 4": {"hyperschedule": "block", "width": 16, "rate": 4},
}
JSON = {"Content-Type": "application/json"}


class Running:
    """A server in a process of its own."""

    def __init__(self, process, port, began):
        self.process, self.port, self.began = process, port, began

    def connect(self, seconds=120.0):
        """A connection to it."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)

    def ask(self, path, body=None):
        """Status and bytes of an answer."""
        connection, method = self.connect(), "GET" if body is None else "POST"
        with suppress(BrokenPipeError, ConnectionResetError):  # refused before all of it was there
            connection.request(method, path, json.dumps(body) if isinstance(body, dict) else body, JSON)
        answer = connection.getresponse()
        found = answer.read()
        connection.close()
        return answer.status, found

    def written(self, body):
        """The answer to a completion that is accepted."""
        status, found = self.ask("/v1/completions", body)
        if status != 200:
            raise RuntimeError(f"status {status}: {found[:300]!r}")
        return json.loads(found)

    def first_token(self, body):
        """Seconds from asking for a stream to its first settled text."""
        connection, began = self.connect(), time.perf_counter()
        connection.request("POST", "/v1/completions", json.dumps(body | {"stream": True}), JSON)
        answer, first = connection.getresponse(), math.nan
        for line in answer:
            if math.isnan(first) and line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["text"]:
                first = time.perf_counter() - began
        connection.close()
        return first

    def memory(self):
        """MiB of memory that its process has."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def files(self):
        """Files and sockets that are open in it."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


@contextmanager
def serving(*flags):
    """A server from the command line, once it says that it is ready; what it says goes to a file that is removed."""
    with tempfile.TemporaryFile("w+") as said:
        began = time.perf_counter()
        command = [sys.executable, "-m", "hdlm", "serve", "stories", "--port", "0", "--quiet", *flags]
        process = subprocess.Popen(command, stderr=said)
        try:
            while " at http://" not in (line := os.pread(said.fileno(), 4096, 0).decode()):
                if process.poll() is not None or time.perf_counter() - began > 120:
                    raise RuntimeError(f"the server does not start: {line}")
                time.sleep(0.01)
            yield Running(process, int(line.partition(" at http://")[2].split()[0].rsplit(":", 1)[1]), began)
        finally:
            process.terminate()  # within its --drain of 30 seconds
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
            if "Traceback" in (words := os.pread(said.fileno(), 2**20, 0).decode(errors="replace")):
                print(words[-5000:], file=sys.stderr)


def body_of(seed, tokens, way):
    """A completion that has all of its tokens."""
    return {"seed": seed, "max_tokens": tokens, "ignore_eos": True, **WAYS[way]}


def library_writes(bundle, body):
    """What the library writes for a completion."""
    kind = {"ar": "quench"}.get(body.get("hyperschedule"), body.get("hyperschedule"))
    how = {"kind": kind, "width": body.get("width"), "rate": body.get("rate"), "stop_at_eos": False}
    return bundle.generate(body.get("prompt"), length=body["max_tokens"], seed=body["seed"], **how)


def throughput(server, way, args):
    """Tokens per second one at a time and all at once: the median of several rounds of both, and of their ratios."""
    bodies = [body_of(seed, args.tokens, way) for seed in range(args.texts)]
    rounds = []
    for _ in range(args.repeats):
        speeds = []
        for clients in (1, args.texts):
            began = time.perf_counter()
            with ThreadPoolExecutor(clients) as pool:
                written = sum(one["usage"]["completion_tokens"] for one in pool.map(server.written, bodies))
            speeds.append(written / (time.perf_counter() - began))
        rounds.append(speeds)
    alone, together = (statistics.median(speeds) for speeds in zip(*rounds, strict=True))
    ratios = [together / alone for alone, together in rounds]
    return {"alone": alone, "together": together, "ratio": statistics.median(ratios), "ratios": ratios}


def first_tokens(server, way, args):
    """Median and 95th percentile of the seconds to a first token, alone and in company."""
    bodies, found = [body_of(seed, args.tokens, way) for seed in range(args.texts * args.repeats)], {}
    for name, clients in (("alone", 1), ("together", args.texts)):
        with ThreadPoolExecutor(clients) as pool:
            seconds = sorted(pool.map(server.first_token, bodies))
        found[name] = {"median": statistics.median(seconds), "p95": seconds[math.ceil(0.95 * len(seconds)) - 1]}
    return found | {"ratio of p95": found["together"]["p95"] / found["alone"]["p95"]}


def equality(dtype, args):
    """How many texts that are written side by side are those of the library, of all ways to decode."""
    ways = [*WAYS]
    bodies = [body_of(seed, args.tokens, ways[seed % len(ways)]) for seed in range(args.equal)]
    with serving("--dtype", dtype, "--max-queue", str(args.equal)) as server, ThreadPoolExecutor(args.equal) as pool:
        texts = [answer["choices"][0]["text"] for answer in pool.map(server.written, bodies)]
    bundle = hdlm.load("stories", device="cpu", dtype=dtype)
    same = sum(library_writes(bundle, body).new_text[0] == text for body, text in zip(bodies, texts, strict=True))
    return {"texts": len(texts), "equal": same, "share": same / len(texts)}


def first_story():
    """Seconds from the command until it answers, and until its first whole story is here."""
    with serving() as server:
        ready = time.perf_counter() - server.began
        answer = server.written({"seed": 0})
        seconds = time.perf_counter() - server.began
    return {"ready": ready, "story": seconds, "tokens": answer["usage"]["completion_tokens"]}


def measure(args):
    """All that is measured, printed on the way."""
    found = {"threads": int(THREADS), "texts": args.texts, "tokens": args.tokens, "throughput": {}, "first token": {}}
    with serving("--dtype", args.dtype or "float32") as server:
        server.written(body_of(0, args.tokens, "own"))  # what is only slow once
        for way in WAYS:
            one = found["throughput"][way] = throughput(server, way, args)
            print(f"{way:<18}{one['alone']:8.1f} tokens/s alone, {one['together']:8.1f} together, {one['ratio']:.2f} x")
        for way in WAYS:
            one = found["first token"][way] = first_tokens(server, way, args)
            words = [
                f"{name} {one[name]['median']:.4f} s (p95 {one[name]['p95']:.4f})" for name in ("alone", "together")
            ]
            print(f"{way:<18}first token {', '.join(words)}, p95 {one['ratio of p95']:.2f} x")
    found["equal to the library"] = {}
    for dtype in ("float32", "float64"):
        one = found["equal to the library"][dtype] = equality(dtype, args)
        print(f"{dtype:<18}{one['equal']} of {one['texts']} texts are those of the library")
    one = found["from the command"] = first_story()
    print(f"{'start':<18}{one['ready']:.2f} s until it listens, {one['story']:.2f} s to a story of {one['tokens']}")
    return found


def main():
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=int, default=16, help="at once (16)")
    parser.add_argument("--tokens", type=int, default=96, help="of each text (96)")
    parser.add_argument("--repeats", type=int, default=3, help="rounds of each measurement (3)")
    parser.add_argument("--equal", type=int, default=64, help="texts that are compared with the library's (64)")
    parser.add_argument("--dtype", help="of the speeds (float32)")
    parser.add_argument("--out", type=Path, help="write all of it here, as JSON")
    args = parser.parse_args()
    found = measure(args)
    if args.out is not None:
        args.out.write_text(json.dumps({"command": " ".join(sys.argv), **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
