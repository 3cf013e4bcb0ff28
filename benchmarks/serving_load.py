"""What the server stands: clients of all kinds at once, and checks of what they got and of what is left in the end.

    python benchmarks/serving_load.py --seconds 60 --clients 64 --out serving-load.json

Starts `hdlm serve stories` on a free port of this machine. Clients ask for texts, streams, gaps and scores whose
results are known; some read slowly, half of them leave before the end, some send garbage or too much. The exit status
is 1 if a check fails.
"""

import argparse
import http.client
import json
import math
import random
import socket
import statistics
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from serving import JSON, THREADS, WAYS, body_of, library_writes, serving

import hdlm

BODY_LIMIT = 2**20  # bytes, of a server that is not told otherwise
GROWTH = 0.05  # of the server's memory in the last third of a load, against the middle one
FILES = 3  # open files more than before, once all clients have gone


def tasks_of(bundle):
    """Requests whose results are known: path, body and result."""
    found, ways = [], [*WAYS]
    for seed in range(12):
        body = body_of(seed, 32, ways[seed % len(ways)]) | {"prompt": ["Once upon a time", ""][seed % 2]}
        alone = library_writes(bundle, body)
        found += [("/v1/completions", more, alone.new_text[0]) for more in (body, body | {"stream": True})]
        found.append(("/v1/stream", body, alone.tokens[0]))
    for seed in range(6):
        gaps = "Tom had a [[gap:4]]. He was sad."
        text = bundle.infill(gaps, seed=seed).text[0]
        found += [
            ("/v1/fill", {"text": gaps, "seed": seed}, text),
            ("/v1/score", {"text": text}, bundle.logprobs(text)),
        ]
    return found


def is_result(wanted, path, data):
    """Whether an answer, or the events of a stream, come to what is known."""
    if path == "/v1/score":
        return math.isclose(sum(one["logprob"] for one in data["tokens"]), wanted.total, rel_tol=1e-6)
    if path == "/v1/stream":
        return data[-1]["choices"][0]["tokens"] == wanted
    answers = data if isinstance(data, list) else [data]
    return "".join(part["text"] for one in answers for part in one["choices"]) == wanted


def _events(found):
    """The events of a stream that ended as it should; None: it did not."""
    *lines, done = [line.removeprefix("data: ") for line in found.decode().split("\n\n")[:-1]]
    return [*map(json.loads, lines)] if done == "[DONE]" else None


class Crowd:
    """Clients that ask until the time is up: what they got, by kind and end."""

    def __init__(self, server, tasks, until):
        self.server, self.tasks, self.until = server, tasks, until
        self.counts, self.wrong, self._lock = Counter(), [], threading.Lock()

    def client(self, number):
        """One client, whose requests are its own every time."""
        lot = random.Random(number)
        while time.monotonic() < self.until:
            kind, end = "other", "lost"
            try:
                kind, end = self._one(lot)
            except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError) as error:
                end = f"lost: {type(error).__name__}"
            with self._lock:
                self.counts[kind, end] += 1

    def _one(self, lot):
        """One request: what it was, and how it ended."""
        if (way := lot.random()) < 0.1:
            return "garbage", self._garbage(lot)
        if way < 0.15:
            status, _ = self.server.ask("/v1/completions", b" " * (BODY_LIMIT + 1))
            return "too large", "refused" if status == 413 else f"wrong: {status}"
        path, body, wanted = lot.choice(self.tasks)
        kind, streams = f"{path}{' as stream' * ('stream' in body)}", body.get("stream") or path == "/v1/stream"
        slow = bool(streams) and lot.random() < 0.2
        return kind + ", slow" * slow, self._asked(lot, path, body, wanted, streams, slow, lot.random() < 0.5)

    def _garbage(self, lot):
        """Bytes that are no HTTP, or no JSON: refused, or hung up on."""
        if lot.random() < 0.5:
            status, _ = self.server.ask("/v1/completions", lot.randbytes(200))
            return "refused" if status == 400 else f"wrong: {status}"
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=60) as connection:
            connection.sendall(lot.randbytes(300) + b"\r\n\r\n")
            connection.shutdown(socket.SHUT_WR)
            status = connection.recv(12).partition(b" ")[2]
        return "refused" if status in (b"", b"400") else f"wrong: {status}"

    def _asked(self, lot, path, body, wanted, streams, slow, leaves):
        """A request that is read to its end and checked, or left in the middle."""
        connection = self.server.connect()
        connection.request("POST", path, json.dumps(body), JSON)
        if leaves and not streams:
            time.sleep(lot.uniform(0, 1))
            connection.close()
            return "left"
        answer, found, most = connection.getresponse(), b"", lot.randrange(3000) if leaves else math.inf
        while len(found) < most and (part := answer.read(100) if slow else answer.read1(4096)):
            found += part
            if slow:
                time.sleep(0.2)
                if time.monotonic() > self.until:
                    most = 0
        connection.close()
        if len(found) >= most:
            return "left"
        if answer.status != 200:
            return f"wrong: {answer.status}"
        data = _events(found) if streams else json.loads(found)
        if data is None or not is_result(wanted, path, data):
            with self._lock:
                self.wrong.append((path, body, found[-300:].decode(errors="replace")))
            return "wrong: another text"
        return "equal"


