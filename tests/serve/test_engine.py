"""Texts of many clients at once: who waits, who leaves, and that nobody's text depends on the others."""

import json
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.bundles import bundle
from support.server import serving

pytestmark = pytest.mark.filterwarnings("ignore:.*trained on.*:UserWarning")


def by_lot(lot):
    how = {"prompt": lot.choice(["a", "abc", [3, 4], ""]), "seed": lot.randrange(50), "n": lot.choice([1, 1, 2, 3])}
    how["hyperschedule"] = lot.choice(["ar", "block", "slide", "flat"])
    how["max_tokens"] = lot.randrange(5, 20)
    how["temperature"] = lot.choice([0.5, 1.0])
    if how["hyperschedule"] in ("block", "slide"):
        how["width"] = lot.choice([2, 4, 5])
    return how


@pytest.mark.parametrize("backend", [None, "reference"])
def test_texts_under_load_are_those_of_a_request_alone(models, backend):
    lot = random.Random(3)
    bodies = [by_lot(lot) for _ in range(40)]
    kinds = {"ar": "quench"}
    with serving(models, backend=backend, max_batch=7) as server, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda body: server.post("/v1/completions", body), bodies))
    for body, answer in zip(bodies, answers, strict=True):
        how = {name: body[name] for name in ("seed", "temperature", "width") if name in body}
        kind = kinds.get(body["hyperschedule"], body["hyperschedule"])
        how |= {"length": body["max_tokens"], "num_samples": body["n"], "kind": kind}
        prompt = [body["prompt"]] if isinstance(body["prompt"], list) else body["prompt"]
        alone = models["hybrid"].generate(prompt, **how)
        new = [row[start:] for row, start in zip(alone.tokens, alone.prompt_lengths, strict=True)]
        assert [choice["tokens"] for choice in answer["choices"]] == new


class Slow:
    """A network that waits, so that tests can look at what happens meanwhile."""

    def __init__(self, monkeypatch, engine):
        self.open = threading.Event()
        turn = engine._turn
        monkeypatch.setattr(engine, "_turn", lambda: self.open.wait(20) and turn())


def until(found):
    end = time.monotonic() + 20
    while not found():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.005)


def test_a_full_line_is_refused_with_when_to_come_again(monkeypatch):
    with serving({"one": bundle()}, max_batch=2, max_queue=1) as server, ThreadPoolExecutor(8) as pool:
        slow, engine = Slow(monkeypatch, server.server.engine), server.server.engine
        body = {"prompt": "a", "max_tokens": 8, "n": 2}
        first = pool.submit(server.post, "/v1/completions", body)
        until(lambda: engine.running == 2)
        second = pool.submit(server.post, "/v1/completions", body)
        until(lambda: engine.waiting == 1)
        for path, asked in (("/v1/completions", body), ("/v1/score", {"text": "a"}), ("/v1/stream", {"prompt": "a"})):
            status, headers, found = server.send("POST", path, asked)
            assert (status, found["error"]["type"]) == (429, "rate_limit_error")
            assert int(headers["retry-after"]) >= 1
        assert server.get("/health")[2]["waiting"] == 1
        slow.open.set()
        assert len(first.result()["choices"]) == len(second.result()["choices"]) == 2
        server.post("/v1/completions", body)


def test_who_leaves_makes_room(monkeypatch):
    with serving({"one": bundle()}, max_batch=1, max_queue=2) as server, ThreadPoolExecutor(2) as pool:
        slow, engine = Slow(monkeypatch, server.server.engine), server.server.engine
        leaving = []
        for path in ("/v1/completions", "/v1/stream", "/v1/completions"):
            connection = server.connect()
            connection.request("POST", path, json.dumps({"prompt": "a"}), {"Content-Type": "application/json"})
            leaving.append(connection)
            until(lambda: engine.running + engine.waiting == len(leaving))
        for connection in leaving:
            connection.sock.close()
            connection.close()
        until(lambda: server.server.metrics._counts.get(("hdlm_left_total", ()), 0) == 3)
        staying = pool.submit(server.post, "/v1/completions", {"prompt": "a", "seed": 1})
        slow.open.set()
        assert staying.result()["choices"]
        until(lambda: engine.running + engine.waiting == 0)


def test_time_that_is_up_is_told_and_makes_room(monkeypatch):
    with serving({"one": bundle()}, timeout=0.2) as server:
        slow, engine = Slow(monkeypatch, server.server.engine), server.server.engine
        status, _, found = server.send("POST", "/v1/completions", {"prompt": "a"})
        assert (status, found["error"]["message"]) == (504, "not done in 0.2 seconds")
        text = server.send("POST", "/v1/completions", {"prompt": "a", "stream": True})[2].decode()
        assert "not done in 0.2 seconds" in text
        slow.open.set()
        until(lambda: engine.running == 0)


def test_a_score_lets_texts_go_on(monkeypatch, models):
    """Work in between tells how far it is, and the texts take turns meanwhile."""
    with serving(models) as server, ThreadPoolExecutor(2) as pool:
        engine, met = server.server.engine, []
        turn, do = engine._turn, engine._do

        def watched():
            met.append(engine.running)
            turn()

        def doing(job):
            met.append("work")
            do(job)
            met.append("done")

        monkeypatch.setattr(engine, "_do", doing)
        slow = Slow(monkeypatch, engine)
        monkeypatch.setattr(engine, "_turn", lambda: slow.open.wait(20) and watched())
        text = pool.submit(server.post, "/v1/completions", {"prompt": "a", "hyperschedule": "ar", "ignore_eos": True})
        gap = pool.submit(server.post, "/v1/fill", {"model": "masked", "text": "ab[[gap:1-6]]cd"})
        until(lambda: engine.running == 1 and engine.waiting == 1)
        slow.open.set()
        text.result(), gap.result()
        inside = met[met.index("work") : met.index("done")]
        assert inside.count(1) >= 3


def test_a_job_that_fails_in_between_is_that_clients_alone(monkeypatch, server):
    def broken(*_, **__):
        raise KeyError("something")

    monkeypatch.setattr("hdlm.serve.answers.score", broken)
    status, _, found = server.send("POST", "/v1/score", {"text": "a"})
    assert (status, found["error"]["type"]) == (500, "server_error")
    server.post("/v1/completions", {"prompt": "a"})
