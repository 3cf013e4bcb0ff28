"""Writing with real networks: the cache, seeds, prompts, gaps, ends, counts, and what is refused."""

import dataclasses
import json
import warnings
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from networks import network
from tokenizers import Tokenizer, decoders, models

import hdlm
from hdlm.bundle import Bundle
from hdlm.config import BundleConfig, NoiseConfig, ProcessConfig, SamplingConfig, ScheduleConfig
from hdlm.data.tokenizer import make_tokenizer
from hdlm.sampling.certain import Certain
from hdlm.sampling.count import count
from hdlm.theory.random import categorical, keyed_uniform
from hdlm.writing.prompts import Pieces, encode, gap_row
from hdlm.writing.request import prompt_request

LETTERS = "abcdefghij "  # the 11 tokens of the small networks
CONTEXT = 24
PROCESSES = {
    "absorbing": ProcessConfig("absorbing"),
    "gamma": ProcessConfig("gamma", noise=NoiseConfig("loglinear"), gamma=0.2),
    "uniform": ProcessConfig("uniform", noise=NoiseConfig("loglinear")),
    "epsilon": ProcessConfig("epsilon", epsilon=0.1),
}
SAMPLERS = {
    "absorbing": ["posterior", "original", "tau-leaping", "certain", "confidence", "remask"],
    "gamma": ["posterior", "original", "acs", "tau-leaping", "euler", "certain", "confidence", "remask"],
    "uniform": ["posterior", "tau-leaping", "euler"],
    "epsilon": ["posterior", "original", "acs", "certain", "confidence", "remask"],
}


def letters():
    tokenizer = Tokenizer(models.BPE({sign: i for i, sign in enumerate(LETTERS)}, []))
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def bundle(kind="block", width=4, *, process="gamma", shifted=True, style=None, dtype=torch.float64, **changes):
    style = style or ("paper" if process == "gamma" else "plain")
    if process == "uniform":
        changes["model"] = {"mask_embedding": False}
    model = network(style, **changes.pop("model", {})).to(dtype)
    config = BundleConfig(
        model=model.config,
        process=PROCESSES[process],
        hyperschedule=ScheduleConfig(kind, CONTEXT, width=width if kind in ("block", "slide") else None),
        shifted=shifted,
        bos_id=3,
        next_token=shifted,
        **changes,
    )
    return Bundle(model, config, letters())


@pytest.fixture(autouse=True)
def _quiet():
    warnings.filterwarnings("ignore", message=".*trained on.*")


SCHEDULES = [hdlm.Block(21, 4), hdlm.Block(21, 5, 2), hdlm.Slide(21, 4), hdlm.Slide(21, 6, 0.5), hdlm.Quench(21)]


@pytest.mark.parametrize("prompt", [None, ["abc", "a", "jihgfe dcba"]], ids=["unconditional", "prompts"])
@pytest.mark.parametrize("shifted", [False, True], ids=["aligned", "shifted"])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
@pytest.mark.parametrize("process", PROCESSES)
def test_the_cache_changes_no_token(process, schedule, shifted, prompt):
    model = bundle(process=process, shifted=shifted)
    texts = [
        model.generate(prompt, num_samples=2, hyperschedule=schedule, seed=5, cache=cache).tokens
        for cache in (True, False)
    ]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("threshold", [1.0, 0.15])
@pytest.mark.parametrize("schedule", SCHEDULES[:-1], ids=repr)
def test_the_cache_changes_no_token_where_the_network_says_the_order(schedule, threshold):
    """And a row's text is its own, whatever the others beside it are up to."""
    model = bundle(process="absorbing")
    how = {"hyperschedule": schedule, "sampler": "certain", "threshold": threshold, "seed": 5, "temperature": 5.0}
    texts = [model.generate(["abc", "a"], num_samples=2, cache=cache, **how).tokens for cache in (True, False)]
    assert texts[0] == texts[1]
    assert model.generate(["a"], num_samples=2, **how).tokens == texts[0][2:]


