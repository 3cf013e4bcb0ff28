"""Generation asks the network only where and when something can change, and writes the same."""

import pytest
import torch
from support.bundles import bundle

import hdlm

pytestmark = pytest.mark.filterwarnings("ignore:.*trained on.*:UserWarning")


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


def test_a_threshold_saves_calls():
    model = bundle(process="absorbing")
    asked = {"num_samples": 1, "length": 16, "width": 8, "sampler": "certain", "seed": 1}
    calls = [model.generate(threshold=threshold, **asked).stats.network_calls for threshold in (1.0, 0.2, 0.0)]
    assert calls[0] == 16
    assert calls[2] == 2  # everything at once, a call a block
    assert calls[2] <= calls[1] <= calls[0]
