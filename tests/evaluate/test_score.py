"""A text token by token: exact where the network can, else shares of the bound, and always the text in pieces."""

from dataclasses import replace

import pytest
import torch
from support.bundles import CONTEXT, LETTERS, bundle

import hdlm
from hdlm.config.bundle import BundleConfig
from hdlm.config.model import preset
from hdlm.config.process import ProcessConfig
from hdlm.config.schedule import ScheduleConfig
from hdlm.data.tokenizer import make_tokenizer
from hdlm.evaluate import texts
from hdlm.nn.transformer import Denoiser

TEXT = "abc de fghij ba"


def test_a_shifted_network_tells_each_token_given_all_before():
    model = bundle()
    found = model.logprobs(TEXT)
    ids = torch.tensor([[3, *found.tokens]])  # after BOS comes the first
    said = torch.cat([model.logits(ids[:, 1:]).log_softmax(-1)[0]])
    for at, (token, logprob) in enumerate(zip(found.tokens[1:], found.logprobs[1:], strict=True)):
        assert logprob == pytest.approx(said[at, token].item(), abs=1e-9)
    assert (found.exact, found.name, found.error) == (True, "exact negative log-likelihood", None)
    assert found.pieces == list(TEXT)
    assert found.total == pytest.approx(-model.perplexity(TEXT, hyperschedule=hdlm.Quench(1)).nats, abs=1e-9)
    assert repr(found) == f"TextScore(exact negative log-likelihood, 15 tokens, total {found.total:.2f})"


@pytest.mark.parametrize(
    ("process", "name"),
    [("absorbing", "masked bound"), ("gamma", "score-entropy bound"), ("epsilon", "epsilon-hybrid")],
)
@pytest.mark.parametrize("reason", ["aligned", "never learned", "asked for"])
def test_else_each_has_its_share_of_the_bound(process, name, reason):
    model = bundle(process=process, shifted=reason != "aligned", model={"layers": 1})
    if reason == "never learned":
        model = hdlm.Bundle(model.model, replace(model.config, next_token=False), model.tokenizer)
    schedule = hdlm.Slide(8, 4) if reason == "asked for" else None
    found = model.logprobs(TEXT * 3, samples=5, seed=2, hyperschedule=schedule)
    bound = model.perplexity(TEXT * 3, samples=5, seed=2, hyperschedule=schedule)
    assert (found.exact, found.name, found.bound.draws) == (False, bound.name, 5)
    assert found.name.startswith(name) or reason == "asked for", "a slide may have another bound"
    assert len(found.logprobs) == len(found) == 45
    assert found.total == pytest.approx(-bound.nats, abs=1e-9)
    assert found.error == pytest.approx(bound.draw_error * 45)
    assert "±" in repr(found)
    means = [-sum(found.logprobs[at::CONTEXT]) / len(found.logprobs[at::CONTEXT]) for at in range(CONTEXT)]
    assert means == pytest.approx(bound.positions, abs=1e-9)


def test_an_aligned_network_of_single_tokens_has_a_bound_too():
    found = bundle(width=1, process="absorbing", shifted=False).logprobs("abc")
    assert (found.exact, found.name, found.bound.schedule) == (False, "masked bound", "block 1")


def test_a_text_longer_than_the_context_goes_by_rows():
    model = bundle()
    found = model.logprobs(TEXT * 3)
    parts = [model.logprobs(found.tokens[at : at + CONTEXT]).logprobs for at in (0, CONTEXT)]
    assert found.logprobs == pytest.approx([*parts[0], *parts[1]], abs=1e-12)
    assert "".join(found.pieces) == TEXT * 3


def test_a_very_long_text_is_read_as_perplexity_reads_it(monkeypatch):
    monkeypatch.setattr(texts, "CHUNK", 7)
    monkeypatch.setattr("hdlm.evaluate.score.CHUNK", 7)
    model = bytes_model("bpe-300")
    found, bound = model.logprobs("the cat the cat"), model.perplexity("the cat the cat", hyperschedule=hdlm.Quench(1))
    assert found.pieces[-1] == "t", "its end was cut off"
    assert found.total == pytest.approx(-bound.nats, abs=1e-4)


def bytes_model(kind):
    """A small untrained model of bytes, or of pairs of them."""
    text = make_tokenizer(kind, ["the cat and the dog"] * 20)
    settings = preset("tiny", text.vocab_size)
    config = BundleConfig(
        settings, ProcessConfig("absorbing"), ScheduleConfig("quench", 64), True, bos_id=text.bos_id, eos_id=text.eos_id
    )
    return hdlm.Bundle(Denoiser(settings), config, text.tokenizer)


def test_pieces_are_the_text_and_its_bytes_are_counted():
    model, text = bytes_model("bytes"), "é 漢😀\n"
    found = model.logprobs(text)
    assert "".join(found.pieces) == text
    assert (len(found), found.bound.counts) == (len(text.encode()), {"bytes": len(text.encode())})
    assert model.logprobs(found.tokens).pieces == found.pieces
    assert model.logprobs([*found.tokens, model.config.eos_id]).pieces == [*found.pieces, "<|eos|>"]
    data = found.to_json()
    assert data["total"] == found.total
    assert data["bits_per_byte"] == pytest.approx(-found.total / len(found) / 0.6931471805599453)
    assert [one["text"] for one in data["tokens"]] == found.pieces
    assert [one["token"] for one in data["tokens"]] == found.tokens


def test_ids_need_no_tokenizer():
    model = bundle()
    found = hdlm.Bundle(model.model, model.config).logprobs([0, 1, 2])
    assert found.logprobs == model.logprobs("abc").logprobs
    assert found.pieces == [" 0", " 1", " 2"]
    assert "bytes" not in found.to_json()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no text"),
        ([[]], "holds no text"),
        (["ab", "c"], "2 texts are not accepted: one at a time"),
        (5, "it must be a text, a list of texts or of token ids, a list of such lists, an array of integers$"),
        ("ü", "the character 'ü'"),
        ([len(LETTERS)], "text token = 11"),
    ],
)
def test_what_cannot_be_scored_is_refused(text, words):
    with pytest.raises(ValueError, match=words):
        bundle().logprobs(text)


@pytest.mark.parametrize("how", [{"samples": 0}, {"seed": -1}, {"hyperschedule": "block"}])
def test_settings_are_checked(how):
    with pytest.raises(ValueError, match=next(iter(how))):
        bundle().logprobs("abc", **how)
