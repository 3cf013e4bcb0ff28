"""`hdlm serve` from the command line: what it says, what it refuses, and how it ends."""

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest
from support.bundles import bundle

import hdlm
from hdlm.cli.main import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return bundle(process="absorbing", model={"layers": 6}).save(tmp_path_factory.mktemp("models") / "small")


@contextmanager
def started(*words):
    """The process, and the port at which it said to be ready."""
    command = [sys.executable, "-m", "hdlm", "serve", *map(str, words), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stderr.readline()
        assert " at http://127.0.0.1:" in line, line + process.stderr.read()
        yield process, int(line.rsplit(":", 1)[1])
    finally:
        process.kill()
        process.wait(30)
        process.stderr.close()


def asked(port, body):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    found = json.loads(answer.read())
    connection.close()
    return answer.status, found


def test_models_are_served_by_their_names_and_each_request_is_a_line(folder):
    alone = hdlm.load(folder, dtype="float64").generate("ab", length=8, seed=3)
    with started(folder, f"other={folder}", "--dtype", "float64") as (process, port):
        for name in ("small", "other"):
            body = {"model": name, "prompt": "ab", "max_tokens": 8, "seed": 3}
            status, found = asked(port, body)
            assert (status, found["choices"][0]["text"]) == (200, alone.new_text[0])
        process.send_signal(signal.SIGTERM)
        lines = [json.loads(line) for line in process.stderr.read().splitlines()]
        assert process.wait(30) == 0
    assert [(line["path"], line["status"], line["tokens"], line["model"]) for line in lines] == [
        ("/v1/completions", 200, 8, "small"),
        ("/v1/completions", 200, 8, "other"),
    ]


def test_what_has_begun_is_finished_before_it_stops(folder):
    with started(folder, "--quiet", "--drain", 100) as (process, port):
        found = []
        body = {
            "prompt": "ab",
            "max_tokens": 20,
            "rate": 0.1,
            "n": 16,
            "sampler": "posterior",
        }
        waiting = threading.Thread(target=lambda: found.append(asked(port, body)))
        waiting.start()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        end = time.monotonic() + 30
        while True:
            connection.request("GET", "/health")
            if json.loads(connection.getresponse().read())["texts"] or found or time.monotonic() > end:
                break
        connection.close()
        assert not found, "it was done before anybody could look"
        process.send_signal(signal.SIGTERM)
        waiting.join(120)
        assert process.wait(30) == 0
        assert found[0][0] == 200
        assert len(found[0][1]["choices"]) == 16


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nobody"], "nobody does not exist"),
        (["--port", "70000"], "port = 70000 is not accepted"),
        (["--port", "x"], "invalid int value"),
        (["--host", "256.0.0.1"], "--host 256.0.0.1"),
        (["--max-batch", "0"], "max_batch = 0"),
        (["--max-queue", "-1"], "max_queue = -1"),
        (["--timeout", "nan"], "timeout = nan"),
        (["--drain", "-1"], "drain = -1"),
        (["--api-key", ""], "--api-key is not accepted"),
        (["--api-key", "a b"], "--api-key is not accepted"),
        (["stories", "stories"], "every model needs a name of its own"),
        (["=stories"], "every model needs a name of its own"),
        (["--device", "gpu"], "device = 'gpu'"),
        (["--dtype", "int8"], "dtype = 'int8'"),
    ],
    ids=str,
)
def test_what_cannot_be_served_is_refused_in_a_line(words, said, capsys):
    port = [] if "--port" in words else ["--port", "0"]
    assert main(["serve", *words, *port]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1


def test_a_port_that_is_taken_is_refused_before_models_are_read(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["serve", "nobody", "--port", str(taken.getsockname()[1])]) == 2
    assert "cannot listen on 127.0.0.1" in capsys.readouterr().err


def test_without_the_packages_it_says_which_and_how(monkeypatch, capsys):
    monkeypatch.setattr("hdlm.cli.serve.find_spec", lambda name: None if name == "uvicorn" else name)
    assert main(["serve"]) == 2
    assert "pip install 'hdlm[serve]'" in capsys.readouterr().err
