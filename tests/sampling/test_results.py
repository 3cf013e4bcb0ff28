"""What a result shows and holds: texts, frames as text, tokens as pieces of text."""

import math
import time

import pytest
from support.bundles import bundle, letters
from tokenizers import Tokenizer, decoders, models

import hdlm
from hdlm.data.tokenizer import make_tokenizer
from hdlm.sampling.prompts import MASK_SIGN, decode_masked, encode_pieces, pieces_of
from hdlm.sampling.results import Samples, Stats
from hdlm.viz import watch

TEXTS = ["the cat", " é漢😀!", "a\n\n  b<|eos|>c", "😀😀", ""]


def test_samples_are_their_texts_and_print_them():
    samples = bundle().generate("ab", num_samples=2, length=6, seed=0)
    assert list(samples) == samples.text
    assert (len(samples), samples[1], samples[-1]) == (2, samples.text[1], samples.text[1])
    assert repr(samples) == "Samples(2 texts, 12 new tokens, seed 0)"
    lines = str(samples).splitlines()
    assert lines[:4] == ["--- 1 of 2 ---", samples.text[0], "--- 2 of 2 ---", samples.text[1]]
    assert lines[4].startswith("12 tokens in ")
    assert lines[4].endswith("; seed 0")
    assert "".join(samples.pieces[0]) == samples.text[0]


def test_one_text_stands_alone_and_ids_where_there_is_no_tokenizer():
    model = bundle()
    assert str(model.generate("ab", length=3, seed=0)).startswith("ab")
    samples = hdlm.Bundle(model.model, model.config).generate([[1, 2]], length=3, seed=0)
    assert str(samples).splitlines()[0] == " ".join(map(str, samples.tokens[0]))


@pytest.mark.parametrize("process", ["gamma", "uniform"])
def test_frames_are_read_as_text(process):
    """Rows of several lengths, of which some end early."""
    model = bundle(process=process, eos_id=2)
    prompts, how = ["abdc", "j"], {"length": 12, "num_samples": 4, "seed": 0}
    frames, samples = list(model.stream(prompts, **how)), model.generate(prompts, **how)
    assert any(samples.ended)
    assert frames[-1].text == samples.text
    first = frames[0].text
    assert [text[:4] for text in first[:4]] == ["abdc"] * 4
    if process == "gamma":
        assert [len(text) for text in first[:4]] == [16] * 4
        assert {len(text) for text in first[4:]} == {1, 13}, "one has ended at once"
        masked = (frames[0].tokens == model.process.mask_id)[:4].sum().item()
        assert sum(text.count(MASK_SIGN) for text in first[:4]) == masked > 0
    else:
        assert MASK_SIGN not in "".join(first)


def test_the_live_view_shows_mask_by_the_same_sign():
    assert watch._MASK == MASK_SIGN


def test_a_frame_without_a_tokenizer_says_where_its_tokens_are():
    model = bundle()
    frame = next(hdlm.Bundle(model.model, model.config).stream(length=3, seed=0))
    with pytest.raises(ValueError, match=r"this model has no tokenizer: read \.tokens"):
        _ = frame.text


@pytest.mark.parametrize("kind", ["bytes", "bpe-300"])
@pytest.mark.parametrize("text", TEXTS)
def test_pieces_are_the_text_whatever_characters_tokens_cut(kind, text):
    tokenizer = make_tokenizer(kind, ["the cat and the dog"] * 20).tokenizer
    ids, pieces = encode_pieces(tokenizer, text)
    assert (len(ids), "".join(pieces)) == (len(pieces), text)
    assert pieces_of(tokenizer, ids, special=True) == pieces
    assert "".join(pieces_of(tokenizer, ids)) == tokenizer.decode(ids)
    assert "\ufffd" not in "".join(pieces)
    if "😀" in text:
        assert pieces[pieces.index("😀") - 3 : pieces.index("😀")] == [""] * 3, "its last byte completes it"


def test_bytes_that_are_no_character_are_still_pieces_of_the_text():
    tokenizer = make_tokenizer("bytes", []).tokenizer
    ids, _ = encode_pieces(tokenizer, "é漢a")
    for broken in (ids[1:], ids[:-2], ids[1:2] * 9, [*ids[2:4], ids[-1]]):
        assert "".join(pieces_of(tokenizer, broken)) == tokenizer.decode(broken)


def test_words_that_begin_with_their_space_keep_it_beside_a_mask():
    tokenizer = Tokenizer(models.WordLevel({"▁a": 0, "▁b": 1}))
    tokenizer.decoder = decoders.Metaspace()
    assert pieces_of(tokenizer, [0, 1, 0]) == ["a", " b", " a"]
    assert decode_masked(tokenizer, [0, None, 1, 0, None]) == "a░ b a░"
    assert decode_masked(tokenizer, [None, None]) == "░░"


