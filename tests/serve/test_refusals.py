"""What is wrong with a request is said in one line, with the field, before anything waits in line."""

import json

import pytest
from support.bundles import bundle
from support.server import serving

from hdlm.serve.guard import Access

DECODING = [
    ({"temperature": -1}, "temperature"),
    ({"temperature": "warm"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_k": 0}, "top_k"),
    ({"top_k": 2.0}, "top_k"),
    ({"seed": -1}, "seed"),
    ({"seed": 2**63}, "seed"),
    ({"seed": "x"}, "seed"),
    ({"seed": "1" * 30}, "seed"),
    ({"sampler": "nobody"}, "sampler"),
    ({"sampler": 3}, "sampler"),
    ({"sampler": "certain", "eta": 0.5}, "eta"),
    ({"eta": 2}, "eta"),
    ({"threshold": -1, "sampler": "certain"}, "threshold"),
    ({"hyperschedule": "quench"}, "hyperschedule"),
    ({"hyperschedule": "blok"}, "hyperschedule"),
    ({"hyperschedule": "custom"}, "hyperschedule"),
    ({"hyperschedule": "ar", "rate": 2}, "rate"),
    ({"hyperschedule": "flat", "width": 4}, "width"),
    ({"width": 0}, "width"),
    ({"rate": 0}, "rate"),
    ({"rate": 1e-9}, "rate"),
    ({"rate": 1e-300}, "rate"),
    ({"levels": [[1], [1]]}, "levels"),
    ({"levels": [[1, 1], [0, 0]], "rate": 2}, "levels"),
    ({"levels": [[1] * 40, [0] * 40]}, "levels"),
    ({"levels": "high"}, "levels"),
    ({"speculate": True, "sampler": "certain"}, "speculate"),
    ({"speculate": True, "hyperschedule": "block"}, "speculate"),
    ({"speculate": "yes"}, "speculate"),
    ({"ignore_eos": 1}, "ignore_eos"),
    ({"n": 0}, "n"),
    ({"n": 17}, "n"),
    ({"n": 9, "prompt": ["a", "b"]}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 25}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"model": "nobody"}, "model"),
    ({"model": 4}, "model"),
    ({"nothing": 1}, "nothing"),
    ({"frequency_penalty": 0.5}, "frequency_penalty"),
    ({"presence_penalty": 1}, "presence_penalty"),
    ({"logit_bias": {"3": 1}}, "logit_bias"),
    ({"user": 3}, "user"),
]
PROMPTS = [
    ({"prompt": 3}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": {}}, "prompt"),
    ({"prompt": [1.5]}, "prompt"),
    ({"prompt": [True]}, "prompt"),
    ({"prompt": [[11]]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": ["a", 1]}, "prompt"),
    ({"prompt": "Q"}, "prompt"),
    ({"prompt": "\ud800"}, "prompt"),
    ({"prompt": "ab[[gap:3]]"}, "prompt"),
    ({"prompt": "a" * 25}, "prompt"),
    ({"prompt": [[[1]]]}, "prompt"),
]
COMPLETIONS = [
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"echo": True, "logprobs": 1}, "echo"),
    ({"best_of": 2}, "best_of"),
    ({"suffix": "a"}, "suffix"),
    ({"stream": "no"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"other": True}}, "stream_options"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a"] * 5}, "stop"),
    ({"stop": [3]}, "stop"),
    ({"max_completion_tokens": 3}, "max_completion_tokens"),
]
STREAMS = [({"top": 11}, "top"), ({"replay": 1}, "replay"), ({"text": "a[[gap:1]]", "prompt": "a"}, "prompt")]
FILLS = [
    ({}, "text"),
    ({"text": "ab"}, "text"),
    ({"text": 3}, "text"),
    ({"text": "a[[gap:0]]b"}, "text"),
    ({"text": "a[[gap:99]]b"}, "text"),
    ({"text": "a[[gap:x]]b"}, "text"),
    ({"text": "a[[gap:20]][[gap:20]]b"}, "text"),
    ({"text": "a[[gap]]"}, "text"),
    ({"text": "a[[gap:2]]b", "max_tokens": 3}, "max_tokens"),
    ({"text": "a[[gap:2]]b", "rate": -1}, "rate"),
    ({"text": "a[[gap:2]]b", "rate": 1e-320}, "rate"),
    ({"text": "a[[gap:2]]b", "sampler": "left"}, "sampler"),
    ({"text": "a[[gap:2]]b", "n": 99}, "n"),
    ({"text": "a[[gap:9]]b", "model": "aligned"}, "text"),
]
SCORES = [
    ({}, "text"),
    ({"text": ""}, "text"),
    ({"text": ["a", "b"]}, "text"),
    ({"text": "a", "samples": 0}, "samples"),
    ({"text": "a", "samples": 65}, "samples"),
    ({"text": "a", "seed": -1}, "seed"),
    ({"text": "a", "hyperschedule": "custom"}, "hyperschedule"),
    ({"text": "a", "width": 3}, "width"),
    ({"text": "a", "hyperschedule": "flat", "width": 3}, "width"),
    ({"text": "a", "hyperschedule": "ar", "model": "aligned"}, "hyperschedule"),
    ({"text": "a", "temperature": 1}, "temperature"),
]
CHATS = [
    ({}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "user", "content": "a"}]}, "messages"),
    ({"messages": [{"role": "robot", "content": "a"}]}, "messages"),
    ({"messages": [{"role": "user", "content": 3}]}, "messages"),
    ({"messages": [{"role": "user", "content": "a", "tool_calls": []}]}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
    ({"messages": [{"role": "user", "content": "a"}], "top_logprobs": 3}, "top_logprobs"),
    ({"messages": [{"role": "user", "content": "a"}], "tools": []}, "tools"),
]
CASES = [
    *(("/v1/completions", {"prompt": "a", **body}, param) for body, param in [*DECODING, *PROMPTS, *COMPLETIONS]),
    *(("/v1/stream", {"prompt": "a", **body}, param) for body, param in [*DECODING, *PROMPTS, *STREAMS]),
    *(("/v1/fill", {"model": "masked", **body}, param) for body, param in FILLS),
    *(("/v1/score", body, param) for body, param in SCORES),
    *(("/v1/chat/completions", body, param) for body, param in CHATS if "tools" not in body),
]


