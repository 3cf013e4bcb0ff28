"""Averaged weights have the expectation of the weights they stand for, pattern by pattern."""

from itertools import product

import pytest
import torch

import hdlm
from hdlm.theory.averaging import averaged_times

FINE = 40_000


def patterns(length):
    return torch.tensor(list(product([False, True], repeat=length)))


def integrals(ramp, is_mask):
    """By brute force over a window's one number: P(pattern), and the mean of each 1 / t times that."""
    v = (torch.arange(FINE, dtype=torch.float64) + 0.5) / FINE
    t = ramp(v)  # [positions, FINE]
    chance = torch.where(is_mask.unsqueeze(-1), t, 1 - t).prod(-2)
    return chance.mean(-1), (chance.unsqueeze(-2) / t).mean(-1)


@pytest.mark.parametrize("schedule", [hdlm.Flat(5), hdlm.Block(5, 5)], ids=repr)
def test_of_one_time_for_all(schedule):
    is_mask = patterns(5)
    chance, weighted = integrals(lambda v: v.expand(5, -1), is_mask)
    found = chance.unsqueeze(-1) / averaged_times(schedule, is_mask).double()
    assert torch.allclose(found[is_mask], weighted[is_mask], rtol=1e-4)


@pytest.mark.parametrize("offset", [1, 2, 4])
def test_of_a_ramp(offset):
    width, length = 4, offset + 4 + 1
    schedule = hdlm.Slide(length, width)
    is_mask = patterns(length)
    found = 1 / averaged_times(schedule, is_mask, offset=offset).double()
    for start in (offset - width, offset, offset + width):
        inside = [place for place in range(start, start + width) if 0 <= place < length]
        steps = torch.tensor([place - start for place in inside], dtype=torch.float64).unsqueeze(1)
        for pattern in patterns(len(inside)):
            chance, weighted = integrals(lambda v, steps=steps: (steps + v) / width, pattern)
            rows = (is_mask[:, inside] == pattern).all(1)
            expected = (weighted / chance).expand(int(rows.sum()), -1)
            chosen = found[rows][:, inside]
            assert torch.allclose(chosen[:, pattern], expected[:, pattern], rtol=1e-4)


def test_blocks_stand_alone_and_the_last_may_be_short():
    is_mask = torch.tensor([[True, False, True, True, True]])
    found = averaged_times(hdlm.Block(5, 2), is_mask)
    assert torch.allclose(found, torch.tensor([[1 / 3, 1 / 3, 2 / 3, 2 / 3, 1 / 2]]))
    with pytest.raises(ValueError, match="not accepted"):
        averaged_times(hdlm.Quench(5), is_mask)


def test_wide_ramps_stay_finite():
    is_mask = torch.rand(3, 500, generator=torch.Generator().manual_seed(0)) < torch.linspace(0, 1, 500)
    found = averaged_times(hdlm.Slide(500, 256), is_mask, offset=77)
    assert found.isfinite().all()
    assert (found > 0).all()
    assert (found <= 1).all()


@pytest.mark.parametrize(
    ("schedule", "offset"), [(hdlm.Block(6, 3), None), (hdlm.Flat(6), None), (hdlm.Slide(6, 3), 2)]
)
def test_positions_that_chance_did_not_mask_say_nothing(schedule, offset):
    real = torch.tensor([[True, True, True, True, False, False]])
    for pattern in patterns(4):
        cut = type(schedule)(*((4, schedule.width) if offset or schedule.width == 3 else (4,)))
        whole = torch.cat([pattern, torch.tensor([True, True])]).unsqueeze(0)
        found = averaged_times(schedule, whole, offset=offset, real=real)[:, :4]
        expected = averaged_times(cut, pattern.unsqueeze(0), offset=offset)
        assert torch.allclose(found[:, pattern], expected[:, pattern])
