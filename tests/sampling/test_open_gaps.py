"""Gaps of open length: how they are written, which length is kept, and that nothing else changes."""

import warnings
from dataclasses import replace

import pytest
import torch
from support.bundles import bundle, letters

from hdlm.bundle import Bundle
from hdlm.sampling.gaps import read_gaps
from hdlm.sampling.open_gaps import MOST_TEXTS, MOST_TOKENS, choose, infill_request, log_likelihoods
from hdlm.sampling.results import Stats
from hdlm.sampling.rng import SampleRNG
from hdlm.theory.random import keyed_uniform

pytestmark = pytest.mark.filterwarnings("ignore:.*trained on.*:UserWarning")


@pytest.fixture(scope="module")
def flat():
    return bundle("flat", process="absorbing")


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("a[[gap:3]]b", (range(3, 4),)),
        ("a[[gap:2-5]]b", (range(2, 6),)),
        ("a[[gap:5-5]]b", (range(5, 6),)),
        ("a[[gap]]b[[gap:1-24]][[gap:7]]c", (None, range(1, 25), range(7, 8))),
    ],
)
def test_lengths_are_read(text, lengths):
    found = read_gaps(text, letters(), 11, longest=24)
    assert found.lengths == lengths
    assert found.open == tuple(one is None or len(one) > 1 for one in lengths)


def test_a_row_has_the_lengths_that_are_given():
    gaps = read_gaps("a[[gap]]bc[[gap:2]]", letters(), 11)
    assert gaps.row([3, 2]) == [0, None, None, None, 1, 2, None, None]


LONG = "9" * 30


@pytest.mark.parametrize(
    ("mark", "words"),
    [
        (
            "[[gap:20-4]]",
            r"\[\[gap:20-4\]\] is not accepted: a gap has 1 to 24 tokens here, and a range begins with the",
        ),
        ("[[gap:0-3]]", r"\[\[gap:0-3\]\] is not accepted: a gap has 1 to 24 tokens here$"),
        ("[[gap:3-25]]", r"\[\[gap:3-25\]\] is not accepted: a gap has 1 to 24 tokens here$"),
        ("[[gap:4-]]", r"\[\[gap:4-\]\] is not accepted as a gap: write \[\[gap:N\]\]"),
        ("[[gap:-4]]", r"\[\[gap:-4\]\] is not accepted as a gap: write"),
        ("[[gap:1-2-3]]", r"\[\[gap:1-2-3\]\] is not accepted as a gap: write"),
        ("[[gap 4]]", r"\[\[gap 4\]\] is not accepted as a gap: write"),
        ("[[gaps]]", r"\[\[gaps\]\] is not accepted as a gap: write"),
        (f"[[gap:{LONG}]]", r"\[\[gap:9{30}\]\] is not accepted: a gap has 1 to 24"),
        ("[[gap:" + "9" * 5000 + "]]", r"\[\[gap:9{14}\.\.\.9{18}\]\] is not accepted: a gap has 1 to 24"),
        (f"[[gap:2-{LONG}{LONG}]]", r"\[\[gap:2-9{12}\.\.\.9{18}\]\] is not accepted: a gap has 1 to 24"),
    ],
)
def test_bad_spellings_are_refused_by_name(flat, mark, words):
    for text in (f"a{mark}b", f"a[[gap:2]]{mark}b"):
        with pytest.raises(ValueError, match=words) as refused:
            flat.infill(text)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("model", "text", "words"),
    [
        (
            {"shifted": False},
            "a[[gap]]b",
            r"did not learn to predict the next token; give a number, as in \[\[gap:8\]\]",
        ),
        ({}, "ab[[gap]]", r"at the end of a text: what stands right of it tells .* as in \[\[gap:8\]\]$"),
        ({"eos_id": 9}, "ab[[gap:2-3]]", "or write j, the end of text, behind it"),
        ({}, "a[[gap]]b" * 7, "7 gaps without a number are not accepted: 6 at most"),
        ({}, "a" * 20 + "[[gap:2-5]]b", "a text of up to 26 tokens is not accepted .* trained on 24 tokens"),
        ({"kind": "block"}, "a[[gap:2-4]]b", "are 5 tokens, and this network's widest window holds 4"),
        ({"kind": "quench"}, "a[[gap]]b", "cannot fill gaps: it reads from left to right"),
    ],
)
def test_what_cannot_be_decided_is_refused(model, text, words):
    with pytest.raises(ValueError, match=words):
        bundle(**{"kind": "flat", "process": "absorbing"} | model).infill(text)


def test_a_network_that_never_learned_next_tokens_is_refused(flat):
    untaught = Bundle(flat.model, replace(flat.config, next_token=False), flat.tokenizer)
    with pytest.raises(ValueError, match="did not learn to predict the next token"):
        untaught.infill("a[[gap:1-3]]b")
    assert len(untaught.infill("a[[gap:3]]b", seed=0).tokens[0]) == 5