@pytest.mark.parametrize("schedule", [hdlm.Block(12, 4), hdlm.Slide(12, 4), hdlm.Flat(12), hdlm.Quench(12)], ids=repr)
def test_a_text_does_not_depend_on_its_company(schedule):
    model, how = bundle(), {"hyperschedule": schedule, "temperature": 5.0}
    together = model.generate(["abc", "b", "abc"], num_samples=2, seed=1, **how)
    apart = model.generate(["abc"], num_samples=4, seed=1, batch_size=3, **how)
    alone = model.generate("b", num_samples=2, seed=1, **how)
    assert [*together.tokens[:2], *together.tokens[4:]] == apart.tokens
    assert together.tokens[2:4] == alone.tokens
    assert len({tuple(row) for row in apart.tokens}) > 1
    assert model.generate("b", seed=2, **how).tokens != alone.tokens[:1]
    again = model.generate("b", **how)
    assert model.generate("b", seed=again.seed, **how).tokens == again.tokens


@settings(max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
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
        draws=data.draw(st.sampled_from(["float64", "float64", "float32"])),
        cache=data.draw(st.booleans()),
    )
    for prompt, tokens in zip(prompts, samples.tokens, strict=True):
        assert tokens[: len(prompt)] == prompt
        assert len(tokens) == len(prompt) + length
        assert all(0 <= token < 11 for token in tokens)


_kept: dict = {}


def _small(process, shifted):
    if (process, shifted) not in _kept:
        _kept[process, shifted] = bundle(process=process, shifted=shifted, dtype=torch.float32, model={"layers": 1})
    return _kept[process, shifted]


def test_autoregression_is_what_a_plain_loop_does():
    model = bundle("quench", process="absorbing")
    samples = model.generate("ab", length=9, num_samples=3, seed=7)
    from hdlm.sampling.dice import TOKEN, row_keys
    from hdlm.theory.layout import build_layout

    rows = [[0, 1]] * 3
    keys = torch.tensor(row_keys(rows))
    x = torch.tensor(rows)
    for step in range(9):
        layout = build_layout(x.shape[1], [], shifted=True)
        slots = layout.fill(x, x, torch.zeros(x.shape), model.process, bos_id=3)
        law = model.model(slots)[:, -1, :11].softmax(-1)
        u = keyed_uniform(7, keys, TOKEN, step, torch.tensor(step))
        x = torch.cat([x, categorical(law, u).unsqueeze(1)], 1)
    assert samples.tokens == x.tolist()


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("schedule", [*SCHEDULES, hdlm.Flat(21, 2)], ids=repr)
def test_counting_from_the_schedule_is_what_happens(schedule, shifted, cache):
    """Euler asks at every step, so that no call is spared."""
    model = bundle(shifted=shifted)
    for prompt in ("", "abc"):
        settled = 0 if isinstance(schedule, hdlm.Flat) else len(prompt)
        sampler = "ar" if isinstance(schedule, hdlm.Quench) else "euler"
        request = model.generate(prompt, hyperschedule=schedule, sampler=sampler, seed=0, cache=cache)
        found = count(
            prompt_request(model, prompt, hyperschedule=schedule).batches[0].schedule, shifted=shifted, prompt=settled
        )
        assert request.stats.network_calls == found.calls
        uncached = not cache or isinstance(schedule, hdlm.Flat)
        assert request.stats.slots == (found.slots_uncached if uncached else found.slots_cached)
        assert request.stats.slots + request.stats.reused_slots == found.slots_uncached


def test_counts_by_hand():
    found = count(hdlm.Block(8, 4, 2), shifted=False)
    assert (found.calls, found.slots_uncached, found.slots_cached) == (4, 4 + 4 + 8 + 8, 4 + 4 + 8 + 4)
    assert (found.paper_calls, found.paper_slots_uncached, found.paper_slots_cached) == (3, 12, 8)
    found = count(hdlm.Quench(4), shifted=True, prompt=2)
    assert (found.calls, found.slots_uncached, found.slots_cached) == (4, 3 + 4 + 5 + 6, 3 + 1 + 1 + 1)


def test_steps_without_an_event_cost_nothing():
    stats = bundle(process="absorbing").generate(length=20, width=5, rate=0.05, sampler="original", seed=0).stats
    assert stats.skipped_calls > 300
    assert stats.head_slots == 20
    assert stats.network_calls <= 20


