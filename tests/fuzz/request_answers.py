"""What an answer to a random request is: a right result, a refusal that names its field, or a failure and why."""

import json
from contextlib import suppress
from dataclasses import dataclass

import hdlm
from fuzz.request_fields import HOW, POSTS
from hdlm.config.schedule import ScheduleConfig
from hdlm.serve.chat import chat_prompt, read_messages


@dataclass(frozen=True)
class Answer:
    """What came back; `lost`: why not all of it did."""

    status: int = 0
    kind: str = ""
    body: bytes = b""
    lost: str = ""


def strict(text):
    """JSON with nothing that is none, and no name twice."""

    def once(pairs):
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a name stands twice")
        return dict(pairs)

    def refuse(word):
        raise ValueError(f"{word} is no number")

    return json.loads(text, object_pairs_hook=once, parse_constant=refuse)


def judge(case, answer, bundles=None):
    """What kind of end it is, and why; with `bundles` a result is compared with what the library says by itself."""
    if case.leaves is not None or (case.short and case.proper and answer.lost.startswith("no whole")):
        return "left", ""
    if answer.lost:
        return "failed", answer.lost
    if answer.status == 200 and case.expect != "refused":
        try:
            _check(case, answer, bundles)
        except Exception as error:
            return "failed", f"wrong answer: {type(error).__name__} {str(error)[:300]}: {answer.body[:300]!r}"
        return "right", ""
    why = "refused what is valid" if case.expect == "right" else _wrong(case, answer)
    return ("failed", f"{answer.status}: {why}: {answer.body[:300]!r}") if why else ("refused", "")


def _wrong(case, answer):
    """What is wrong with a refusal, "" where nothing is."""
    if not 400 <= answer.status < 500:
        return "no refusal"
    if not case.proper or case.method == "HEAD":
        return ""
    try:
        error = strict(answer.body)["error"]
        message, param, _ = error["message"], error["param"], error["type"] + str(error["code"])
    except (ValueError, LookupError, TypeError):
        return "no error in JSON"
    if not message or "\n" in message or len(message) > 1000:
        return "not one line"
    if answer.status != 400 or case.section == "elsewhere":
        return ""
    fields = case.fields()
    names = [name for name in ("text", "messages") if fields is not None and fields.get(name) is None]
    with suppress(ValueError, RecursionError):
        json.loads(case.body[: case.length], object_pairs_hook=lambda pairs: names.extend(name for name, _ in pairs))
    if param is None:
        return "" if fields is None else "names no field"
    there = param in [*names, *(name[:500] for name in names)] or (param in HOW and f"{param} " in message)
    return "" if there else f"{param!r} is no field of the body"


