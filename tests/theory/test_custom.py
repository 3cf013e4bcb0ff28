"""Training on custom matrices: the law of times, the windows, and what becomes of them in shorter and longer texts."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hdlm
from hdlm.config.schedule import ScheduleConfig
from hdlm.theory.averaging import averaged_times
from hdlm.theory.draws import draw_times
from hdlm.theory.layout import training_layout

SCRAMBLED = [[3, 3, 3, 3], [3, 1, 3, 2], [3, 0, 2, 2], [1, 0, 2, 2], [1, 0, 2, 2], [0, 0, 1, 0], [0, 0, 0, 0]]


@st.composite
def customs(draw):
    """Any matrix, or rows of a block or slide, whose settled positions are a prefix."""
    if draw(st.booleans()):
        length, steps, top = draw(st.integers(1, 5)), draw(st.integers(1, 6)), draw(st.integers(1, 4))
        falling = st.lists(st.integers(0, top), min_size=steps - 1, max_size=steps - 1).map(sorted)
        columns = [[top, *draw(falling)[::-1], 0] for _ in range(length)]
        return hdlm.Custom(list(zip(*columns, strict=True)))
    make, length = draw(st.sampled_from([hdlm.Block, hdlm.Slide])), draw(st.integers(1, 7))
    levels = make(length, draw(st.integers(1, length))).levels
    kept = [True, *(draw(st.booleans()) for _ in range(len(levels) - 2)), True]
    return hdlm.Custom(levels[torch.tensor(kept)])


def each_draw(schedule, count=2000):
    """All offsets and how likely each is, with times and weights at evenly spaced numbers."""
    level = ((torch.arange(count, dtype=torch.float64) + 0.5) / count).unsqueeze(1).expand(-1, schedule.max_windows)
    offsets = [schedule.draw_offset((k + 0.5) / count) for k in range(count)]
    for offset in sorted(set(offsets), key=str):
        share = offsets.count(offset) / count
        yield share, offset, schedule.times(level, offset), schedule.weights(level, offset)


@settings(max_examples=25, deadline=None)
@given(customs())
def test_weighted_times_are_uniform(schedule):
    """As of the other schedules: of every position the mean of any function of its time is that over (0, 1)."""
    drawn = list(each_draw(schedule))
    for power in range(3):
        mean = sum(share * (w * t**power).mean(0) for share, _, t, w in drawn)
        torch.testing.assert_close(mean, torch.full_like(mean, 1 / (power + 1)), rtol=0, atol=2e-2)
    for _, _, times, weights in drawn:
        assert ((times >= 0) & (times <= 1)).all()
        torch.testing.assert_close(weights.sum(1), torch.full_like(weights[:, 0], schedule.length))


@settings(max_examples=25, deadline=None)
@given(customs())
def test_windows_are_those_of_generation(schedule):
    windows = [schedule.training_windows(offset) for _, offset, _, _ in each_draw(schedule)]
    assert {window for tiling in windows for window in tiling} == {(s.start, s.stop) for s in schedule.walk()}
    for tiling in windows:
        assert all(stop <= start for (_, stop), (start, _) in itertools.pairwise(tiling))
        assert len(tiling) <= schedule.max_windows
        assert tiling[-1][0] <= schedule.last_start


def test_by_hand():
    """One position falls by 1, then both, by 2 and 1: of four levels the first step has one, the second three."""
    schedule = hdlm.Custom([[2, 2], [2, 1], [0, 0]])
    level = torch.tensor([[7 / 8], [3 / 8]], dtype=torch.float64)  # in the middle of either step
    torch.testing.assert_close(schedule.times(level), torch.tensor([[1, 0.75], [0.5, 0.25]], dtype=torch.float64))
    torch.testing.assert_close(schedule.weights(level), torch.tensor([[0, 2], [4 / 3, 2 / 3]], dtype=torch.float64))


@pytest.mark.parametrize(("length", "width"), [(10, 4), (7, 7), (5, 1)])
def test_the_levels_of_block_and_slide_are_trained_as_those(length, width):
    for make, first in ((hdlm.Block, None), (hdlm.Slide, 1)):
        plain = make(length, width)
        custom = hdlm.Custom(plain.levels)
        level = 1 - torch.rand(6, plain.max_windows, dtype=torch.float64)
        offsets = [None] if first is None else range(width)
        drawn = [custom.draw_offset((k + 0.5) / len(offsets)) for k in range(len(offsets))]
        assert drawn == (list(offsets) if len(offsets) > 1 else [None])
        for offset in offsets:
            theirs = None if offset is None else offset + 1
            assert custom.training_windows(offset) == plain.training_windows(theirs)
            torch.testing.assert_close(custom.times(level, offset), plain.times(level, theirs))
            weights = custom.weights(level, offset)
            torch.testing.assert_close(weights, torch.ones_like(weights))


def test_draws_are_stratified_and_rest_in_the_middle():
    """Sixteen samples hit sixteen parts of the fall; where nothing falls the loss is taken where it is finite."""
    schedule = hdlm.Custom(SCRAMBLED)
    draw = draw_times(schedule, seed=3, indices=torch.arange(16), global_batch=16, dtype=torch.float64)
    fallen = 1 - draw.times.sum(1) / 4  # of one window, all of it falls together
    assert sorted((fallen * 16).long().tolist()) == list(range(16))
    rests = draw.weights == 0
    assert rests.any(1).all()
    assert (draw.loss_times[rests] == 0.5).all()
    assert torch.equal(draw.loss_times[~rests], draw.times[~rests])
    assert hdlm.Flat(4).weights(torch.ones(1, 1)) is None
    with pytest.raises(ValueError, match="its times are not uniform"):
        averaged_times(schedule, torch.zeros(1, 4, dtype=torch.bool))


@settings(max_examples=25, deadline=None)
@given(customs(), st.data())
def test_words_build_it_again_whole_and_cut(schedule, data):
    cut = schedule.resized(data.draw(st.integers(1, schedule.length)))
    assert torch.equal(cut.levels, schedule.levels[:, : cut.length])
    assert cut.has_prefix == schedule.has_prefix
    for one in (schedule, cut):
        again = ScheduleConfig.of(one).build()
        assert again == one
        assert [(s.index, s.start, s.stop) for s in again.walk()] == [(s.index, s.start, s.stop) for s in one.walk()]
        assert ScheduleConfig.of(one).sees_all == (not one.has_prefix)


def test_prompts_join_the_one_window_as_settled_tokens():
    schedule = hdlm.Custom(SCRAMBLED)
    joined = schedule.with_prompt(2)
    assert (joined.length, joined.steps, joined.has_prefix) == (6, 6, False)
    assert {(s.start, s.stop) for s in joined.walk()} == {(0, 6)}
    level = torch.rand(5, 1, dtype=torch.float64)
    for of in ("times", "weights"):
        ours, alone = getattr(joined, of)(level), getattr(schedule, of)(level)
        assert (ours[:, :2] == 0).all()
        torch.testing.assert_close(ours[:, 2:], alone)
    together = hdlm.Custom(hdlm.Flat(3).levels).with_prompt(2)
    assert {(s.start, s.stop) for s in together.walk()} == {(0, 5)}
    assert hdlm.Custom(hdlm.Block(4, 2).levels).with_prompt(2) is None
    first = hdlm.Custom(hdlm.Block(4, 2).levels).resized(2)
    assert first.with_prompt(1) is None, "trained after settled tokens, its first block is none that holds them"


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("levels", [SCRAMBLED, hdlm.Slide(6, 3, 0.5).levels, hdlm.Block(5, 2).levels[::2]], ids=len)
def test_layouts_have_one_shape(levels, shifted):
    schedule = hdlm.Custom(levels)
    layouts = [training_layout(schedule, shifted=shifted, offset=offset) for _, offset, _, _ in each_draw(schedule, 50)]
    assert len({len(layout) for layout in layouts}) == 1
    assert all(layout.mask().any(-1).all() for layout in layouts)
