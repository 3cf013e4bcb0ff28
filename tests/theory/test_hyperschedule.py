"""The schedules against the definitions of the paper and of the table in their module."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hdlm
from hdlm.config.schedule import ScheduleConfig
from hdlm.theory.hyperschedule import measured_width

RATES = [1 / 4, 1 / 3, 1 / 2, 1, 2, 3, 4]


@st.composite
def schedules(draw, kinds=("quench", "flat", "block", "slide")):
    kind = draw(st.sampled_from(kinds))
    length = draw(st.integers(1, 64))
    width = draw(st.integers(1, length))
    rate = draw(st.sampled_from(RATES))
    if kind == "quench":
        return hdlm.Quench(length)
    if kind == "flat":
        return hdlm.Flat(length, rate)
    return {"block": hdlm.Block, "slide": hdlm.Slide}[kind](length, width, rate)


def brute_levels(schedule):
    """The table of the design, one entry at a time."""
    top, width = schedule.max_level, schedule.width
    entry = {
        "Quench": lambda i: i,
        "Flat": lambda i: 0,
        "Block": lambda i: (i // width) * top,
        "Slide": lambda i: i * top // width,
    }[type(schedule).__name__]
    steps = {
        "Quench": schedule.length,
        "Flat": top,
        "Block": -(-schedule.length // width) * top,
        "Slide": (schedule.length - 1) * top // width + top,
    }[type(schedule).__name__]
    return torch.tensor(
        [[min(max(entry(i) + top - step, 0), top) for i in range(schedule.length)] for step in range(steps + 1)]
    )


@settings(max_examples=300, deadline=None)
@given(schedules())
def test_levels_are_the_table(schedule):
    assert torch.equal(schedule.levels, brute_levels(schedule))
    assert schedule.steps == schedule.levels.shape[0] - 1


@settings(max_examples=300, deadline=None)
@given(schedules())
def test_levels_descend_from_full_to_clean(schedule):
    levels = schedule.levels
    assert (levels[0] == schedule.max_level).all()
    assert (levels[-1] == 0).all()
    assert (levels[1:] <= levels[:-1]).all()
    assert measured_width(levels) <= schedule.width
    assert schedule.rate == schedule.width / schedule.max_level


@settings(max_examples=200, deadline=None)
@given(schedules(kinds=("block", "slide")))
def test_block_and_slide_visit_every_level_at_every_position(schedule):
    for i in range(schedule.length):
        assert schedule.levels[:, i].unique().tolist() == list(range(schedule.max_level + 1))


@settings(max_examples=60, deadline=None)
@given(schedules())
def test_partition_is_a_partition_in_order(schedule):
    for step in range(schedule.steps):
        settled, active, worthless = schedule.partition(step)
        assert (settled.long() + active.long() + worthless.long() == 1).all()
        now, after = schedule.levels[step], schedule.levels[step + 1]
        assert torch.equal(settled, (now == 0) & (after == 0))
        assert torch.equal(worthless, (now == schedule.max_level) & (after == schedule.max_level))
        order = settled.long() * 0 + active.long() * 1 + worthless.long() * 2
        assert (order.diff() >= 0).all()
        assert 1 <= active.sum() <= schedule.width


@settings(max_examples=60, deadline=None)
@given(schedules())
def test_walk_is_the_level_matrix_seen_through_its_window(schedule):
    count = 0
    for step in schedule.walk():
        settled, active, _ = schedule.partition(step.index)
        assert step.start == settled.sum()
        assert active.nonzero().flatten().tolist() == list(range(step.start, step.stop))
        window = slice(step.start, step.stop)
        assert torch.equal(step.levels, schedule.levels[step.index, window])
        assert torch.equal(step.next_levels, schedule.levels[step.index + 1, window])
        count += 1
    assert count == schedule.steps


@settings(max_examples=100, deadline=None)
@given(schedules(kinds=("quench", "block", "slide")))
def test_a_longer_schedule_begins_alike(schedule):
    """Generation of any length: what the steps are does not depend on where the text will end, until they get there."""
    longer = ScheduleConfig(**schedule.settings | {"length": schedule.length + 70}).build()
    compared = 0
    for long, short in zip(longer.walk(), schedule.walk(), strict=False):
        if long.stop > schedule.length:
            break
        assert (long.index, long.start, long.stop) == (short.index, short.start, short.stop)
        assert torch.equal(long.levels, short.levels)
        assert torch.equal(long.next_levels, short.next_levels)
        compared += 1
    assert compared > 0


@settings(max_examples=100, deadline=None)
@given(schedules(), st.integers(1, 80))
def test_resized_keeps_kind_and_width(schedule, length):
    resized = schedule.resized(length)
    assert (type(resized), resized.length) == (type(schedule), length)
    assert resized.width == (length if not schedule.has_prefix else min(schedule.width, length))


def test_rate_is_tokens_per_step_in_the_long_run():
    for make, rate in itertools.product([hdlm.Block, hdlm.Slide], [1 / 4, 1 / 2, 1, 2, 4]):
        schedule = make(6400, 8, rate)
        assert schedule.rate == rate
        assert schedule.length / schedule.steps == pytest.approx(rate, rel=0.02)


def test_slide_needs_its_entry_to_stay_within_its_width():
    """With floor(i / rate), the obvious entry, the window grows past what was asked: rate 3, width 5."""
    top, length = 2, 60
    entry = torch.arange(length) // 3
    steps = torch.arange(int(entry[-1]) + top + 1).unsqueeze(1)
    assert measured_width((entry + top - steps).clamp(0, top)) > 5
    assert measured_width(hdlm.Slide(length, 5, 3).levels) <= 5


def test_fast_slide_warns_of_its_stairs():
    with pytest.warns(UserWarning, match="several positions enter at once"):
        hdlm.Slide(12, 4, rate=2)


def test_custom_measures_itself():
    schedule = hdlm.Custom(hdlm.Slide(10, 3).levels)
    assert (schedule.width, schedule.steps, schedule.max_level) == (3, 12, 3)
    assert schedule.rate == pytest.approx(10 / 12)
    assert schedule.has_prefix
    assert [(s.start, s.stop) for s in schedule.walk()] == [(s.start, s.stop) for s in hdlm.Slide(10, 3).walk()]


def test_custom_out_of_order_runs_as_one_window():
    schedule = hdlm.Custom([[2, 2, 2], [2, 1, 2], [2, 0, 1], [1, 0, 0], [0, 0, 0]])
    assert not schedule.has_prefix
    assert schedule.width == 2
    assert {(s.start, s.stop) for s in schedule.walk()} == {(0, 3)}


def test_custom_window_starts_where_the_settled_prefix_ends():
    """Position 1 is worthless between a settled and an active one: the window still starts there."""
    schedule = hdlm.Custom([[2, 2, 2], [0, 2, 2], [0, 2, 1], [0, 1, 1], [0, 0, 0]])
    assert schedule.has_prefix
    assert [(s.start, s.stop) for s in schedule.walk()] == [(0, 1), (1, 3), (1, 3), (1, 3)]


def test_custom_that_settles_at_once_has_nothing_to_cache():
    assert not hdlm.Custom(hdlm.Flat(4).levels).has_prefix
    assert not hdlm.Flat(4).has_prefix
    assert all(schedule.has_prefix for schedule in (hdlm.Quench(4), hdlm.Block(4, 2), hdlm.Slide(4, 2)))


def test_custom_passes_over_steps_without_change():
    schedule = hdlm.Custom([[2, 2], [2, 2], [1, 2], [1, 2], [0, 0], [0, 0]])
    assert [(s.index, s.start, s.stop) for s in schedule.walk()] == [(1, 0, 1), (3, 0, 2)]


FAMILIES = [
    lambda: hdlm.Quench(8),
    lambda: hdlm.Quench(9),
    lambda: hdlm.Flat(8),
    lambda: hdlm.Flat(8, 2),
    lambda: hdlm.Block(8, 4),
    lambda: hdlm.Block(8, 8),
    lambda: hdlm.Block(8, 4, 0.5),
    lambda: hdlm.Slide(8, 4),
    lambda: hdlm.Custom(hdlm.Slide(8, 4).levels),
    lambda: hdlm.Custom(hdlm.Slide(8, 2).levels),
]


def test_schedules_are_equal_when_their_numbers_are():
    """Each is equal to another of its making, hash included, and to none of the others, levels alike or not."""
    made = [make() for make in FAMILIES]
    for i, one in enumerate(made):
        assert [one == make() for make in FAMILIES] == [j == i for j in range(len(FAMILIES))]
        assert hash(one) == hash(FAMILIES[i]())
        assert one != one.levels.tolist()
    assert len({*made, *(make() for make in FAMILIES)}) == len(FAMILIES)
    assert hdlm.Block(8, 4, 1) == hdlm.Block(8, 4, 1.0)
    assert hdlm.Block(8, 4, 0.9) == hdlm.Block(8, 4), "a rate that needs as many levels is the same schedule"


@settings(max_examples=100, deadline=None)
@given(schedules())
def test_settings_say_which_schedule_it_is(schedule):
    words = ScheduleConfig.of(schedule)
    assert words.build() == schedule
    assert words.kind == schedule.kind


@settings(max_examples=100, deadline=None)
@given(schedules(kinds=("quench", "flat", "block")), st.integers(0, 9))
def test_training_windows_tile_and_prompts_join_the_window(schedule, given):
    windows = schedule.training_windows()
    assert [i for start, stop in windows for i in range(start, stop)] == list(range(schedule.length if windows else 0))
    assert len(windows) == schedule.max_windows
    inside = schedule.with_prompt(given)
    if schedule.has_prefix:
        assert inside is None
    else:
        assert (inside.length, inside.steps) == (given + schedule.length, schedule.steps)


BAD = {
    "width 0": (lambda: hdlm.Block(10, 0), r"width = 0 .*1\.\.10"),
    "width past the end": (lambda: hdlm.Slide(10, 11), r"width = 11 .*1\.\.10"),
    "no length": (lambda: hdlm.Quench(0), r"length = 0 .*>= 1"),
    "rate 0": (lambda: hdlm.Flat(10, rate=0), r"rate = 0 .*above 0"),
    "a rising level": (
        lambda: hdlm.Custom([[2, 2], [1, 1], [2, 1], [0, 0]]),
        "rises from 1 to 2 at row 2, column 0",
    ),
    "no clean end": (lambda: hdlm.Custom([[2, 2], [1, 0]]), "holds 1 at row 1, column 0: the last row must be 0"),
    "uneven start": (lambda: hdlm.Custom([[2, 1], [0, 0]]), "holds 1 at row 0, column 1: the first row must be 2"),
    "rate that needs too many levels": (lambda: hdlm.Flat(10, rate=1e-320), "at most 10,000,000 levels"),
    "null": (lambda: hdlm.Custom([[1, None], [0, 0]]), "holds None at row 0, column 1: it must be an integer"),
    "a truth": (lambda: hdlm.Custom([[1], [False]]), "holds False at row 1, column 0: it must be an integer"),
    "fractions": (lambda: hdlm.Custom([[1], [0.0]]), r"holds 0\.0 at row 1, column 0: it must be an integer"),
    "ragged": (lambda: hdlm.Custom([[2, 2], [0]]), "has 1 columns in row 1: it must have 2 as in row 0"),
    "one row": (lambda: hdlm.Custom([[0, 0]]), "at least two rows"),
    "no columns": (lambda: hdlm.Custom([[], []]), "at least two rows"),
    "no matrix": (lambda: hdlm.Custom([1, 0]), "at least two rows"),
    "nothing to fall": (lambda: hdlm.Custom([[0], [0]]), "starts at 0"),
    "a level beyond all bounds": (lambda: hdlm.Custom([[10**400], [0]]), "starts at 1000"),
    "one row of a tensor": (lambda: hdlm.Custom(torch.zeros(1, 2, dtype=torch.long)), r"shape \(1, 2\)"),
    "fractions of a tensor": (lambda: hdlm.Custom(torch.ones(2, 1)), "must hold integers"),
    "a rising tensor": (lambda: hdlm.Custom(torch.tensor([[1], [2], [0]])), "rises from 1 to 2 at row 1, column 0"),
    "step past the end": (lambda: hdlm.Quench(4).partition(4), r"step = 4 .*0\.\.3"),
    "custom of another length": (lambda: hdlm.Custom([[1], [0]]).resized(5), "has 1 positions"),
    "slide without an offset": (lambda: hdlm.Slide(8, 4).training_windows(), r"offset = None .*1\.\.4"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_names_the_value_and_the_range(case):
    make, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        make()
