"""What is answered is what the library writes by itself, in the words of the API."""

import math

import pytest

import hdlm

pytestmark = pytest.mark.filterwarnings("ignore:.*trained on.*:UserWarning")
PROMPT = "abcab"


def told(**how):
    """A request's fields as arguments of `generate`."""
    names = {"max_tokens": "length", "n": "num_samples", "hyperschedule": "kind"}
    found = {names.get(name, name): value for name, value in how.items()}
    if found.get("kind") == "ar":
        found["kind"] = "quench"
    if found.pop("speculate", False):
        found["sampler"] = "speculative"
    if found.pop("ignore_eos", False):
        found["stop_at_eos"] = False
    if (levels := found.pop("levels", None)) is not None:
        found = {"hyperschedule": hdlm.Custom(levels)} | {name: found[name] for name in found if name != "kind"}
    return found


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"max_tokens": 12, "n": 3},
        {"max_tokens": 12, "hyperschedule": "ar", "temperature": 0.5},
        {"max_tokens": 12, "hyperschedule": "slide", "width": 6, "rate": 0.5, "top_k": 3},
        {"max_tokens": 12, "hyperschedule": "flat", "sampler": "acs", "eta": 0.3, "top_p": 0.9},
        {"max_tokens": 12, "sampler": "certain", "threshold": 0.5, "ignore_eos": True},
        {"max_tokens": 12, "speculate": True, "temperature": 0.7},
        {"hyperschedule": "custom", "levels": [[2] * 6, [1, 2, 2, 1, 2, 0], [0, 1, 1, 0, 0, 0], [0] * 6]},
    ],
    ids=str,
)
def test_completions_are_what_generate_writes(server, models, how):
    for seed in range(3):
        answer = server.post("/v1/completions", {"prompt": PROMPT, "seed": seed, **how})
        alone = models["hybrid"].generate(PROMPT, seed=seed, **told(**how))
        new = [row[prompt:] for row, prompt in zip(alone.tokens, alone.prompt_lengths, strict=True)]
        assert [choice["tokens"] for choice in answer["choices"]] == new
        assert [choice["text"] for choice in answer["choices"]] == alone.new_text
        assert [choice["finish_reason"] == "stop" for choice in answer["choices"]] == alone.ended
        assert answer["hdlm"] == {
            "seed": str(seed),
            "settings": alone.settings[0],
            "warnings": answer["hdlm"]["warnings"],
        }
        usage = answer["usage"]
        assert usage["completion_tokens"] == alone.stats.tokens
        assert usage["total_tokens"] == alone.stats.tokens + len(PROMPT)
        assert usage["tokens_per_call"] == pytest.approx(alone.stats.tokens / usage["network_calls"], abs=1e-3)


def test_prompts_as_texts_ids_and_several(server, models):
    for prompt in ("abc", [0, 1, 2], ["abc", "", "abc"], [[0, 1], []], ""):
        answer = server.post("/v1/completions", {"prompt": prompt, "seed": 4, "n": 2, "max_tokens": 7})
        alone = models["hybrid"].generate(prompt, seed=4, num_samples=2, length=7)
        whole = [row[start:] for row, start in zip(alone.tokens, alone.prompt_lengths, strict=True)]
        assert [choice["tokens"] for choice in answer["choices"]] == whole
        assert [choice["index"] for choice in answer["choices"]] == [*range(len(whole))]
    echoed = server.post("/v1/completions", {"prompt": ["ab", "cd"], "seed": 4, "max_tokens": 7, "echo": True})
    assert [choice["text"] for choice in echoed["choices"]] == models["hybrid"].generate(
        ["ab", "cd"], seed=4, length=7
    ).text


def test_no_seed_is_another_text_each_time_and_its_seed_gives_it_again(server):
    first, second = (server.post("/v1/completions", {"prompt": "a", "ignore_eos": True}) for _ in range(2))
    assert first["choices"][0]["text"] != second["choices"][0]["text"]
    again = server.post("/v1/completions", {"prompt": "a", "ignore_eos": True, "seed": first["hdlm"]["seed"]})
    assert again["choices"][0]["text"] == first["choices"][0]["text"]


@pytest.mark.parametrize("how", [{}, {"hyperschedule": "ar"}, {"speculate": True}, {"hyperschedule": "flat"}], ids=str)
def test_a_stream_says_what_the_answer_says(server, how):
    body = {"prompt": PROMPT, "seed": 5, "n": 3, "logprobs": 2, **how}
    whole = server.post("/v1/completions", body)
    events = server.events("/v1/completions", {**body, "stream": True, "stream_options": {"include_usage": True}})
    assert events[-1]["usage"] == whole["usage"]
    assert events[-1]["choices"] == []
    for choice in whole["choices"]:
        parts = [part for event in events for part in event["choices"] if part["index"] == choice["index"]]
        assert "".join(part["text"] for part in parts) == choice["text"]
        assert [part["finish_reason"] for part in parts] == [None] * (len(parts) - 1) + [choice["finish_reason"]]
        for name, values in choice["logprobs"].items():
            assert [value for part in parts for value in part["logprobs"][name]] == values
    assert {event["object"] for event in events} == {"text_completion"}