def _check(case, answer, bundles):
    """That a result has the promised shape, and says what the library says."""
    if case.path not in POSTS:
        assert answer.body or case.method == "HEAD"
        assert not answer.kind.startswith("application/json") or not answer.body or strict(answer.body)
        return
    fields = {name: value for name, value in case.fields().items() if value is not None}
    assert set(case.fields()) <= set(HOW), "a field that is unknown"
    model, watched = fields.get("model", "hybrid"), case.path == "/v1/stream"
    assert (watched or fields.get("stream", False)) is answer.kind.startswith("text/event-stream")
    found = _joined(answer.body.decode()) if "event-stream" in answer.kind else strict(answer.body)
    assert found["model"] == model
    own = None if bundles is None else bundles[model]
    if case.path == "/v1/score":
        _check_score(fields, found, own)
        return
    choices, gaps = found["choices"], "text" in fields and case.path in ("/v1/fill", "/v1/stream")
    prompt = [""] if gaps else fields.get("prompt", "")
    prompts = len(prompt) if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1
    assert sorted(choice["index"] for choice in choices) == [*range(prompts * fields.get("n", 1))]
    assert {choice["finish_reason"] for choice in choices} <= {"stop", "length"}
    texts = [choice["message"]["content"] if "message" in choice else choice["text"] for choice in choices]
    tokens = None if "tokens" not in choices[0] else [choice["tokens"] for choice in choices]
    if "hdlm" in found:
        assert fields.get("seed") is None or int(found["hdlm"]["seed"]) == int(fields["seed"])
        fields["seed"] = found["hdlm"]["seed"]
    if tokens is not None and not watched:
        assert found["usage"]["completion_tokens"] == sum(map(len, tokens))
    if own is None or "seed" not in fields:
        return
    alone = _alone(own, fields, gaps)
    if tokens is not None and "stop" not in fields:
        starts = [0] * len(texts) if watched else alone.prompt_lengths
        assert tokens == [row[start:] for row, start in zip(alone.tokens, starts, strict=True)]
    if own.tokenizer is not None:
        wanted = alone.text if watched or gaps else [_until(text, fields.get("stop", [])) for text in alone.new_text]
        if fields.get("echo"):
            given = prompt if isinstance(prompt, list) and not isinstance(prompt[0], int) else [prompt]
            given = [one if isinstance(one, str) else own.tokenizer.decode(one) for one in given]
            wanted = [given[n // fields.get("n", 1)] + text for n, text in enumerate(wanted)]
        assert texts == wanted, (texts, wanted)


def _until(text, stops):
    """What stands before the first stop text."""
    places = [text.find(stop) for stop in ([stops] if isinstance(stops, str) else stops) if stop in text]
    return text[: min(places, default=None)]


def _joined(text):
    """What the events of a stream come to, as it would be answered at once."""
    *lines, done = [line.removeprefix("data: ") for line in text.split("\n\n")[:-1]]
    events = [*map(strict, lines)]
    assert done == "[DONE]"
    if "type" in events[0]:
        start, *frames, end = events
        rows = [list(sample["tokens"]) for sample in start["samples"]]
        for frame in frames:
            assert frame["type"] == "frame"
            for position, token, *_ in frame["changes"]:
                rows[frame["index"]][position] = token
        assert all(
            choice["tokens"] == row[: len(choice["tokens"])] for choice, row in zip(end["choices"], rows, strict=True)
        )
        return end | {"model": start["model"], "hdlm": {"seed": start["seed"]}}
    found = {}
    for part in (part for event in events for part in event["choices"]):
        text, ends = found.get(part["index"], ("", []))
        said = part["text"] if "text" in part else part["delta"].get("content", "")
        found[part["index"]] = (text + said, [*ends, part["finish_reason"]])
    assert all(ends[-1] and not any(ends[:-1]) for _, ends in found.values())
    choices = [{"index": n, "text": text, "finish_reason": ends[-1]} for n, (text, ends) in sorted(found.items())]
    return events[-1] | {"choices": choices}


def _alone(own, fields, gaps):
    """What the library writes."""
    names = ("temperature", "top_p", "top_k", "sampler", "eta", "threshold", "rate")
    how = {name: fields[name] for name in names if name in fields} | {"seed": int(fields["seed"])}
    how["num_samples"] = fields.get("n", 1)
    if gaps:
        return own.infill(fields["text"], **how)
    how["length"] = fields.get("max_completion_tokens", fields.get("max_tokens"))
    how["stop_at_eos"] = not fields.get("ignore_eos", False)
    if "levels" in fields:
        how["hyperschedule"] = hdlm.Custom(fields["levels"])
    else:
        kind = {"ar": "quench"}.get(fields.get("hyperschedule"), fields.get("hyperschedule"))
        how |= {"kind": kind, "width": fields.get("width")}
    if fields.get("speculate"):
        how |= {"kind": "quench", "sampler": "speculative"}
    prompt = fields.get("prompt")
    if "messages" in fields:
        prompt = [chat_prompt(own, read_messages("messages", fields["messages"]))]
    return own.generate(prompt, **how)


def _check_score(fields, found, own):
    """Scores and bounds."""
    values = [token["logprob"] for token in found["tokens"]]
    assert all(token["id"] >= 0 and isinstance(token["text"], str) for token in found["tokens"])
    assert found["bound"]["tokens"] == len(values)
    if own is None:
        return
    how = {name: fields[name] for name in ("samples", "seed") if name in fields}
    if "hyperschedule" in fields:
        kind, width = {"ar": "quench"}.get(fields["hyperschedule"], fields["hyperschedule"]), fields.get("width")
        how["hyperschedule"] = ScheduleConfig(kind, width or 1, width=width).build()
    alone = own.logprobs(fields["text"], **how)
    assert (found["exact"], values) == (alone.exact, alone.logprobs)