@pytest.mark.parametrize("process", ["absorbing", "gamma", "epsilon"])
@pytest.mark.parametrize("schedule", [hdlm.Flat(16, 0.5), hdlm.Block(15, 5, 0.5), hdlm.Slide(12, 4), hdlm.Quench(9)])
def test_rows_that_go_ahead_write_what_they_would_have_written(process, schedule):
    """Unwatched, every row takes its own next step: the same tokens in fewer calls."""
    model = bundle(process=process)
    settings = {"num_samples": 5, "hyperschedule": schedule, "seed": 2, "stop_at_eos": False}
    *_, last = model.stream([[5]], **settings)
    samples = model.generate([[5]], **settings)
    assert samples.tokens == last.tokens.tolist()
    steps = sum(1 for _ in schedule.walk())
    assert samples.stats.network_calls + samples.stats.skipped_calls == steps
    if schedule.rate < 1 and process == "absorbing":
        assert samples.stats.network_calls < 0.9 * sum(frame.changed.any() for frame in model.stream([[5]], **settings))


def test_frames_tell_the_story():
    model = bundle(process="gamma")
    frames = list(model.stream("abc", length=8, width=4, seed=3))
    samples = model.generate("abc", length=8, width=4, seed=3)
    assert [frame.step for frame in frames] == list(range(8))
    assert frames[-1].tokens.tolist() == samples.tokens
    assert frames[0].settled.tolist()[0] == [True] * 3 + [False] * 8
    assert frames[3].levels.tolist()[0] == [0] * 7 + [4] * 4
    before = None
    for frame in frames:
        if before is not None:
            assert torch.equal(frame.changed, frame.tokens != before)
        assert not (frame.changed & (torch.arange(11) < 3)).any()
        before = frame.tokens


def test_text_ends_at_a_settled_end():
    model = bundle(eos_id=2)
    samples = model.generate(num_samples=20, length=16, seed=0)
    assert any(samples.ended)
    free = model.generate(num_samples=20, length=16, seed=0, stop_at_eos=False)
    for cut, whole, ended in zip(samples.tokens, free.tokens, samples.ended, strict=True):
        assert cut == (whole[: whole.index(2)] if ended else whole)
        assert ended == (2 in whole)
    assert samples.stats.tokens == sum(map(len, samples.tokens))
    assert model.generate("c", length=4, seed=0).tokens[0][0] == 2, "a prompt's own end is no end"


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
    row = gap_row("the cat [[gap:2]] the mat", words)
    assert row[row.index(None) - 1] == words.token_to_id("Ġcat")
    assert row[-2:] == [words.token_to_id("Ġthe"), words.token_to_id("Ġmat")]
    assert gap_row("a [[gap:2]] a", letters()) == [0, 10, None, None, 10, 0]


def test_pieces_keep_their_spaces():
    pieces = Pieces(letters())
    assert "".join(pieces(token) for token in [0, 10, 1]) == "a b"


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ("a prompt of 20 tokens and 10 new ones", {"prompt": "a" * 20, "hyperschedule": hdlm.Flat(10)}),
        ("eta = 1.5", {"sampler": "acs", "eta": 1.5}),
        ("eta = 0.1 is not accepted for sampler 'original'", {"sampler": "original", "eta": 0.1}),
        ("sampler = 'magic' is not accepted: it must be one of posterior, original", {"sampler": "magic"}),
        ("sampler 'ar' does not fit Block", {"sampler": "ar"}),
        ("temperature = -1", {"temperature": -1}),
        ("top_p = 0 ", {"top_p": 0.0}),
        ("top_k = 0", {"top_k": 0}),
        ("draws = 'float16'", {"draws": "float16"}),
        ("num_samples = 0", {"num_samples": 0}),
        ("length = 0", {"length": 0}),
        ("prompt token = 11", {"prompt": [[11]]}),
        ("the character 'é'", {"prompt": "é"}),
        ("seed = -1", {"seed": -1}),
        ("colour is no setting of generation", {"colour": "red"}),
        ("give it alone", {"hyperschedule": hdlm.Block(8, 4), "rate": 2}),
        ("hyperschedule = 'block'", {"hyperschedule": "block"}),
        (r"prompt = \[1, 2\]", {"prompt": [1, 2]}),
        ("prompt token = 1.5", {"prompt": [[1.5]]}),
        ("no valid Unicode", {"prompt": "\udcff"}),
    ],
)
def test_bad_input_is_refused_in_one_line(words, settings):
    with pytest.raises(ValueError, match=words):
        bundle().generate(**settings)


