"""What the network computes agrees with what the layouts promise: no leaks, and one pass equals another."""

import pytest
import torch
from support.networks import BOS_ID, batch, network

import hdlm
from hdlm.theory.layout import NOTHING, SETTLED, build_layout, inference_layout, next_token_layout, training_layout

SIZES = [(8, 4), (7, 3), (5, 5), (4, 1), (1, 1)]


def cases():
    """(name, layout) for every training case, d divisible by width or not."""
    for length, width in SIZES:
        for shifted in (False, True):
            kind = "shifted" if shifted else "aligned"
            block, slide = hdlm.Block(length, width), hdlm.Slide(length, width)
            yield f"{kind} block {length}/{width}", training_layout(block, shifted=shifted)
            for offset in sorted({1, width}):
                layout = training_layout(slide, shifted=shifted, offset=offset)
                yield f"{kind} slide {length}/{width} offset {offset}", layout
            yield f"{kind} flat {length}", training_layout(hdlm.Flat(length), shifted=shifted)
            if length > 2:
                yield f"{kind} naive inference {length}", inference_layout(2, length, shifted=shifted)
    yield "quench", training_layout(hdlm.Quench(6), shifted=True)
    yield "block-causal", training_layout(hdlm.Block(7, 3), shifted=False, block_causal=True)
    yield "overlapping windows", build_layout(12, [(2, 6), (5, 9), (11, 12)], shifted=True)


CASES = dict(cases())


@pytest.mark.parametrize("style", ["paper", "llama", "qwen"])
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_zero_exactly_where_the_layout_forbids(case, style):
    layout, layers = CASES[case], 2
    model = network(style, layers=layers)
    length = int(layout.holds.max()) + 1
    x0, xt, t, process = batch(length, rows=1)
    slots = layout.fill(x0, xt, t, process, bos_id=BOS_ID)
    leaf = model.embed(slots.token, slots.weight).detach().requires_grad_()
    model.embed = lambda token, weight: leaf
    out = model(slots)[0].pow(2).sum(-1)
    flows = torch.stack([torch.autograd.grad(row, leaf, retain_graph=True)[0][0].abs().sum(-1) for row in out])
    mask = layout.mask() | torch.eye(len(layout), dtype=torch.bool)
    reachable = torch.linalg.matrix_power(mask.double(), layers) > 0
    assert (flows[~reachable] == 0).all()
    assert (flows[layout.mask()] > 0).all()


def window_logits(model, layout, chosen, x0, xt, t, process):
    """Outputs of one window by the token that they predict."""
    slots = layout.fill(x0, xt, t, process, bos_id=BOS_ID)
    out = model(slots)
    picked = (layout.window == chosen) & (layout.predicts != NOTHING)
    return {
        int(token): out[:, slot] for slot, token in zip(picked.nonzero()[:, 0], layout.predicts[picked], strict=True)
    }


@pytest.mark.parametrize("style", ["paper", "plain", "llama"])
@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize(("length", "width"), SIZES)
def test_doubled_pass_equals_naive_inference(length, width, shifted, style):
    model = network(style)
    for schedule, offsets in ((hdlm.Block(length, width), [None]), (hdlm.Slide(length, width), range(1, width + 1))):
        for offset in offsets:
            doubled = training_layout(schedule, shifted=shifted, offset=offset)
            x0, xt, t, process = batch(length)
            windows = schedule.training_windows(offset)
            if offset is None:  # one time a window
                t = t[:, [next(a for a, b in windows if a <= i < b) for i in range(length)]]
            for number, (start, stop) in enumerate(windows):
                naive = inference_layout(start, stop, shifted=shifted)
                one = window_logits(model, doubled, number, x0, xt, t, process)
                other = window_logits(model, naive, 0, x0[:, :stop], xt[:, :stop], t[:, :stop], process)
                assert one.keys() == other.keys() == set(range(start, stop))
                for token in one:
                    torch.testing.assert_close(one[token], other[token], rtol=0, atol=1e-10)


@pytest.mark.parametrize("style", ["paper", "llama", "qwen"])
def test_a_shifted_window_of_width_1_is_autoregression(style):
    """One step sees BOS and the tokens before it, with a cache or without, and says what the causal pass says there."""
    length, model = 9, network(style)
    x0, _, _, process = batch(length)
    t = torch.zeros(2, length, dtype=torch.float64)
    causal = training_layout(hdlm.Quench(length), shifted=True)
    expected = model(causal.fill(x0, x0, t, process, bos_id=BOS_ID))[:, :length]
    cache = model.new_cache(2, length + 1)
    for start in range(length):
        for held, layout in ((None, next_token_layout(start)), (cache, next_token_layout(start, cached=start))):
            seen = x0.clone()
            seen[:, start:] = process.mask_id  # what is not written yet
            out = model(layout.fill(seen, seen, t, process, bos_id=BOS_ID), cache=held)
            torch.testing.assert_close(out[:, -1], expected[:, start], rtol=0, atol=1e-10)


@pytest.mark.parametrize("style", ["paper", "llama", "qwen"])
def test_blocks_of_width_1_see_all_that_autoregression_sees_and_their_own_noise(style):
    """Shifted, doubled: the slot that predicts token j reads BOS, the tokens before j, and the noisy token j alone."""
    length, model = 6, network(style)
    x0, xt, t, process = batch(length)
    layout = training_layout(hdlm.Block(length, 1), shifted=True)
    out = model(layout.fill(x0, xt, t, process, bos_id=BOS_ID))
    active = (layout.window != SETTLED) & (layout.predicts != NOTHING)
    assert layout.predicts[active].tolist() == list(range(length))
    for j in range(length):
        later = x0.clone(), xt.clone()
        later[0][:, j:], later[1][:, j + 1 :] = (x0[:, j:] + 1) % 11, (x0[:, j + 1 :] + 1) % 11
        changed = model(layout.fill(*later, t, process, bos_id=BOS_ID))
        torch.testing.assert_close(changed[:, active][:, j], out[:, active][:, j], rtol=0, atol=1e-12)


def test_padding_changes_nothing():
    model = network()
    x0, xt, t, process = batch(7)
    plain = build_layout(7, [(0, 3), (3, 7)], shifted=True)
    longer = build_layout(7, [(0, 3), (3, 7)], shifted=True, slots=len(plain) + 5)
    one, other = (model(layout.fill(x0, xt, t, process, bos_id=BOS_ID)) for layout in (plain, longer))
    torch.testing.assert_close(other[:, : len(plain)], one, rtol=0, atol=1e-12)
    assert other.isfinite().all()