def test_log_probabilities_are_those_of_generate_and_their_alternatives_are_the_likeliest(server, models):
    body = {"prompt": PROMPT, "seed": 1, "max_tokens": 9, "hyperschedule": "ar", "logprobs": 4}
    found = server.post("/v1/completions", body)["choices"][0]
    alone = models["hybrid"].generate(PROMPT, seed=1, length=9, kind="quench", logprobs=True)
    assert found["logprobs"]["token_logprobs"] == pytest.approx(alone.logprobs[0])
    assert "".join(found["logprobs"]["tokens"]) == found["text"]
    law = models["hybrid"].logprobs
    for n, (best, said) in enumerate(zip(found["logprobs"]["top_logprobs"], alone.logprobs[0], strict=True)):
        assert len(best) == 4
        assert max(best.values()) >= said - 1e-9
        before = alone.tokens[0][: alone.prompt_lengths[0] + n]
        for piece, value in best.items():
            token = models["hybrid"].tokenizer.token_to_id(piece)
            assert law([*before, token]).logprobs[-1] == pytest.approx(value)


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_text_ends_a_text_before_it(server, stream):
    body = {"prompt": "a", "seed": 3, "n": 4, "ignore_eos": True}
    whole = [choice["text"] for choice in server.post("/v1/completions", body)["choices"]]
    stops = [whole[0][5:7], whole[1][3:4]]
    if stream:
        events = server.events("/v1/completions", {**body, "stop": stops, "stream": True})
        texts, ends = [""] * 4, [None] * 4
        for part in (part for event in events for part in event["choices"]):
            texts[part["index"]] += part["text"]
            ends[part["index"]] = part["finish_reason"]
    else:
        choices = server.post("/v1/completions", {**body, "stop": stops})["choices"]
        texts, ends = [choice["text"] for choice in choices], [choice["finish_reason"] for choice in choices]
    for text, end, full in zip(texts, ends, whole, strict=True):
        places = [full.find(stop) for stop in stops if stop in full]
        assert text == (full[: min(places)] if places else full)
        assert end == ("stop" if places else "length")
    assert "stop" in ends


def test_gaps_are_filled_as_infill_fills_them(server, models):
    text = "ab[[gap:3]]cd[[gap:2]] e"
    answer = server.post("/v1/fill", {"model": "masked", "text": text, "seed": 2, "n": 2, "sampler": "certain"})
    alone = models["masked"].infill(text, seed=2, num_samples=2, sampler="certain")
    assert [choice["text"] for choice in answer["choices"]] == alone.text
    for choice, row in zip(answer["choices"], alone.tokens, strict=True):
        assert [gap["tokens"] for gap in choice["gaps"]] == [row[2:5], row[7:9]]
        assert [gap["text"] for gap in choice["gaps"]] == [choice["text"][2:5], choice["text"][7:9]]
    assert answer["usage"]["completion_tokens"] == 10


def test_gaps_of_open_length(server, models):
    text = "ab[[gap:1-3]]cd"
    answer = server.post("/v1/fill", {"model": "masked", "text": text, "seed": 2})
    alone = models["masked"].infill(text, seed=2)
    assert answer["choices"][0]["text"] == alone.text[0]
    assert (
        answer["hdlm"]["settings"]["gaps"]
        == alone.settings[0]["gaps"]
        == [len(answer["choices"][0]["gaps"][0]["tokens"])]
    )
    assert answer["usage"]["network_calls"] == alone.stats.network_calls


def test_a_stream_says_what_it_took_to_find_a_length(server, models):
    start, *_, end = server.events("/v1/stream", {"model": "masked", "text": "ab[[gap:1-3]]cd", "seed": 2})
    spent = models["masked"].infill("ab[[gap:1-3]]cd", seed=2).stats.network_calls
    own = start["spent"]["calls"]
    assert own > 0
    assert spent == end["usage"]["network_calls"] > own
    start, *_ = server.events("/v1/stream", {"model": "masked", "text": "ab[[gap:3]]cd", "seed": 2})
    assert start["spent"] == {"seconds": 0.0, "calls": 0}


def test_scores_are_those_of_the_library(server, models):
    answer = server.post("/v1/score", {"text": "abcabc"})
    alone = models["hybrid"].logprobs("abcabc")
    assert [token["logprob"] for token in answer["tokens"]] == alone.logprobs
    assert "".join(token["text"] for token in answer["tokens"]) == "abcabc"
    assert answer["exact"] is True
    body = {"model": "aligned", "text": "abcabc", "samples": 8, "seed": 3, "hyperschedule": "block", "width": 2}
    answer = server.post("/v1/score", body)
    bound = models["aligned"].perplexity("abcabc", samples=8, seed=3, hyperschedule=hdlm.Block(2, 2))
    assert answer["bound"]["value"] == pytest.approx(bound.value)
    assert answer["bound"]["error"] == pytest.approx(bound.error)
    assert (answer["exact"], answer["bound"]["name"]) == (False, bound.name)


