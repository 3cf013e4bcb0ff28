"""What a batch holds: every row in its turn, noise as strong as its time says, and no slot for nothing."""

import numpy as np
import pytest
import torch
from support.networks import BOS_ID, VOCAB
from support.runs import tiny_recipe

from hdlm.config.process import ProcessConfig
from hdlm.config.recipe import LossSettings, MixtureMember, ModelSettings
from hdlm.data.packed import Rows
from hdlm.theory.averaging import averaged_times
from hdlm.theory.draws import draw_times
from hdlm.theory.layout import inference_layout, training_layout
from hdlm.train.batch import Batches

LENGTH, CPU = 11, torch.device("cpu")


def batches(tokens, *, kind="block", width=4, process="absorbing", **changes):
    settings = {"loss": LossSettings(beta1=1.0), "process": ProcessConfig(process)}
    settings["schedules"] = (MixtureMember(kind, width),)
    recipe = tiny_recipe("x", length=LENGTH, **(settings | changes))
    return Batches(recipe, Rows(tokens), recipe.process.build(VOCAB), bos_id=BOS_ID, device=CPU)


def numbered(count):
    """Rows that say which they are: their number, in digits."""
    return (np.arange(count)[:, None] // VOCAB ** np.arange(LENGTH)[None]) % VOCAB


def in_order(batch, targets, values):
    """A batch's values [rows, positions] by the position that they are of."""
    found = torch.empty_like(values)
    found[:, batch.slots.layout.predicts[targets.slot]] = values
    return found


def test_an_epoch_has_every_row_once():
    source = batches(numbered(24))
    epochs = []
    for epoch in range(2):
        seen = []
        for step in range(3 * epoch, 3 * epoch + 3):
            batch = source.at(torch.arange(8 * step, 8 * step + 8), global_batch=8)
            seen += in_order(batch, batch.active, batch.active.x0).tolist()
            assert torch.equal(in_order(batch, batch.settled, batch.settled.x0), torch.tensor(seen[-8:]))
        assert sorted(seen) == sorted(numbered(24).tolist())
        epochs.append(seen)
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize(("kind", "width"), [("block", 4), ("slide", 4), ("flat", None)])
def test_positions_are_masked_as_often_as_their_times_say(kind, width):
    """MASK with probability t, and else the token itself; the network is told the same times."""
    source = batches(numbered(4000), kind=kind, width=width, loss=LossSettings())
    batch = source.at(torch.arange(4000), global_batch=4000)
    active, masked = batch.active, batch.active.xt == VOCAB
    assert torch.equal(active.xt[~masked], active.x0[~masked])
    assert ((active.t > 0) & (active.t <= 1)).all()
    for low in (0.0, 0.25, 0.5, 0.75):
        inside = (active.t > low) & (active.t <= low + 0.25)
        expected, count = active.t[inside].double().mean(), int(inside.sum())
        assert count > 1000
        assert abs(masked[inside].double().mean() - expected) < 4 * 0.5 / count**0.5
    sigma = -torch.log1p(-active.t.double().clamp(max=1 - 1e-6))
    told = batch.slots.slot_sigma()[:, active.slot].double()
    below = active.t < 0.99
    torch.testing.assert_close(told[below], sigma[below], rtol=1e-3, atol=1e-5)


def test_noise_is_the_samples_own():
    """The same rows again, in the next epoch or under another seed, are masked elsewhere."""
    rows = np.zeros((4, LENGTH), dtype=np.int64)
    first, later = (batches(rows).at(torch.arange(4) + 4 * step, global_batch=4) for step in (0, 1))
    other = batches(rows, seed=5).at(torch.arange(4), global_batch=4)
    for batch in (later, other):
        assert not torch.equal(batch.active.xt, first.active.xt)
        assert not torch.equal(batch.active.t, first.active.t)
    assert len({tuple(row) for row in first.active.xt.tolist()}) == 4


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("beta1", [0.0, 0.5])
def test_slots_are_left_out_that_carry_no_loss_and_that_nobody_sees(shifted, beta1):
    source = batches(numbered(8), shifted=shifted, loss=LossSettings(beta1=beta1 if shifted else 0.0))
    batch = source.at(torch.arange(4), global_batch=4)
    schedule = MixtureMember("block", 4).schedule(LENGTH).build()
    layout = training_layout(schedule, shifted=shifted, settled_loss=shifted and beta1 > 0)
    assert batch.slots.layout.holds.tolist() == layout.holds.tolist()
    assert (batch.settled is not None) == (shifted and beta1 > 0)


def test_settled_tokens_are_clean():
    batch = batches(numbered(8)).at(torch.arange(4), global_batch=4)
    assert torch.equal(batch.settled.xt, batch.settled.x0)
    assert not batch.settled.t.any()
    assert batch.settled.weight.tolist() == [1.0] * LENGTH


@pytest.mark.parametrize(("width", "windows", "shifted"), [(6, 2, False), (6, 2, True), (11, 1, False)])
def test_one_of_two_windows_is_trained_where_they_are_not_doubled(width, windows, shifted):
    """As it is generated, at one level; and where there is but one, all of it."""
    source = batches(numbered(8), width=width, doubled=False, shifted=shifted, loss=LossSettings())
    starts = set()
    for step in range(12):
        batch = source.at(torch.arange(4) + 4 * step, global_batch=4)
        start = int(batch.slots.layout.predicts[batch.active.slot].min())
        ends, slots = (start, min(start + width, LENGTH)), LENGTH + int(shifted)
        expected = inference_layout(*ends, shifted=shifted, slots=slots, one_level_a_window=True)
        assert batch.slots.layout.holds.tolist() == expected.holds.tolist()
        assert batch.slots.layout.runs == expected.runs
        starts.add(start)
    assert starts == set(range(0, LENGTH, width))
    assert len(starts) == windows


def test_a_window_is_trained_as_often_as_it_has_positions():
    """Of 8 and 3 positions; which one it is depends on step and seed."""
    sources = (batches(numbered(8), width=8, doubled=False, seed=seed) for seed in (0, 1))
    first, other = ([source._window(0, None, step) for step in range(300)] for source in sources)
    assert set(first) == {0, 1}
    assert abs(first.count(0) / 300 - 8 / 11) < 4 * (8 / 11 * 3 / 11 / 300) ** 0.5
    assert first != other


def test_windows_that_slide_are_those_of_the_offset_drawn():
    source = batches(numbered(8), kind="slide", doubled=False, shifted=False, loss=LossSettings())
    seen = set()
    for step in range(24):
        indices = torch.arange(4) + 4 * step
        batch = source.at(indices, global_batch=4)
        offset = draw_times(source._schedules[0], seed=0, indices=indices, global_batch=4).offset
        positions = batch.slots.layout.predicts[batch.active.slot].tolist()
        starts = [0, *range(offset, LENGTH, 4)]
        assert sorted(positions) in [list(range(*ends)) for ends in zip(starts, [*starts[1:], LENGTH], strict=True)]
        seen.add(offset)
    assert seen == {1, 2, 3, 4}


def test_members_are_drawn_by_step_and_seed():
    """How often each is: `test_loss.py`."""
    members = tuple(MixtureMember("block", width) for width in (2, 4))
    first, other = (batches(numbered(8), schedules=members, seed=seed) for seed in (0, 1))
    found = [first.member(step) for step in range(40)]
    assert set(found) == {0, 1}
    assert found != [other.member(step) for step in range(40)]


@pytest.mark.parametrize(("bos", "expected"), [(BOS_ID, BOS_ID), (None, 0)])
def test_what_comes_after_a_rows_end_is_its_beginning_or_the_first_token(bos, expected):
    """Where no mask can stand for it."""
    tokens = numbered(64) % 2 + 5
    tokens[:, 6:] = -1
    recipe = tiny_recipe(
        "x", length=LENGTH, shifted=False, process=ProcessConfig("uniform"), schedules=(MixtureMember("flat"),)
    )
    source = Batches(recipe, Rows(tokens), recipe.process.build(VOCAB), bos_id=bos, device=CPU)
    batch = source.at(torch.arange(64), global_batch=64)
    x0, weight = (in_order(batch, batch.active, values) for values in (batch.active.x0, batch.active.weight))
    assert torch.equal(x0[:, 6:], torch.full((64, 5), expected))
    assert torch.equal(x0[:, :6].sort(0).values, torch.from_numpy(tokens[:, :6]).sort(0).values)
    assert torch.equal(weight, torch.tensor([1.0] * 6 + [0.0] * 5).expand(64, -1))


def test_averaged_times_know_where_a_row_ends():
    """What is masked after the end says nothing of the time."""
    tokens = numbered(64)
    tokens[:, 6:] = -1
    model = ModelSettings(layers=1, width=32, heads=2, conditioned=False)
    source = batches(tokens, kind="flat", width=None, model=model, loss=LossSettings(averaged=True))
    batch = source.at(torch.arange(64), global_batch=64)
    masked = in_order(batch, batch.active, batch.active.xt) == VOCAB
    found, real = in_order(batch, batch.active, batch.active.t), (torch.arange(LENGTH) < 6).expand(64, -1)
    schedule = MixtureMember("flat", None).schedule(LENGTH).build()
    torch.testing.assert_close(found[:, :6], averaged_times(schedule, masked, real=real)[:, :6])
    assert masked[:, 6:].all()
    assert not torch.allclose(found[:, :6], averaged_times(schedule, masked)[:, :6])
