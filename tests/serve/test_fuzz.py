"""A few hundred random requests, and the judge of their answers against planted faults."""

import json

import pytest
from fuzz import requests
from fuzz.request_answers import Answer, judge
from fuzz.requests import Case, draw, models, rows, settled
from support.server import serving

CASES = 200
ASKED = {"model": "hybrid", "prompt": "ab", "seed": 3, "max_tokens": 8, "ignore_eos": True}
REFUSED = {"message": "no", "type": "invalid_request_error", "param": "seed", "code": None}


def test_every_answer_is_a_result_or_a_refusal_that_names_the_field():
    with serving(models(), **requests.LIMITS) as client:
        found = [row for row in rows(client, 1, range(CASES), share=4) if row["kind"] == "failed"]
        assert settled(client)
    assert found == []


def test_a_case_is_the_same_when_it_is_drawn_again():
    assert [draw(0, number) for number in range(50)] == [draw(0, number) for number in range(50)]
    assert draw(0, 3) != draw(1, 3)


@pytest.fixture(scope="module")
def asked():
    """Cases with the answers of a server."""
    whole = Case("valid", "/v1/completions", json.dumps(ASKED).encode(), expect="right")
    stream = Case("valid", "/v1/completions", json.dumps(ASKED | {"stream": True}).encode(), expect="right")
    with serving(models()) as client:
        found = [(case, requests.send(client.port, case)) for case in (whole, stream)]
    assert [judge(*one, models()) for one in found] == [("right", "")] * 2
    return found


def changed(answer, change):
    data = json.loads(answer.body)
    change(data)
    return Answer(200, answer.kind, json.dumps(data).encode())


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data["choices"][0].update(text="x" + data["choices"][0]["text"][1:]),
        lambda data: data["choices"][0].update(tokens=[*data["choices"][0]["tokens"][:-1], 10]),
        lambda data: data["choices"].pop(),
        lambda data: data["usage"].update(completion_tokens=7),
        lambda data: data.pop("model"),
        lambda data: data["hdlm"].update(seed="4"),
        lambda data: data.update(more=float("nan")),
    ],
)
def test_the_judge_sees_results_that_are_wrong(asked, change):
    case, answer = asked[0]
    assert judge(case, changed(answer, change), models())[0] == "failed"


@pytest.mark.parametrize("end", [b"", b"data: [DONE]", b"data: {\n\ndata: [DONE]\n\n"])
def test_the_judge_sees_streams_that_are_cut_or_broken(asked, end):
    case, answer = asked[1]
    body = answer.body.removesuffix(b"data: [DONE]\n\n") + end
    assert judge(case, Answer(200, answer.kind, body))[0] == "failed"


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Answer(400, "application/json", json.dumps({"error": REFUSED}).encode()), "refused"),
        (Answer(400, "application/json", json.dumps({"error": REFUSED | {"param": "top_p"}}).encode()), "failed"),
        (Answer(400, "application/json", json.dumps({"error": REFUSED | {"param": None}}).encode()), "failed"),
        (Answer(400, "application/json", json.dumps({"error": REFUSED | {"message": "a\nb"}}).encode()), "failed"),
        (Answer(400, "application/json", b'{"error": "no"}'), "failed"),
        (Answer(400, "text/plain", b"no"), "failed"),
        (Answer(500, "application/json", json.dumps({"error": REFUSED}).encode()), "failed"),
        (Answer(302), "failed"),
        (Answer(lost="no answer in 60 seconds"), "failed"),
        (Answer(lost="no whole answer: RemoteDisconnected"), "failed"),
    ],
    ids=str,
)
def test_the_judge_sees_refusals_that_are_none(answer, kind):
    case = Case("damaged", "/v1/completions", json.dumps(ASKED | {"seed": -1}).encode())
    assert judge(case, answer)[0] == kind