@pytest.mark.parametrize("prompt", [5, 1.5, True, object(), [None], ["a", 5], b"ab", [b"ab"]])
@pytest.mark.parametrize("method", ["generate", "stream"])
def test_what_is_no_prompt_is_refused(method, prompt):
    with pytest.raises(
        ValueError, match=r"prompt = .* is not accepted: it must be a text, a list of texts or of token"
    ):
        getattr(bundle(), method)(prompt)


@pytest.mark.parametrize("text", [5, None, ["a[[gap:2]]"], b"a[[gap:2]]"])
def test_what_is_no_text_has_no_gaps(text):
    with pytest.raises(ValueError, match=r"text = .* is not accepted: it must be a str"):
        bundle("flat").infill(text)


@pytest.mark.parametrize(
    ("process", "sampler", "words"),
    [
        ("uniform", "original", "needs a process that masks"),
        ("uniform", "confidence", "needs a process that masks"),
        ("epsilon", "tau-leaping", "does not fit EpsilonHybrid"),
        ("absorbing", "acs", "'remask' corrects such models"),
        ("absorbing", "euler", "needs finite noise"),
    ],
)
def test_a_sampler_that_does_not_fit_is_refused(process, sampler, words):
    with pytest.raises(ValueError, match=words):
        bundle(process=process).generate(sampler=sampler)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"length": 30}, "30 tokens are more than the 24"),
        (
            {"width": 8, "length": 16},
            r"Block\(length=16, width=8, rate=1\) is outside what this network was trained on",
        ),
        ({"hyperschedule": hdlm.Flat(8)}, "outside what"),
        ({"prompt": "abcdef", "width": 2, "length": 4}, "outside what"),
        ({"prompt": "abcdef", "kind": "slide", "width": 3, "length": 3}, "outside what"),
    ],
)
def test_what_was_not_trained_is_said(settings, words):
    with pytest.warns(UserWarning, match=words):
        bundle().generate(**settings)


