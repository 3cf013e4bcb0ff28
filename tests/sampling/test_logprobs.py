"""Log-probabilities of what was written: the network's own, of the step that last changed a token."""

import math

import pytest
import torch
from support.bundles import SAMPLERS, bundle
from support.floors import FLOORS

import hdlm
from hdlm import backend
from hdlm.evaluate.likelihood import estimate

pytestmark = pytest.mark.filterwarnings("ignore:.*trained on.*:UserWarning")


@pytest.mark.parametrize(
    ("process", "how"),
    [
        ("gamma", {"temperature": 0.0}),
        ("gamma", {"temperature": 5.0, "cache": False}),
        ("absorbing", {"temperature": 0.6, "top_k": 3, "top_p": 0.9}),
        ("uniform", {}),
    ],
)
def test_those_of_autoregression_sum_to_the_exact_likelihood(process, how):
    model = bundle(process=process, eos_id=2)
    samples = model.generate(["abd", "j"], kind="quench", length=12, num_samples=3, seed=3, logprobs=True, **how)
    for tokens, prompt, logprobs in zip(samples.tokens, samples.prompt_lengths, samples.logprobs, strict=True):
        assert len(logprobs) == len(tokens) - prompt
        if logprobs:
            exact = estimate(model, [tokens], prefix=prompt, hyperschedule=hdlm.Quench(1))
            assert sum(logprobs) == pytest.approx(-exact.nats, abs=1e-9)


def test_from_nothing_they_are_the_perplexity_of_the_text():
    model = bundle()
    samples = model.generate(kind="quench", num_samples=3, length=20, seed=0, temperature=2.0, logprobs=True)
    nats = model.perplexity(samples.tokens, hyperschedule=hdlm.Quench(1)).nats
    assert -sum(map(sum, samples.logprobs)) == pytest.approx(nats, abs=1e-9)


RULES = [  # every rule, on a process that shows what is particular to it
    ("absorbing", "original"),
    ("absorbing", "certain"),
    ("absorbing", "bounded"),
    ("absorbing", "left-to-right"),
    ("absorbing", "remask"),
    ("gamma", "posterior"),
    ("gamma", "acs"),
    ("gamma", "tau-leaping"),
    ("gamma", "euler"),
    ("uniform", "posterior"),
    ("epsilon", "posterior"),
    ("epsilon", "confidence"),
]


def test_no_rule_is_left_out():
    assert {rule for _, rule in RULES} == {rule for rules in SAMPLERS.values() for rule in rules}


@pytest.mark.parametrize(("process", "sampler"), RULES)
def test_the_last_change_counts_whatever_the_rule(process, sampler):
    """Against the shares that frames of the fast floor tell, where nothing is warped."""
    model = bundle(process=process, model={"layers": 1})
    how = {"length": 6, "width": 3, "num_samples": 2, "seed": 1, "sampler": sampler, "rate": 0.7}
    samples = model.generate("ab", logprobs=True, **how)
    assert samples.tokens == model.generate("ab", **how).tokens
    last = {}
    for frame in model.stream("ab", **how):
        for row, position in frame.changed.nonzero().tolist():
            last[row, position] = frame.confidence[row, position - int(frame.window[row, 0])].item()
    assert len(last) > 6
    for row, (written, logprobs) in enumerate(zip(samples.written, samples.logprobs, strict=True)):
        assert written == list(range(2, 8))
        for position, logprob in zip(written, logprobs, strict=True):
            said = last.get((row, position), math.exp(logprob))
            assert math.exp(logprob) == pytest.approx(said, abs=1e-12)


def test_noise_that_was_kept_counts_where_it_settled():
    model = bundle(process="uniform", model={"mask_embedding": False})
    how = {"length": 12, "num_samples": 8, "seed": 0}
    settled, changed = {}, set()
    for frame in model.stream(logprobs=True, **how):
        changed |= {(row, position) for row, position in frame.changed.nonzero().tolist()}
        for row, window in enumerate(frame.window.tolist()):
            for at, position in enumerate(window):
                if frame.window_levels[at] == 0:
                    settled[row, position] = frame.logprobs[row, at].item()
    found = model.generate(logprobs=True, **how).logprobs
    kept = [(row, position) for row in range(8) for position in range(12) if (row, position) not in changed]
    assert kept
    assert [found[row][position] for row, position in kept] == [settled[place] for place in kept]


def test_filled_gaps_have_theirs_in_order_of_the_text():
    samples = bundle("flat").infill("ab[[gap:3]]cd[[gap:2]]e", num_samples=2, seed=0, temperature=0.3, logprobs=True)
    assert samples.written == [[2, 3, 4, 7, 8]] * 2
    assert all(len(row) == 5 and max(row) < 0 for row in samples.logprobs)
    [first, _] = samples.to_json()
    assert [one["position"] for one in first["logprobs"]] == [2, 3, 4, 7, 8]
    assert "".join(one["text"] for one in first["logprobs"]) == first["text"][2:5] + first["text"][7:9]
    assert [one["token"] for one in first["logprobs"]] == [samples.tokens[0][n] for n in samples.written[0]]


def test_only_who_asks_gets_them_and_by_the_plain_loop(monkeypatch):
    chosen, sampler = [], backend.sampler

    def spy(run, **how):
        chosen.append(how["backend"])
        return sampler(run, **how)

    monkeypatch.setattr(backend, "sampler", spy)
    model = bundle()
    plain = model.generate(length=4, seed=0, backend=FLOORS[0])
    assert plain.logprobs is None
    assert "logprobs" not in plain.to_json()[0]
    assert next(model.stream(length=4, seed=0)).logprobs is None
    assert model.generate(length=4, seed=0, backend=FLOORS[0], logprobs=True).tokens == plain.tokens
    assert chosen == [FLOORS[0], None, "reference"]


def test_what_has_no_probability_is_null_in_json():
    samples = bundle().generate(length=4, seed=0, logprobs=True)
    samples.logprobs[0][1] = -math.inf
    assert [one["logprob"] is None for one in samples.to_json()[0]["logprobs"]] == [False, True, False, False]


def test_without_a_tokenizer_they_have_ids_alone():
    model = bundle()
    samples = hdlm.Bundle(model.model, model.config).generate([[1, 2]], length=4, seed=0, logprobs=True)
    assert set(samples.to_json()[0]["logprobs"][0]) == {"position", "token", "logprob"}


@pytest.mark.parametrize("method", ["generate", "stream", "infill"])
def test_a_word_is_no_answer(method):
    with pytest.raises(ValueError, match="logprobs = 'yes' is not accepted: it must be a bool"):
        getattr(bundle("flat"), method)("a[[gap:1]]", logprobs="yes")


def test_float32_networks_tell_them_too():
    samples = bundle(dtype=torch.float32).generate(length=8, seed=0, logprobs=True)
    assert all(-50 < value < 0 for value in samples.logprobs[0])