@pytest.mark.parametrize(("path", "body", "param"), CASES, ids=str)
def test_a_field_that_is_wrong_is_named(server, path, body, param):
    status, error = server.refused(path, body)
    assert (status, error["param"]) == (404 if body.get("model") == "nobody" else 400, param), error["message"]
    assert "\n" not in error["message"]
    assert len(error["message"]) <= 520
    assert error["type"] in ("invalid_request_error", "not_found_error")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"3",
        b"null",
        b'{"prompt": NaN}',
        b'{"prompt": "a", "prompt": "b"}',
        b'{"\\ud800": 1}',
        b'{"\\ud800": 1, "\\ud800": 2}',
        b'{"prompt": "a", "temperature": 1e999}',
        b"\xff\xfe{",
        b"[" * 100_000,
        b'{"temperature": ' + b"9" * 5000 + b"}",
    ],
    ids=lambda body: str(body[:30]),
)
def test_a_body_that_is_no_object_is_refused(server, body):
    status, error = server.refused("/v1/completions", body)
    assert status == 400
    assert len(error["message"]) <= 520


def test_methods_paths_and_kinds_of_bodies(server):
    assert server.get("/v1/completions")[0] == 404
    assert server.get("/../../etc/passwd")[0] == 404
    assert server.get("/page/..%2f..%2fbundle.py")[0] == 404
    assert server.get("/page/nobody.js")[0] == 404
    assert server.send("PUT", "/v1/fill", {"text": "a"})[0] == 404
    for method in ("OPTIONS", "TRACE", "NOTHING"):
        status, _, found = server.send(method, "/v1/models")
        assert (status, found["error"]["type"]) == (405, "invalid_request_error")
    assert server.refused("/v1/fill", {"text": "a"}, {"Content-Type": "text/plain"})[0] == 415
    big = {"prompt": "a" * 2**21}
    assert server.refused("/v1/completions", big)[0] == 413