def test_samples_as_json():
    samples = Samples([[0, 1, 2]], [1], [True], [{"eta": 0.5}], [[1, 2]], [[-0.5, -math.inf]], Stats(), 7, letters())
    told = [{"position": 1, "token": 1, "text": "b", "logprob": -0.5}]
    told += [{"position": 2, "token": 2, "text": "c", "logprob": None}]
    row = {"sample": 0, "seed": 7, "ended": True, "prompt_tokens": 1, "settings": {"eta": 0.5}, "text": "abc"}
    assert samples.to_json() == [row | {"tokens": [0, 1, 2], "logprobs": told}]


def test_stats_in_words():
    stats = Stats(network_calls=3, skipped_calls=2, slots=30, reused_slots=10, tokens=1000, seconds=0.5)
    words = "1,000 tokens in 0.5 s, 2,000 tokens/s; 3 network calls (2 spared); 30 slots, cache hits 25%"
    assert str(stats) == words


def test_bytes_that_are_no_character_do_not_pile_up():
    """Four bytes are a character's most: what they are cannot wait for more."""
    tokenizer = make_tokenizer("bytes", []).tokenizer
    lone = tokenizer.encode("é", add_special_tokens=False).ids[1:]
    assert pieces_of(tokenizer, lone * 5) == ["", "", "", "\ufffd" * 4, "\ufffd"]


def test_pairs_and_keys_of_a_call():
    """A settled slot sees what is held, the settled slots before it and itself; one of the window sees everything."""
    held, settled, fed = 5, 3, 7
    pairs = sum(held + slot + 1 if slot < settled else held + fed for slot in range(fed))
    stats = Stats()
    stats.add_call([(held, settled, fed), (0, 0, 2)], scored=6, cached=True)
    assert (stats.network_calls, stats.head_slots, stats.slots, stats.reused_slots) == (1, 6, 9, 5)
    assert (stats.keys, stats.pairs) == (held + fed + 2, pairs + 4)
    stats.add_call([(0, 0, 2)], scored=2, cached=False)
    assert (stats.keys, stats.pairs) == (held + fed + 2, pairs + 8)


def test_pairs_and_keys_of_a_call_with_windows():
    """Against sets: settled slots see what is before them and themselves, a window what is before it and itself."""
    rows, width = [(4, 3, [5, 7]), (0, 2, []), (6, 0, [6])], 3
    seen = []
    for held, settled, starts in rows:
        seen += [set(range(held + slot + 1)) for slot in range(settled)]
        seen += [set(range(at + width)) for at in starts for _ in range(width)]
    for cached in (True, False):
        stats = Stats()
        for _ in range(2):
            stats.add_branched_call(rows, width=width, cached=cached)
        assert (stats.network_calls, stats.slots, stats.reused_slots) == (2, 2 * len(seen), 2 * 10)
        assert stats.pairs == 2 * sum(map(len, seen))
        assert stats.keys == 2 * cached * (4 + 3 + 2 * width + 0 + 2 + 6 + width)


def test_drafts_are_counted_of_rows_that_go_on():
    """And what was kept, up to a row's end."""
    stats = Stats()
    stats.add_verdicts([4, 4, 3], [2, 4, 3], [3, 0, 1])
    assert (stats.drafted, stats.accepted) == (7, 3)
    stats.add_verdicts([2], [0], [1])
    assert (stats.drafted, stats.accepted) == (9, 3)


def test_the_time_of_those_who_watch_is_not_the_loops():
    began, slept = time.perf_counter(), 0.0
    generation = bundle().stream(length=8, seed=0)
    while True:
        try:
            next(generation)
        except StopIteration as end:
            samples = end.value
            break
        time.sleep(0.03)
        slept += 0.03
    assert slept > 0.2
    assert 0 < samples.stats.seconds <= time.perf_counter() - began - slept


def test_keys_are_counted_where_there_is_a_cache():
    cached, plain = (bundle().generate("ab", length=9, seed=0, cache=cache).stats for cache in (True, False))
    assert cached.keys == cached.slots + cached.reused_slots > 0
    assert (plain.keys, plain.reused_slots) == (0, 0)


def test_pairs_of_a_whole_run_are_those_of_its_calls():
    """Aligned blocks with a cache: what has settled is fed once, with the first step of the next window."""
    how = {"hyperschedule": hdlm.Block(10, 4), "seed": 0, "backend": "reference", "sampler": "posterior"}
    stats, held, pairs, slots = bundle(shifted=False).generate("abc", **how).stats, 0, 0, 0
    for step in hdlm.Block(10, 4).walk():
        settled, width = 3 + step.start - held, step.stop - step.start
        pairs += sum(held + slot + 1 for slot in range(settled)) + width * (held + settled + width)
        slots, held = slots + settled + width, held + settled
    assert (stats.pairs, stats.slots) == (pairs, slots)


def test_stats_by_name():
    told = Stats(tokens=10, seconds=2.0, slots=3).to_json()
    assert (told["tokens_per_second"], told["tokens"], told["seconds"], told["slots"]) == (5.0, 10, 2.0, 3)
    assert Stats().to_json()["tokens_per_second"] == 0
