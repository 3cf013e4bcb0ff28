import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hdlm
from hdlm.theory.draws import draw_times

SCHEDULES = [hdlm.Flat(10), hdlm.Block(10, 4), hdlm.Block(10, 10), hdlm.Slide(10, 4), hdlm.Slide(10, 1)]


def draw(schedule, indices, *, seed=0, batch):
    return draw_times(schedule, seed=seed, indices=torch.as_tensor(indices), global_batch=batch, dtype=torch.float64)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_a_split_batch_draws_what_the_whole_one_does(schedule):
    whole = draw(schedule, range(24, 36), batch=12)
    for share in (torch.arange(24, 36, 3), torch.tensor([35, 24])):
        part = draw(schedule, share, batch=12)
        assert torch.equal(part.times, whole.times[share - 24])
        assert part.offset == whole.offset
    assert not torch.equal(whole.times, draw(schedule, range(24, 36), batch=12, seed=1).times)
    assert not torch.equal(whole.times, draw(schedule, range(36, 48), batch=12).times)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_each_position_has_a_uniform_time(schedule):
    times = torch.cat([draw(schedule, range(n, n + 16), batch=16).times for n in range(0, 4_000, 16)])
    assert times.min() > 0
    assert times.max() < 1
    for i in range(schedule.length):
        counts = torch.histc(times[:, i], 20, 0, 1)
        expected = len(times) / 20
        assert ((counts - expected) ** 2 / expected).sum() < 19 + 6 * (2 * 19) ** 0.5


def test_the_batch_is_stratified():
    batch, schedule = 16, hdlm.Block(12, 3)
    times = draw(schedule, range(batch), batch=batch).times[:, ::3]
    assert sorted((times * batch).ceil().flatten().long().tolist()) == sorted([*range(1, batch + 1)] * 4)
    for window in range(4):
        assert sorted((times[:, window] * batch).ceil().long().tolist()) == list(range(1, batch + 1))
    assert sorted((times * batch * 4).ceil().flatten().long().tolist()) == list(range(1, 4 * batch + 1))


def test_block_has_one_time_a_window_and_flat_one_a_sequence():
    times = draw(hdlm.Block(10, 4), range(8), batch=8).times
    for start, stop in hdlm.Block(10, 4).training_windows():
        assert (times[:, start:stop] == times[:, start : start + 1]).all()
    assert times[0].unique().numel() == 3
    assert draw(hdlm.Flat(10), range(8), batch=8).times[0].unique().numel() == 1


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 40), st.data(), st.integers(0, 2**60))
def test_slide_is_a_ramp_within_each_window(length, data, first):
    width = data.draw(st.integers(1, length))
    schedule = hdlm.Slide(length, width)
    result = draw(schedule, [first], batch=1)
    assert 1 <= result.offset <= width
    windows = schedule.training_windows(result.offset)
    assert [i for start, stop in windows for i in range(start, stop)] == list(range(length))
    assert len(windows) <= schedule.max_windows
    for start, stop in windows:
        origin = start if start > 0 else result.offset - width
        rise = result.times[0, start:stop] * width - (torch.arange(start, stop) - origin)
        torch.testing.assert_close(rise, rise[:1].expand_as(rise), rtol=0, atol=1e-9)
        assert -1e-9 < rise[0] <= 1 + 1e-9


def test_slide_offsets_are_uniform():
    offsets = torch.tensor([draw(hdlm.Slide(10, 5), [n], batch=1).offset for n in range(500)])
    counts = torch.bincount(offsets, minlength=6)[1:].double()
    assert ((counts - 100) ** 2 / 100).sum() < 4 + 6 * 8**0.5
    assert [hdlm.Slide(10, 5).draw_offset(u) for u in (0.0, 0.19, 0.21, 0.999)] == [1, 1, 2, 5]


def test_quench_has_no_noise():
    assert (draw(hdlm.Quench(5), [0], batch=1).times == 0).all()


def test_samples_of_two_steps_do_not_mix():
    with pytest.raises(ValueError, match=r"steps \[0, 1\]"):
        draw(hdlm.Flat(4), [3, 4], batch=4)