@pytest.mark.parametrize("count", [1, 16])
def test_a_text_is_that_of_its_own_number_in_the_gap(flat, count):
    found = flat.infill("ab[[gap:1-4]]cd[[gap:2]]e", num_samples=count, seed=4)
    assert all(told["gaps"][1] == 2 for told in found.settings)
    lengths = [told["gaps"][0] for told in found.settings]
    assert count == 1 or len(set(lengths)) > 1
    for number, (tokens, length) in enumerate(zip(found.tokens, lengths, strict=True)):
        known = flat.infill(f"ab[[gap:{length}]]cd[[gap:2]]e", num_samples=count, seed=4)
        assert tokens == known.tokens[number]
        assert found.settings[number] == known.settings[number] | {"gaps": [length, 2]}
    again = flat.infill("ab[[gap:1-4]]cd[[gap:2]]e", num_samples=count, seed=4, batch_size=2, backend="reference")
    assert again.tokens == found.tokens


def test_the_one_that_is_kept_has_the_highest_exact_likelihood(flat):
    for seed in range(4):
        found = flat.infill("ab[[gap:1-5]]cd", seed=seed)
        totals = {n: flat.logprobs(flat.infill(f"ab[[gap:{n}]]cd", seed=seed).tokens[0]).total for n in (1, 2, 3, 4, 5)}
        assert found.settings[0]["gaps"] == [max(totals, key=totals.__getitem__)]


def test_the_likelihood_is_that_of_logprobs(flat):
    rows, stats = [[1], [3, 1, 4, 1, 5], [9, 2], [6, 5, 3, 5, 8, 9, 7, 9, 3]], Stats()
    found = log_likelihoods(flat, rows, 3, stats)
    expected = [flat.logprobs(row) for row in rows]
    assert all(one.exact for one in expected)
    torch.testing.assert_close(found, torch.tensor([one.total for one in expected], dtype=torch.float64))
    assert (stats.network_calls, stats.slots) == (2, 3 * 5 + 9)
    assert stats.seconds > 0


def test_several_samples_draw_their_length_in_proportion_to_likelihood():
    p, rows = torch.tensor([0.05, 0.6, 0.35], dtype=torch.float64), 20_000
    chosen = choose((p.log() - 40).expand(rows, 3), SampleRNG(7, torch.arange(rows)))
    counts = torch.bincount(chosen, minlength=3).double()
    assert ((counts - rows * p) ** 2 / (rows * p)).sum() < 23  # once in 10^5, of 2 degrees of freedom
    u = keyed_uniform(7, torch.arange(rows), 305, 0, 0)  # one number a sample, of a purpose of its own
    assert torch.equal(chosen, torch.bucketize(u, p.cumsum(0), right=True))
    assert choose(p.log().unsqueeze(0), SampleRNG(7, torch.arange(1))).tolist() == [1]


def test_all_work_is_counted(flat):
    open_, fixed = (
        flat.infill("ab[[gap:1-4]]cd", seed=1),
        [flat.infill(f"ab[[gap:{n}]]cd", seed=1) for n in range(1, 5)],
    )
    [length] = open_.settings[0]["gaps"]
    again = fixed[length - 1].stats
    calls = [one.stats.network_calls for one in fixed]  # of texts that are written side by side, which share theirs
    assert max(calls) <= open_.stats.network_calls - 1 - again.network_calls <= sum(calls)
    assert open_.stats.slots == sum(one.stats.slots for one in fixed) + 4 * 8 + again.slots
    assert open_.stats.tokens == length


def test_nothing_said_means_as_much_as_fits(flat):
    assert _tried(flat, "a[[gap]]b") == list(range(1, 23))
    assert _tried(flat, "a" * 20 + "[[gap]]b") == [1, 2, 3]
    assert _tried(bundle("block", 6, process="absorbing"), "abcdefgh[[gap]]ij") == [1, 2, 3, 4]
    wide = bundle("flat", process="absorbing")
    wide.config = replace(wide.config, hyperschedule=replace(wide.config.hyperschedule, length=64))
    assert _tried(wide, "a[[gap]]b") == list(range(1, MOST_TOKENS + 1))


def test_too_many_combinations_are_thinned_out_evenly_and_said(flat):
    with pytest.warns(UserWarning, match="a gap of") as said:
        request, done = _asked(flat, "a[[gap:1-9]]b[[gap:2-10]]c")
    assert [str(one.message) for one in said] == [
        "a gap of 1 to 9 tokens is tried with 1, 2, 3, 4, 6, 7, 8, 9 alone: at most 64 texts are",
        "a gap of 2 to 10 tokens is tried with 2, 3, 4, 5, 7, 8, 9, 10 alone: at most 64 texts are",
    ]
    assert done[-1] == (MOST_TEXTS, MOST_TEXTS)
    assert sorted(done) == done
    assert len(done) < MOST_TEXTS  # they are written side by side
    [batch] = request.batches
    assert batch.gaps is not None
    assert batch.rows[0].count(None) == sum(batch.gaps)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert done[-1] == (MOST_TEXTS, MOST_TEXTS)


def _asked(model, text):
    done = []
    return infill_request(model, text, rate=100.0, progress=lambda *told: done.append(told)), done


def _tried(model, text):
    """Lengths of the one gap that were filled."""
    _, done = _asked(model, text)
    return list(range(1, done[-1][1] + 1))
