"""Prompts and given tokens never change, gaps are filled, and no MASK comes out."""

from functools import cache

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.bundles import PROCESSES, SAMPLERS, bundle, letters
from tokenizers import Tokenizer, models, pre_tokenizers

import hdlm
from hdlm.data.tokenizer import make_tokenizer
from hdlm.sampling.gaps import gap_row
from hdlm.sampling.prompts import Pieces, encode
from hdlm.sampling.request import gap_request

pytestmark = pytest.mark.filterwarnings("ignore:.*trained on.*:UserWarning")


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(data=st.data())
def test_no_mask_comes_out_and_prompts_stay(data):
    process = data.draw(st.sampled_from(list(PROCESSES)))
    shifted = data.draw(st.booleans())
    length = data.draw(st.integers(1, 10))
    width = data.draw(st.integers(1, length))
    rate = data.draw(st.sampled_from([0.3, 0.5, 1, 2, 5, 20]))
    custom = [[2] * length, *[[max(0, 2 - (k > i % 3) - (k > i % 2 + 1)) for i in range(length)] for k in range(1, 5)]]
    schedule = data.draw(
        st.sampled_from(
            [
                hdlm.Quench(length),
                hdlm.Flat(length, rate),
                hdlm.Block(length, width, rate),
                hdlm.Slide(length, width, rate),
                hdlm.Custom(custom),
            ]
        )
    )
    sampler = data.draw(st.sampled_from([None, *SAMPLERS[process]]))
    prompts = data.draw(st.lists(st.lists(st.integers(0, 10), max_size=5), min_size=1, max_size=3))
    samples = _small(process, shifted).generate(
        prompts,
        hyperschedule=schedule,
        sampler=sampler,
        seed=data.draw(st.integers(0, 10**6)),
        temperature=data.draw(st.sampled_from([0, 0.7, 1.0])),
        top_k=data.draw(st.sampled_from([None, 3])),
        top_p=data.draw(st.sampled_from([1.0, 0.8])),
        precision=data.draw(st.sampled_from(["float64", "float64", "float32"])),
        cache=data.draw(st.booleans()),
    )
    for prompt, tokens in zip(prompts, samples.tokens, strict=True):
        assert tokens[: len(prompt)] == prompt
        assert len(tokens) == len(prompt) + length
        assert all(0 <= token < 11 for token in tokens)


@cache
def _small(process, shifted):
    return bundle(process=process, shifted=shifted, dtype=torch.float32, model={"layers": 1})


def test_gaps_are_filled_and_nothing_else_changes():
    flat = bundle("flat")
    samples = flat.infill("ab[[gap:3]]cd e[[gap:2]]f", num_samples=4, seed=0)
    for tokens in samples.tokens:
        assert tokens[:2] == [0, 1]
        assert tokens[5:9] == [2, 3, 10, 4]
        assert tokens[11:] == [5]
        assert max(tokens) < 11
    block = bundle("block", 6)
    assert block.infill("abcdefgh[[gap:3]]ij", seed=0).text[0].startswith("abcdefgh")
    with pytest.raises(ValueError, match="are 7 tokens, and this network's widest window holds 6"):
        block.infill("abc[[gap:3]]abcd")
    with pytest.raises(ValueError, match="cannot fill gaps: it reads from left to right"):
        bundle("quench").infill("a[[gap:2]]b")
    with pytest.raises(ValueError, match="has no gap"):
        flat.infill("abc")
    with pytest.raises(ValueError, match="a text of 40 tokens"):
        flat.infill("a" * 30 + "[[gap:10]]")


def test_a_gap_takes_the_space_before_it_where_words_begin_with_theirs():
    words = make_tokenizer("bpe-300", ["the cat and the dog and the cat sat on the mat"] * 20).tokenizer
    row = gap_row("the cat [[gap:2]] the mat", words, 300)
    assert row[row.index(None) - 1] == words.token_to_id("Ġcat")
    assert row[-2:] == [words.token_to_id("Ġthe"), words.token_to_id("Ġmat")]
    assert gap_row("a [[gap:2]] a", letters(), 11) == [0, 10, None, None, 10, 0]


def test_pieces_keep_their_spaces():
    pieces = Pieces(letters())
    assert "".join(pieces(token) for token in [0, 10, 1]) == "a b"


def test_block_causal_networks_take_prompts_of_any_length():
    """Windows start where blocks do: what is left of the prompt lies inside the first."""
    model = bundle(shifted=False, block_causal=True)
    for prompt in ("", "ab", "abcd", "abcdef"):
        cached, plain = (model.generate(prompt, length=9, seed=0, cache=cache) for cache in (True, False))
        assert cached.tokens == plain.tokens
        assert cached.text[0].startswith(prompt)
        assert len(cached.tokens[0]) == len(prompt) + 9


def test_block_causal_networks_write_by_their_own_blocks_only():
    model = bundle(shifted=False, block_causal=True)
    assert len(model.generate("abcdefg", length=2, seed=0).tokens[0]) == 9
    for schedule in (hdlm.Slide(8, 4), hdlm.Quench(8), hdlm.Block(8, 2)):
        with pytest.raises(ValueError, match="see whole blocks of 4"):
            model.generate("abc", hyperschedule=schedule)
    assert model.infill("abcde[[gap:2]]f", seed=0).text[0].startswith("abcde")


def test_a_tokenizer_of_words_takes_spaces_and_shows_its_pieces():
    words = Tokenizer(models.WordLevel({"w1": 0, "w2": 1}))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    assert encode(words, "w1 w2") == [0, 1]
    assert Pieces(words)(1) == " w2"
    with pytest.raises(ValueError, match="is not accepted: this model's tokenizer says"):
        encode(words, "w3")


@pytest.mark.parametrize("text", ["a [[gap:3]] b", "a [[gap:x]] b"])
def test_gaps_are_no_prompts(text):
    with pytest.raises(ValueError, match=r"gaps are for infill, written as \[\[gap:N\]\], N a number"):
        bundle().generate(text)
    with pytest.raises(ValueError, match=r"\[\[gap:(x|-1)\]\] is not accepted as a gap: write"):
        bundle("flat").infill(text if "x" in text else text + "[[gap:-1]]")


def test_a_gap_of_a_flat_network_has_all_of_the_text_in_its_window():
    """And one whose window does not hold it all begins at the gap."""
    flat, block = bundle("flat", process="absorbing"), bundle("block", 6, process="absorbing")
    assert gap_request(flat, "abcd[[gap:3]]ef").batches[0].starts == (0,)
    assert gap_request(block, "abcd[[gap:3]]ef").batches[0].starts == (4,)


def test_the_narrowest_window_that_fills_a_gap_has_two_positions():
    narrow = bundle("block", 2, process="absorbing")
    found = narrow.infill("abc[[gap:1]]d", seed=1)
    assert found.text[0].startswith("abc")
    assert found.text[0].endswith("d")
    with pytest.raises(ValueError, match="reads from left to right"):
        bundle("block", 1, process="absorbing").infill("abc[[gap:1]]d")


def test_a_gap_beyond_the_context_is_refused_at_once():
    with pytest.raises(ValueError, match="gap"):
        bundle("flat", process="absorbing").infill("a[[gap:1000000000]]b")


def test_samples_as_json_say_how_they_were_drawn():
    samples = bundle(process="absorbing").generate(length=8, seed=3, sampler="certain", temperature=0.5, num_samples=2)
    for row, told in zip(samples.to_json(), samples.settings, strict=True):
        assert row["settings"] == told
        assert (row["settings"]["sampler"], row["settings"]["temperature"]) == ("certain", 0.5)