@pytest.mark.parametrize(
    "how",
    [
        {"prompt": PROMPT, "n": 2, "max_tokens": 11, "sampler": "acs", "eta": 0.5},
        {"prompt": PROMPT, "speculate": True},
        {"model": "masked", "text": "ab[[gap:3]]cd[[gap:2]] e", "n": 2},
        {"prompt": "", "max_tokens": 9, "hyperschedule": "slide", "width": 3},
    ],
    ids=str,
)
def test_the_frames_of_a_stream_lead_from_noise_to_the_text(server, how):
    start, *frames, end = server.events("/v1/stream", {**how, "seed": 7, "top": 3, "replay": True})
    assert (start["type"], end["type"], start["seed"]) == ("start", "end", "7")
    assert end["usage"]["completion_tokens"] > 0
    pieces = start["pieces"] | {token: piece for frame in frames for token, piece in frame["pieces"].items()}
    for sample in start["samples"]:
        tokens, settled, calls, levels = list(sample["tokens"]), 0, 0, [0] * len(sample["tokens"])
        own = [frame for frame in frames if frame["index"] == sample["index"]]
        for frame in own:
            before = tokens[:settled]
            for position, token, confidence, doubt in frame["changes"]:
                assert tokens[position] != token
                assert all(share is None or 0 <= share <= 1 for share in (confidence, doubt))
                tokens[position] = token
                for other, share in frame["top"].get(str(position), []):
                    assert str(other) in pieces
                    assert 0 <= share <= 1
            assert tokens[:settled] == before
            assert frame["settled"] >= settled
            assert frame["calls"] >= calls
            settled, calls = frame["settled"], frame["calls"]
            stop = frame["first"] + len(frame["levels"])
            levels[frame["first"] : stop] = frame["levels"]
            assert all(level == 0 for level, given in zip(levels, sample["given"], strict=True) if given)
            assert max(frame["levels"], default=0) <= sample["max_level"]
        choice = end["choices"][sample["index"]]
        assert choice["tokens"] == tokens[: len(choice["tokens"])]
        assert settled >= len(choice["tokens"])
        assert "".join(pieces[str(token)] for token in choice["tokens"]) == choice["text"]
    replay = end["replay"]
    assert replay["seed"] == "7"
    assert [sample["text"] for sample in replay["samples"]] == [choice["text"] for choice in end["choices"]]


def test_models_and_their_limits(server, models):
    _, _, found = server.get("/v1/models")
    assert [one["id"] for one in found["data"]] == list(models)
    own = {one["id"]: one["hdlm"] for one in found["data"]}
    assert "acs" in own["hybrid"]["samplers"]
    assert "acs" not in own["masked"]["samplers"]
    assert not own["aligned"]["speculation"]
    assert own["masked"]["gaps"] == {"widest": 24, "open": True}
    for name, one in own.items():
        for sampler in one["samplers"]:
            server.post("/v1/completions", {"model": name, "prompt": "a", "max_tokens": 4, "sampler": sampler})
    assert found["limits"]["max_tokens"] == 24
    assert server.get("/v1/models/masked")[2] == found["data"][1]
    assert server.get("/v1/models/nobody")[0] == 404


def test_health_and_metrics_count_what_was_done(server):
    before = _metrics(server)
    answer = server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 5, "ignore_eos": True})
    server.refused("/v1/completions", {"prompt": PROMPT, "temperature": -1})
    after = _metrics(server)

    def grown(name):
        return after.get(name, 0) - before.get(name, 0)

    assert grown("hdlm_tokens_total") == 5
    assert grown("hdlm_prompt_tokens_total") == len(PROMPT)
    assert grown("hdlm_network_calls_total") == answer["usage"]["network_calls"]
    assert grown('hdlm_requests_total{path="/v1/completions",status="200"}') == 1
    assert grown('hdlm_requests_total{path="/v1/completions",status="400"}') == 1
    assert grown("hdlm_first_token_seconds_count") == 1
    assert grown('hdlm_first_token_seconds_bucket{le="+Inf"}') == 1
    assert server.get("/health")[2] | {"texts": 0} == {
        "status": "ok",
        "models": [*server.server.engine.models],
        "texts": 0,
        "waiting": 0,
    }


def _metrics(server):
    lines = server.get("/metrics")[2].decode().splitlines()
    found = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert all(math.isfinite(float(value)) for value in found.values())
    return {name: float(value) for name, value in found.items()}