def test_a_body_that_says_nothing_of_its_size_is_bounded_too(server):
    connection = server.connect()
    connection.putrequest("POST", "/v1/completions")
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Transfer-Encoding", "chunked")
    connection.endheaders()
    for _ in range(20):
        connection.send(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
    connection.send(b"0\r\n\r\n")
    assert connection.getresponse().status == 413
    connection.close()


def test_keys_are_wanted_where_there_are_some():
    with serving({"one": bundle()}, access=Access(keys=["secret", "other"])) as server:
        body = {"prompt": "a", "max_tokens": 2}
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "secret"},
            {"Authorization": "Bearer "},
        ):
            status, found, _ = server.send("POST", "/v1/completions", body, headers)
            assert (status, found["www-authenticate"]) == (401, "Bearer")
            assert server.get("/metrics", headers)[0] == server.get("/v1/models", headers)[0] == 401
        for key in ("secret", "other"):
            server.post("/v1/completions", body, {"Authorization": f"Bearer {key}"})
        assert server.get("/health")[0] == server.get("/")[0] == 200


def test_names_that_lead_here_from_elsewhere_are_refused(server):
    for host in ("evil.example", "evil.example:80", "", "localhost.evil.example", "10.0.0.1"):
        assert server.get("/v1/models", {"Host": host})[0] == 403
    for host in ("localhost", f"localhost:{server.port}", "127.0.0.1:5", "[::1]:80", "x.localhost"):
        assert server.get("/v1/models", {"Host": host})[0] == 200
    for origin in ("null", "http://[", "", "file://"):
        assert server.get("/v1/models", {"Origin": origin})[0] == 403


def test_pages_from_elsewhere_may_ask_only_where_that_is_said(server):
    page = {"Origin": "https://page.example"}
    assert server.refused("/v1/completions", {"prompt": "a"}, page)[0] == 403
    own = {"Origin": server.url}
    server.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, own)
    with serving({"one": bundle()}, access=Access(origins=["https://page.example"])) as other:
        status, headers, _ = other.send("OPTIONS", "/v1/completions", headers=page)
        assert (status, headers["access-control-allow-origin"]) == (204, "https://page.example")
        status, headers, _ = other.send("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1}, page)
        assert (status, headers["access-control-allow-origin"]) == (200, "https://page.example")
        assert other.refused("/v1/completions", {"prompt": "a"}, {"Origin": "https://else.example"})[0] == 403


def test_every_answer_is_marked_and_bars_what_is_from_elsewhere(server):
    for path in ("/", "/health", "/v1/models", "/nothing", "/page/replay.html"):
        _, headers, _ = server.get(path, {"X-Request-Id": "mine-1"})
        assert headers["x-request-id"] == "mine-1"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers
    assert server.get("/health", {"X-Request-Id": "a b<script>"})[1]["x-request-id"].startswith("req-")


def test_a_model_that_is_no_longer_finite_is_an_error_by_name_and_the_others_go_on():
    good, bad = bundle(process="absorbing"), bundle(process="absorbing")
    bad.model.head.weight.data.fill_(float("nan"))
    with serving({"good": good, "bad": bad}) as server:
        status, _, found = server.send("POST", "/v1/completions", {"model": "bad", "prompt": "a"})
        assert (status, found["error"]["type"]) == (500, "server_error")
        assert "head.weight" in found["error"]["message"]
        server.post("/v1/completions", {"model": "good", "prompt": "a"})
        text = server.send("POST", "/v1/completions", {"model": "bad", "prompt": "a", "stream": True})[2].decode()
        events = [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n") if line.startswith("data: {")]
        assert "head.weight" in events[-1]["error"]["message"]
