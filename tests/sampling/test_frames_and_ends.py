"""What those see who watch, and where a text ends."""

import pytest
import torch
from support.bundles import bundle

import hdlm

pytestmark = pytest.mark.filterwarnings("ignore:.*trained on.*:UserWarning")


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


def test_settled_positions_of_any_custom_schedule_stay():
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


def test_frames_tell_what_the_network_thinks_of_a_token_that_it_takes_back():
    """The probability, in that step, of what was there; of MASK and of what stays there is none to tell."""
    model, seen = bundle(process="gamma"), 0
    for frame in model.stream(length=16, seed=1, sampler="acs", eta=1.0, num_samples=4):
        taken = frame.window_changed & (frame.before != model.process.mask_id)
        assert torch.equal(frame.doubt.isnan(), ~taken)
        assert bool(((frame.doubt[taken] > 0) & (frame.doubt[taken] < 1)).all())
        seen += int(taken.sum())
    assert seen > 10


def test_frames_say_which_samples_they_are_of():
    frames = bundle().stream(["ab", "c", "d"], length=4, seed=0, batch_size=2)
    assert [frame.rows for frame in frames] == [(0, 1)] * 4 + [(2,)] * 4
