"""Prompts and given tokens never change, gaps are filled, and no MASK comes out."""

from functools import cache

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.bundles import PROCESSES, SAMPLERS, bundle, letters
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import hdlm
from hdlm.config.sampling import DrawSettings
from hdlm.data.tokenizer import make_tokenizer
from hdlm.sampling.gaps import gap_row
from hdlm.sampling.generate import start_run
from hdlm.sampling.loop import Predictor
from hdlm.sampling.prompts import Pieces, decode, encode
from hdlm.sampling.request import gap_request, prompt_request

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


def test_a_gap_takes_as_many_steps_as_its_rate_says():
    """A token a step unless asked otherwise, however much text is in the window, and at least one step."""
    flat, block = bundle("flat", process="absorbing"), bundle("block", 12, process="absorbing")
    for model, text, length in ((flat, "abcd[[gap:6]]ef", 12), (block, "abcd[[gap:6]]ef", 8)):
        for how, steps in (({}, 6), ({"rate": 2.0}, 3), ({"rate": 0.5}, 12), ({"rate": 100.0}, 1)):
            request = gap_request(model, text, **how)
            assert (request.steps, request.batches[0].schedule.length) == (steps, length)
            assert (request.batches[0].asked.length, request.batches[0].asked.steps) == (6, steps)
    assert not gap_request(flat, "abcd[[gap:6]]ef").batches[0].schedule.has_prefix
    assert gap_request(block, "abcd[[gap:6]]ef").batches[0].schedule.has_prefix
    assert gap_request(flat, "a[[gap:1]]b").steps == 1
    with pytest.raises(ValueError, match=r"^rate = 0 is not accepted"):
        gap_request(flat, "a[[gap:1]]b", rate=0)


def test_a_text_with_gaps_may_fill_the_context_and_no_gap_is_longer():
    flat = bundle("flat", process="absorbing")
    assert gap_request(flat, "abcd[[gap:20]]").batches[0].starts == (0,)
    assert gap_row("[[gap:24]]", None, 11, longest=24) == [None] * 24
    with pytest.raises(ValueError, match=r"a gap has 1 to 24 tokens here"):
        gap_request(flat, "[[gap:25]]")


def test_a_gaps_number_has_as_many_digits_as_a_number_may():
    assert gap_row(f"[[gap:{3:018}]]", None, 11) == [None] * 3
    for digits, shown in ((19, r"9{19}"), (5000, r"9{14}\.\.\.9{18}")):
        with pytest.raises(ValueError, match=rf"\[\[gap:{shown}\]\] is not accepted"):
            gap_row(f"[[gap:{'9' * digits}]]", None, 11)


def test_gaps_are_filled_as_asked():
    """Settings reach the draw, and a new EOS inside a text does not end it."""
    flat = bundle("flat", process="absorbing", eos_id=2)
    cold = flat.infill("ab[[gap:6]]de", num_samples=4, seed=0, temperature=0.0, sampler="certain")
    assert len({tuple(row) for row in cold.tokens}) == 1
    assert cold.settings[0]["temperature"] == 0.0
    samples = flat.infill("ab[[gap:6]]de", num_samples=16, seed=0)
    assert len({tuple(row) for row in samples.tokens}) > 1
    assert any(2 in row for row in samples.tokens), "else this shows nothing"
    assert not any(samples.ended)
    assert {(len(row), *row[-2:]) for row in samples.tokens} == {(10, 3, 4)}


def test_the_last_space_of_a_text_is_before_no_gap():
    words = make_tokenizer("bpe-300", ["the cat and the dog and the cat sat on the mat"] * 20).tokenizer
    row = gap_row("the [[gap:2]] cat ", words, 300)
    assert words.decode(row[row.index(None) + 2 :]) == " cat "


def test_special_tokens_come_from_no_prompt_and_go_into_no_text():
    """What a tokenizer puts around texts by itself is left out; where pieces are shown, special tokens have a name."""
    tokenizer = letters()
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 11)])
    assert tokenizer.encode("ab").ids == [11, 0, 1]
    assert encode(tokenizer, "ab") == [0, 1]
    assert decode(tokenizer, [11, 0, 11, 1]) == "ab"
    assert Pieces(tokenizer)(11) == "<s>"


@pytest.mark.parametrize(("prompt", "start"), [("", 0), ("abc", 0), ("abcd", 4), ("abcdef", 4), ("abcdefgh", 8)])
def test_windows_begin_where_the_last_block_of_the_prompt_does(prompt, start):
    """In block-causal networks; in flat ones at the beginning, and else after the prompt."""
    blocks = bundle(shifted=False, block_causal=True)
    for model, first in ((blocks, start), (bundle("flat"), 0), (bundle(), len(prompt))):
        (batch,) = prompt_request(model, prompt, length=6).batches
        assert batch.starts == (first,)
        assert batch.schedule.length == len(prompt) + 6 - first


def test_prompts_inside_a_window_go_with_those_of_their_length():
    """Where they come before it, they go together, as many as a batch takes."""
    asked = {"prompt": ["ab", "cde", "fg"], "length": 4, "settings": DrawSettings(batch_size=2)}
    found = [[batch.numbers for batch in prompt_request(bundle(kind), **asked).batches] for kind in ("flat", "block")]
    assert found == [[(0, 2), (1,)], [(0, 1), (2,)]]
    with pytest.raises(ValueError, match=r"a prompt of 2 tokens and 23 new ones are not accepted: flat has one window"):
        prompt_request(bundle("flat"), "ab", length=23)
    assert prompt_request(bundle("flat"), "ab", length=22).batches[0].starts == (0,)


@pytest.mark.parametrize("block_causal", [False, True])
def test_settled_tokens_of_a_block_causal_network_see_their_blocks(block_causal):
    """As in training: a slot of the prompt's first block sees all of it; in other networks what is before it."""
    model = bundle(shifted=False, block_causal=block_causal)
    request = prompt_request(model, "abcdef", length=2)
    run, seen = start_run(model, request.batches[0], request, 0, [1]), []
    predictor, step = Predictor(run), next(run.schedule.walk())
    predictor.trunk = lambda slots: seen.append(slots.layout) or torch.zeros(*slots.token.shape, 1)
    predictor.features(step, torch.ones(1, step.stop - step.start))
    among = seen[0].mask()[..., :4, :4]
    assert torch.equal(among.view(4, 4), torch.ones(4, 4).bool() if block_causal else torch.ones(4, 4).tril().bool())