def load(args):
    """A crowd against one server; the checks of what came of it."""
    dtype = args.dtype or "float64"
    tasks = tasks_of(hdlm.load("stories", device="cpu", dtype=dtype))
    with serving("--dtype", dtype, "--max-queue", str(4 * args.clients)) as server:
        for path, body, _ in tasks[:6]:
            server.ask(path, body)  # what is only slow once
        files, began = server.files(), time.monotonic()
        crowd, memory, opened = Crowd(server, tasks, began + args.seconds), [], []
        threads = [threading.Thread(target=crowd.client, args=(number,), daemon=True) for number in range(args.clients)]
        for thread in threads:
            thread.start()
        while time.monotonic() < crowd.until and server.process.poll() is None:
            memory.append(server.memory())
            opened.append(server.files())
            time.sleep(1)
        for thread in threads:
            thread.join(120)
        hung, end = sum(thread.is_alive() for thread in threads), time.monotonic() + 30
        while (idle := json.loads(server.ask("/health")[1]))["texts"] + idle["waiting"] and time.monotonic() < end:
            time.sleep(0.1)
        path, body, wanted = tasks[0]
        answers = is_result(wanted, path, json.loads(server.ask(path, body)[1]))
        time.sleep(1)
        left = server.files()
    third = max(1, len(memory) // 3)
    middle, last = statistics.fmean(memory[third : 2 * third] or memory), statistics.fmean(memory[-third:])
    bad = {f"{kind}: {end}": n for (kind, end), n in crowd.counts.items() if end.startswith(("wrong", "lost"))}
    checks = {
        "every text that was read to its end is the library's, none is lost, nothing failed": not bad,
        "no client hangs": hung == 0,
        "memory is flat": last <= middle * (1 + GROWTH),
        "open files are flat": left <= files + FILES,
        "nothing is running or waiting in the end": idle["texts"] == idle["waiting"] == 0,
        "a plain request is answered": answers,
    }
    found = {"seconds": args.seconds, "clients": args.clients, "dtype": dtype, "threads": int(THREADS), "counts": {}}
    for (kind, end), n in sorted(crowd.counts.items()):
        found["counts"].setdefault(kind, {})[end] = n
        print(f"{kind:<36}{end:<24}{n:>7,}")
    found |= {"memory_mib": {"first": memory[0], "middle third": middle, "last third": last, "most": max(memory)}}
    found |= {
        "files": {"before": files, "most": max(opened), "after": left},
        "wrong": crowd.wrong[:5],
        "checks": checks,
    }
    print(f"memory in MiB: {', '.join(f'{name} {value:.1f}' for name, value in found['memory_mib'].items())}")
    print(f"open files: {', '.join(f'{name} {value}' for name, value in found['files'].items())}")
    for words, held in checks.items():
        print(f"{'yes' if held else 'NO ':<5}{words}")
    return found, all(checks.values())


def main():
    """Load, and check."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60, help="(60)")
    parser.add_argument("--clients", type=int, default=64, help="(64)")
    parser.add_argument("--dtype", help="(float64)")
    parser.add_argument("--out", type=Path, help="write all of it here, as JSON")
    args = parser.parse_args()
    found, held = load(args)
    if args.out is not None:
        args.out.write_text(json.dumps({"command": " ".join(sys.argv), **found}, indent=1) + "\n")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
