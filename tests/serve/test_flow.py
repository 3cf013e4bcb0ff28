"""What is said of a text that is not done yet is what its end says, whatever its tokens are."""

from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from hdlm.serve.flow import Flow, Speller


def byte_tokenizer():
    """A token for each byte, so that most characters are several tokens; words keep the space before them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({sign: n for n, sign in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    return tokenizer


def seat(prompt, length):
    run = SimpleNamespace(ended=torch.tensor([False]), stats=SimpleNamespace(network_calls=0))
    tokens = [*prompt]
    return SimpleNamespace(
        row=[*prompt, *[None] * length], tokens=tokens, settled=len(prompt), over=False, run=run, said=None
    )


def settle(one, tokens):
    one.tokens = one.tokens[: one.settled] + tokens
    one.settled += len(tokens)
    one.over = one.settled == len(one.row)


TEXT = "naïve — 日本語 🙂🙂 end"


@pytest.mark.parametrize("step", [1, 2, 3, 7])
def test_characters_of_several_tokens_come_whole(step):
    tokenizer = byte_tokenizer()
    prompt, ids = tokenizer.encode("ça ").ids, tokenizer.encode(TEXT).ids
    one = seat(prompt, len(ids))
    flow = Flow(one, tokenizer)
    said = ""
    for start in range(0, len(ids), step):
        settle(one, ids[start : start + step])
        more = flow.see(one)
        ready = "".join(flow.pieces[: flow.ready()])
        assert ready.startswith(said)
        assert "\ufffd" not in ready
        said = ready
    assert (said, flow.finish, more) == (TEXT, "length", False)
    assert flow.tokens == ids


def test_a_text_that_ends_inside_a_character_says_so():
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode("a日").ids[:3]
    one = seat([], 3)
    flow = Flow(one, tokenizer)
    settle(one, ids)
    flow.see(one)
    assert "".join(flow.pieces) == flow.text == tokenizer.decode(ids)
    assert flow.text.startswith("a\ufffd")


@pytest.mark.parametrize("stop", ["end", "—", "語 🙂", "🙂", "naïve — 日", "nothing", "d", "n"])
@pytest.mark.parametrize("step", [1, 4, 100])
def test_nothing_of_a_stop_text_is_said_before_it_is_known_not_to_be_one(stop, step):
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode(TEXT).ids
    one = seat([], len(ids))
    flow = Flow(one, tokenizer, [stop, "never"])
    wanted, said = TEXT.partition(stop)[0], ""
    for start in range(0, len(ids), step):
        settle(one, ids[start : start + step])
        more = flow.see(one)
        said = "".join(flow.pieces[: flow.ready()])
        assert wanted.startswith(said)
        if not more:
            break
    assert said == flow.text == wanted
    assert flow.finish == ("stop" if stop in TEXT else "length")
    assert len(flow.tokens) == len(tokenizer.encode(wanted).ids)


def test_special_tokens_are_no_text():
    tokenizer = byte_tokenizer()
    ids = [*tokenizer.encode("ab").ids, 256, *tokenizer.encode("c").ids]
    speller = Speller(tokenizer, [])
    assert [speller.add(token) for token in ids] == ["a", "b", "", "c"]


def test_models_without_a_tokenizer_have_tokens_alone():
    one = seat([1, 2], 3)
    flow = Flow(one, None)
    settle(one, [4, 5, 6])
    flow.see(one)
    assert (flow.tokens, flow.text, flow.ready()) == ([4, 5, 6], "", 3)
