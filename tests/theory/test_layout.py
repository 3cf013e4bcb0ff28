"""Layouts against masks written out by hand, position by position, from the paper's description."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hdlm
from hdlm.theory.layout import (
    BOS,
    NOTHING,
    PADDING,
    SETTLED,
    build_layout,
    inference_layout,
    step_layout,
    training_layout,
)


@st.composite
def tilings(draw):
    length = draw(st.integers(1, 13))
    width = draw(st.integers(1, length))
    shifted, kind = draw(st.booleans()), draw(st.sampled_from(["block", "slide"]))
    if kind == "block":
        schedule, offset = hdlm.Block(length, width), None
        windows = schedule.training_windows()
    else:
        schedule, offset = hdlm.Slide(length, width), draw(st.integers(1, width))
        windows = schedule.training_windows(offset)
    settled_loss = draw(st.booleans())
    return (
        schedule,
        windows,
        shifted,
        training_layout(schedule, shifted=shifted, offset=offset, settled_loss=settled_loss),
    )


@settings(max_examples=300, deadline=None)
@given(tilings())
def test_training_mask_is_what_the_paper_describes(case):
    _, windows, shifted, layout = case
    mask, holds, window = layout.mask(), layout.holds.tolist(), layout.window.tolist()
    starts = [start for start, _ in windows]
    for q in range(len(layout)):
        for k in range(len(layout)):
            if window[q] == SETTLED:
                expected = window[k] == SETTLED and holds[k] <= holds[q]
            elif holds[q] == PADDING:
                expected = holds[k] == PADDING
            else:
                start = starts[window[q]]
                context = window[k] == SETTLED and holds[k] < start - shifted
                expected = context or window[k] == window[q]
            assert bool(mask[q, k]) == expected, (q, k)
    assert mask.any(1).all()


@settings(max_examples=300, deadline=None)
@given(tilings())
def test_each_token_is_predicted_by_exactly_one_active_slot(case):
    schedule, windows, shifted, layout = case
    active = (layout.window != SETTLED) & (layout.predicts != NOTHING)
    assert sorted(layout.predicts[active].tolist()) == list(range(schedule.length))
    shift = int(shifted)
    real = layout.holds != PADDING
    assert torch.equal(layout.position[real], layout.holds[real] + shift)
    assert torch.equal(layout.predicts[active], layout.holds[active] + shift)
    # A noisy slot is active; shifted, each window also holds the clean token before it.
    assert (layout.window[layout.noisy] >= 0).all()
    clean_inside = real & ~layout.noisy & (layout.window >= 0)
    assert clean_inside.sum() == shift * len(windows)


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("settled_loss", [False, True])
def test_shapes_do_not_change_from_draw_to_draw(shifted, settled_loss):
    for length, width in [(12, 4), (13, 4), (7, 7), (5, 1), (1, 1)]:
        schedule = hdlm.Slide(length, width)
        sizes = {
            len(training_layout(schedule, shifted=shifted, offset=offset, settled_loss=settled_loss))
            for offset in range(1, width + 1)
        }
        assert len(sizes) == 1


def test_trimming_drops_only_slots_that_no_window_reads():
    for shifted in (False, True):
        full = training_layout(hdlm.Block(11, 4), shifted=shifted)
        trimmed = training_layout(hdlm.Block(11, 4), shifted=shifted, settled_loss=False)
        assert len(trimmed) == len(full) - 3 - shifted
        reads = full.mask()[full.window >= 0][:, full.window == SETTLED].any(0)
        assert reads.sum() == len(trimmed) - (full.window >= 0).sum()


def test_quench_and_flat():
    quench = training_layout(hdlm.Quench(5), shifted=True)
    assert quench.holds.tolist() == [BOS, 0, 1, 2, 3]  # the last token is predicted, and need not be read
    assert quench.predicts.tolist() == [0, 1, 2, 3, 4]
    assert torch.equal(quench.mask(), torch.ones(5, 5).tril().bool())
    for shifted in (False, True):
        flat = training_layout(hdlm.Flat(5), shifted=shifted)
        assert len(flat) == 5 + shifted
        assert flat.mask().all()


def test_block_causal_settled_slots_see_their_block_whole():
    layout = training_layout(hdlm.Block(7, 3), shifted=False, block_causal=True)
    mask = layout.mask()[:7, :7]
    expected = torch.tensor([[k // 3 <= q // 3 for k in range(7)] for q in range(7)])
    assert torch.equal(mask, expected)


def test_overlapping_windows_of_the_papers_figure():
    layout = build_layout(12, [(2, 6), (5, 9), (11, 12)], shifted=False)
    assert layout.holds[12:].tolist() == [2, 3, 4, 5, 5, 6, 7, 8, 11]
    assert layout.limit[12:].tolist() == [1] * 4 + [4] * 4 + [10]
    shifted = build_layout(12, [(2, 6), (5, 9), (11, 12)], shifted=True)
    assert shifted.holds[13:].tolist() == [1, 2, 3, 4, 5, 4, 5, 6, 7, 8, 10, 11]
    assert shifted.predicts[13:].tolist() == [2, 3, 4, 5, NOTHING, 5, 6, 7, 8, NOTHING, 11, NOTHING]


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 13), st.data(), st.booleans())
def test_inference_sees_what_the_doubled_pass_sees(length, data, shifted):
    """A window of the doubled layout reads the same tokens at the same positions as the naive inference pass."""
    width = data.draw(st.integers(1, length))
    windows = hdlm.Block(length, width).training_windows()
    number = data.draw(st.integers(0, len(windows) - 1))
    start, stop = windows[number]
    doubled, naive = build_layout(length, windows, shifted=shifted), inference_layout(start, stop, shifted=shifted)

    def reads(layout, chosen):
        return [
            sorted(zip(layout.position[row].tolist(), layout.noisy[row].tolist(), strict=True))
            for row in layout.mask()[layout.window == chosen]
        ]

    assert reads(doubled, number) == reads(naive, 0)
    assert (naive.window == SETTLED).sum() == start


@pytest.mark.parametrize("shifted", [False, True])
def test_cached_slots_are_left_out(shifted):
    whole, rest = inference_layout(6, 9, shifted=shifted), inference_layout(6, 9, shifted=shifted, cached=4)
    for name in ("holds", "position", "window", "limit", "predicts"):
        assert torch.equal(getattr(whole, name)[4:], getattr(rest, name))


def test_a_step_of_equal_rows_is_one_layout_and_of_others_a_stack():
    """Every row of a stack is its own layout, padding aside, which sees only itself."""
    same, sizes = step_layout(((4, 6, 2), (4, 6, 2)), shifted=True)
    assert same.holds.ndim == 1
    assert sizes == [len(same)] * 2
    rows = ((4, 6, 2), (0, 3, 0), (5, 6, 0))
    stacked, sizes = step_layout(rows, shifted=True)
    for number, (start, stop, cached) in enumerate(rows):
        alone, size = inference_layout(start, stop, shifted=True, cached=cached), sizes[number]
        assert size == len(alone)
        for name in ("holds", "predicts", "position", "noisy", "window", "limit"):
            assert torch.equal(getattr(stacked, name)[number, :size], getattr(alone, name))
        assert torch.equal(stacked.mask()[number, :size, :size], alone.mask())
        assert not stacked.mask()[number, :size, size:].any()


def test_autoregression_feeds_what_the_causal_pass_feeds():
    causal = training_layout(hdlm.Quench(6), shifted=True)
    for start in range(6):
        for cached in range(start + 1):
            step, _ = step_layout(((start, start + 1, cached),), shifted=True, next_token=True)
            for name in ("holds", "position", "window", "limit"):
                assert torch.equal(getattr(step, name), getattr(causal, name)[cached : start + 1])
            assert step.predicts[-1] == start
            assert not step.noisy.any()


def test_fill_gives_each_slot_its_token_time_and_weight():
    process = hdlm.GammaHybrid(50, 0.2)
    x0, xt = torch.tensor([[10, 11, 12, 13]]), torch.tensor([[50, 21, 22, 50]])
    t = torch.tensor([[0.1, 0.2, 0.3, 0.4]], dtype=torch.float64)
    layout = build_layout(4, [(0, 2), (2, 4)], shifted=True, slots=13)
    slots = layout.fill(x0, xt, t, process, bos_id=7)
    assert slots.token.tolist() == [[7, 10, 11, 12, 13, 7, 50, 21, 11, 22, 50, 0, 0]]
    # Conditioning: the time of what a slot predicts; the last of a window predicts nothing and takes its own.
    time = [0, 0, 0, 0, 0, 0.1, 0.2, 0.2, 0.3, 0.4, 0.4, 0, 0]
    held = [0, 0, 0, 0, 0, 0, 0.1, 0.2, 0, 0.3, 0.4, 0, 0]
    torch.testing.assert_close(slots.slot_sigma()[0], process.noise.sigma(torch.tensor(time, dtype=torch.float64)))
    torch.testing.assert_close(slots.weight[0], process.embedding_weight(torch.tensor(held, dtype=torch.float64)))


def test_fill_takes_times_that_broadcast():
    process, layout = hdlm.GammaHybrid(50, 0.2), build_layout(4, [(0, 4)], shifted=False)
    x = torch.randint(50, (2, 4))
    for t in (torch.tensor(0.3), torch.full((4,), 0.3), torch.full((2, 1), 0.3)):
        slots = layout.fill(x, x, t, process)
        torch.testing.assert_close(slots.sigma[:, 1:], process.noise.sigma(torch.full((2, 4), 0.3)))


def test_fill_needs_bos_where_the_layout_has_it():
    x = torch.zeros(1, 3, dtype=torch.long)
    layout = training_layout(hdlm.Quench(3), shifted=True)
    with pytest.raises(ValueError, match="bos_id = None"):
        layout.fill(x, x, torch.zeros(1, 3), hdlm.Absorbing(5))


BAD = {
    "window past the end": (lambda: build_layout(4, [(2, 5)], shifted=False), r"\[2, 5\).*\[0, 4\]"),
    "empty window": (lambda: build_layout(4, [(2, 2)], shifted=False), r"\[2, 2\)"),
    "aligned quench": (lambda: training_layout(hdlm.Quench(4), shifted=False), "predicts the next token"),
    "slide without offset": (lambda: training_layout(hdlm.Slide(4, 2), shifted=False), r"1\.\.2"),
    "block-causal slide": (
        lambda: training_layout(hdlm.Slide(4, 2), shifted=False, offset=1, block_causal=True),
        "aligned block only",
    ),
    "custom without an offset": (
        lambda: training_layout(hdlm.Custom(hdlm.Slide(4, 2).levels), shifted=False),
        r"offset = None .*0\.\.1",
    ),
    "block 0": (lambda: build_layout(4, [], shifted=False, block=0), "block = 0 .*>= 1"),
    "flat with a prefix": (
        lambda: training_layout(hdlm.Flat(4), shifted=False, prefix=2),
        "prefix = 2 .*one window holds everything",
    ),
    "too few slots": (lambda: build_layout(4, [(0, 4)], shifted=False, slots=3), "slots = 3 .*>= 8"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_names_the_value_and_the_range(case):
    make, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        make()