def test_what_was_trained_is_not_remarked_upon():
    model = bundle(mixture=(ScheduleConfig("flat", CONTEXT), ScheduleConfig("slide", CONTEXT, width=8)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.generate(length=20, rate=4)
        model.generate(hyperschedule=hdlm.Flat(CONTEXT))
        model.generate(hyperschedule=hdlm.Slide(20, 8))
        model.generate(hyperschedule=hdlm.Quench(20))
        model.generate("abcdef", length=3)  # less than a block, as the last one of most texts is


def test_block_causal_networks_take_prompts_of_any_length():
    """Windows start where blocks do: what is left of the prompt lies inside the first."""
    model = bundle(shifted=False, block_causal=True)
    for prompt in ("", "ab", "abcd", "abcdef"):
        cached, plain = (model.generate(prompt, length=9, seed=0, cache=cache) for cache in (True, False))
        assert cached.tokens == plain.tokens
        assert cached.text[0].startswith(prompt)
        assert len(cached.tokens[0]) == len(prompt) + 9


def test_flawed_draws_follow_their_weights_all_the_same():
    """The draw of earlier work goes wrong only far out in the tail, below about 2^-24."""
    from hdlm.sampling.dice import Dice

    law = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    row, position = torch.arange(2000).repeat_interleave(4), torch.arange(4).repeat(2000)
    drawn = Dice(0, torch.arange(2000), flawed=True).flawed_tokens(law.expand(8000, -1), row, 0 * row, position)
    counts = torch.bincount(drawn, minlength=4).double()
    assert ((counts - 8000 * law) ** 2 / (8000 * law)).sum() < 25


@pytest.mark.parametrize("schedule", [hdlm.Block(9, 3), hdlm.Quench(9)], ids=repr)
@pytest.mark.parametrize("temperature", [1e-6, 1e-38, 1e-40])
def test_tiny_temperatures_are_greedy(schedule, temperature):
    model = bundle(dtype=torch.float32, process="absorbing")
    tokens = [
        model.generate(hyperschedule=schedule, temperature=t, sampler=None, seed=0).tokens for t in (0, temperature)
    ]
    assert tokens[0] == tokens[1]


def scores(process, **changes):
    model = network("plain", **changes)
    config = BundleConfig(
        model.config, process, ScheduleConfig("block", CONTEXT, width=4), True, "score", bos_id=3, next_token=True
    )
    return Bundle(model, config, letters())


@pytest.mark.parametrize("sampler", ["posterior", "original", "certain", "confidence", "remask"])
def test_score_networks_start_from_infinite_noise(sampler):
    """Where every score out of MASK is infinite, their ratios still tell the token; with gamma > 0 nothing does."""
    with pytest.raises(ValueError, match="say nothing at t = 1"):
        scores(ProcessConfig("gamma", noise=NoiseConfig("linear"), gamma=0.2)).generate(length=4)
    model = scores(ProcessConfig("absorbing", noise=NoiseConfig("linear")))
    samples = model.generate(length=9, rate=4, sampler=sampler, num_samples=20, seed=0)
    assert max(max(row) for row in samples.tokens) < 11


def test_autoregression_reads_logits_whatever_the_parameterisation():
    """Settled slots learn cross-entropy: what they say is no score."""
    process = ProcessConfig("gamma", noise=NoiseConfig("loglinear"), gamma=0.5)
    as_score = scores(process)
    as_clean = Bundle(as_score.model, replace(as_score.config, parameterization="clean"), letters())
    found = [m.generate(hyperschedule=hdlm.Quench(12), num_samples=8, seed=0).tokens for m in (as_score, as_clean)]
    assert found[0] == found[1]


def test_settled_places_of_any_custom_schedule_stay():
    levels = [[3] * 6, [2, 2, 2, 0, 0, 0], [1, 1, 2, 0, 0, 0], [0, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0]]
    model = bundle(process="epsilon")
    how = {"hyperschedule": hdlm.Custom(levels), "sampler": "acs", "eta": 1.0, "num_samples": 8, "seed": 0}
    before = None
    for frame in model.stream(**how):
        if before is not None:
            assert torch.equal(frame.tokens[before.settled], before.tokens[before.settled])
        before = frame


def test_given_tokens_count_as_settled_in_a_flat_window():
    frame = next(bundle("flat").stream("ab", length=4, seed=0))
    assert frame.settled[0].tolist() == [True, True, False, False, False, False]


def test_the_same_seed_begins_alike_whatever_the_length():
    short, long = (bundle().generate("ab", length=n, seed=3, temperature=5.0).tokens[0] for n in (8, 16))
    assert long[:10] == short


def test_block_causal_networks_write_by_their_own_blocks_only():
    model = bundle(shifted=False, block_causal=True)
    assert len(model.generate("abcdefg", length=2, seed=0).tokens[0]) == 9
    for schedule in (hdlm.Slide(8, 4), hdlm.Quench(8), hdlm.Block(8, 2)):
        with pytest.raises(ValueError, match="see whole blocks of 4"):
            model.generate("abc", hyperschedule=schedule)
    assert model.infill("abcde[[gap:2]]f", seed=0).text[0].startswith("abcde")


def test_a_tokenizer_of_words_takes_spaces_and_shows_its_pieces():
    from tokenizers import pre_tokenizers

    words = Tokenizer(models.WordLevel({"w1": 0, "w2": 1}))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    assert encode(words, "w1 w2") == [0, 1]
    assert Pieces(words)(1) == " w2"
    with pytest.raises(ValueError, match="is not accepted: this model's tokenizer says"):
        encode(words, "w3")


def test_unwatched_custom_schedules_have_their_own_levels():
    """One step of a window at one level, another at several: rows that go ahead are told the right ones."""
    model = bundle(kind="flat", process="gamma", shifted=False)
    schedule = hdlm.Custom(torch.tensor([[6, 6, 6, 6], [3, 6, 6, 6], [1, 1, 1, 1], [0, 0, 0, 0]]))
    for seed in range(5):
        settings = {"num_samples": 3, "hyperschedule": schedule, "seed": seed}
        *_, last = model.stream(**settings)
        assert model.generate(**settings).tokens == last.tokens.tolist()


def test_a_row_that_ends_is_left_alone_at_once():
    model = bundle(process="absorbing", eos_id=7)
    with torch.no_grad():
        model.model.head.weight.zero_()
        model.model.head.weight[7] = 1.0  # EOS or not, by the sign of a feature
    settings = {"num_samples": 1, "hyperschedule": hdlm.Block(300, 4), "seed": 0}
    for seed in range(6):
        samples = model.generate(**settings | {"seed": seed})
        written = len(samples.tokens[0]) + samples.ended[0]
        assert samples.stats.head_slots <= written + 4
        frames = list(model.stream(**settings | {"seed": seed}))
        assert frames[-1].tokens[0, : len(samples.tokens[0])].tolist() == samples.tokens[0]
        assert len(frames) <= written + 8


def test_a_models_own_shaping_is_what_nothing_else_asks_for():
    plain = bundle()
    config = dataclasses.replace(plain.config, sampling=SamplingConfig(temperature=0.0))
    cold = Bundle(plain.model, config, plain.tokenizer)
    asked = {"num_samples": 2, "length": 12, "seed": 5}
    assert cold.generate(**asked).tokens == plain.generate(temperature=0.0, **asked).tokens
    assert cold.generate(temperature=1.0, **asked).tokens == plain.generate(**asked).tokens
    assert plain.generate(temperature=None, **asked).tokens == plain.generate(**asked).tokens


def test_a_models_own_rule_is_what_nothing_else_asks_for():
    plain = bundle(process="absorbing")
    own = SamplingConfig(sampler="certain", threshold=0.2)
    config = dataclasses.replace(plain.config, sampling=own)
    model = Bundle(plain.model, config, plain.tokenizer)
    asked = {"num_samples": 2, "length": 12, "seed": 5}
    certain = plain.generate(sampler="certain", threshold=0.2, **asked).tokens
    assert model.generate(**asked).tokens == certain
    assert model.generate(sampler="original", **asked).tokens == plain.generate(**asked).tokens != certain
    assert model.generate(threshold=1.0, **asked).tokens == plain.generate(sampler="certain", **asked).tokens
    ar = {"hyperschedule": hdlm.Quench(12), "num_samples": 2, "seed": 5}
    assert model.generate(**ar).tokens == plain.generate(**ar).tokens
    with pytest.raises(ValueError, match=r"threshold = 0\.5 is not accepted for sampler 'acs'"):
        SamplingConfig(sampler="acs", threshold=0.5)
    assert BundleConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
    for bad in ({"threshold": 0.5}, {"sampler": "ar"}):
        with pytest.raises(ValueError, match="is not accepted"):
            SamplingConfig(**bad)
    with pytest.raises(ValueError, match="needs a process that masks"):
        dataclasses.replace(bundle(process="uniform").config, sampling=own)
    with pytest.raises(ValueError, match="it has its own"):
        model.generate(sampler=Certain(), threshold=0.5)
    with pytest.raises(ValueError, match="sampler = 'sure' is not accepted"):
        SamplingConfig(sampler="sure")
    with pytest.raises(ValueError, match=r"eta = 0\.5 is not accepted for sampler 'certain'"):
        model.generate(eta=0.5)


def test_a_threshold_saves_calls():
    model = bundle(process="absorbing")
    asked = {"num_samples": 1, "length": 16, "width": 8, "sampler": "certain", "seed": 1}
    calls = [model.generate(threshold=threshold, **asked).stats.network_calls for threshold in (1.0, 0.2, 0.0)]
    assert calls[0] == 16
    assert calls[2] == 2  # everything at once, a call a block
    assert calls[2] <= calls[1] <= calls[0]


@pytest.mark.parametrize("text", ["a [[gap:3]] b", "a [[gap:x]] b"])
def test_gaps_are_no_prompts(text):
    with pytest.raises(ValueError, match=r"gaps are for infill, written as \[\[gap:N\]\], N a number"):
        bundle().generate(text)
    with pytest.raises(ValueError, match="has no gap" if "x" in text else "is not accepted"):
        bundle("flat").infill(text if "x" in text else text + "[[gap:-1]]")
