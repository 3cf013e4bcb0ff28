"""The cache changes nothing: whole generations with random changes of tokens, cached against uncached."""

from dataclasses import replace

import pytest
import torch
from support.networks import BOS_ID, VOCAB, network

import hdlm
from hdlm.theory.layout import SETTLED, build_layout, inference_layout, step_layout, training_layout

SCHEDULES = {
    "block": lambda d: hdlm.Block(d, min(4, d)),
    "block, rate 2": lambda d: hdlm.Block(d, min(4, d), 2),
    "slide": lambda d: hdlm.Slide(d, min(4, d)),
    "slide, rate 1/2": lambda d: hdlm.Slide(d, min(3, d), 0.5),
    "quench": hdlm.Quench,
}


def run_step(model, process, states, times, steps, *, shifted, cache, cached, next_token):
    """Logits of the tokens that each row's window predicts, from one pass over rows that may differ."""
    rows = tuple((*step, done) for step, done in zip(steps, cached, strict=True))
    layout, _ = step_layout(rows, shifted=shifted, next_token=next_token)
    slots = layout.fill(states, states, times, process, bos_id=BOS_ID)
    out = model(slots, cache=cache)
    found = []
    for row, (start, stop) in enumerate(steps):
        predicts, window = (x.expand(len(rows), -1)[row] for x in (layout.predicts, layout.window))
        asked = (predicts >= start) & (predicts < stop) & ((window == SETTLED) if next_token else (window == 0))
        found.append(out[row][asked])
    return found


@pytest.mark.parametrize("style", ["paper", "llama", "qwen"])
@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("name", SCHEDULES)
def test_cached_equals_uncached_over_a_whole_generation(name, shifted, style):
    if name == "quench" and not shifted:
        pytest.skip("autoregression is shifted")
    prompts, new = [0, 3, 7], 10
    process, model = hdlm.GammaHybrid(VOCAB, 0.3), network(style)
    next_token = name == "quench"
    rows, total = len(prompts), max(prompts) + new
    generator = torch.Generator().manual_seed(5)
    states = torch.randint(VOCAB, (rows, total), generator=generator)
    cache = model.new_cache(rows, total + 1)
    schedule = SCHEDULES[name](new)
    for step in schedule.walk():
        windows = [(prompt + step.start, prompt + step.stop) for prompt in prompts]
        times = torch.zeros(rows, total, dtype=torch.float64)
        for row, (start, stop) in enumerate(windows):
            times[row, start:stop] = step.levels.double() / schedule.max_level
            # The tape: whatever a sampler might write into the window, MASK included.
            states[row, start:stop] = torch.randint(VOCAB + 1, (stop - start,), generator=generator)
        settled = list(cache.settled)
        arguments = (model, process, states, times, windows)
        one = run_step(*arguments, shifted=shifted, cache=cache, cached=settled, next_token=next_token)
        other = run_step(*arguments, shifted=shifted, cache=None, cached=[0] * rows, next_token=next_token)
        for cached_logits, plain_logits in zip(one, other, strict=True):
            assert cached_logits.shape[0] == step.stop - step.start
            torch.testing.assert_close(cached_logits, plain_logits, rtol=0, atol=1e-10)
        assert cache.settled == [start + next_token for start, _ in windows]
        for row, (start, _) in enumerate(windows):  # settle for good what the step settled
            done = start + int((step.next_levels == 0).sum())
            states[row, start:done] = torch.randint(VOCAB, (done - start,), generator=generator)


def test_the_cache_keeps_no_graph():
    model, process = network(), hdlm.Absorbing(VOCAB)
    cache = model.new_cache(1, 8)
    x, t = torch.zeros(1, 8, dtype=torch.long), torch.zeros(1, 8, dtype=torch.float64)
    model(inference_layout(4, 8, shifted=False).fill(x, x, t, process), cache=cache)
    assert not cache.keys.requires_grad
    cache.keys[:] = float("nan")
    cache.reset()
    assert cache.keys.isfinite().all()


def test_most_steps_need_no_mask(monkeypatch):
    """Within a block nothing is newly settled: every slot reads everything, through the unmasked kernel."""
    model, process, masks = network(layers=1), hdlm.Absorbing(VOCAB), []
    kernel = torch.nn.functional.scaled_dot_product_attention

    def spy(q, k, v, mask=None, **how):
        masks.append(mask)
        return kernel(q, k, v, mask, **how)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    cache = model.new_cache(2, 20)
    x, t = torch.zeros(2, 12, dtype=torch.long), torch.zeros(2, 12, dtype=torch.float64)
    for start, stop, cached in [(0, 4, 0), (4, 8, 0), (4, 8, 4), (8, 12, 4)]:
        model(inference_layout(start, stop, shifted=False, cached=cached).fill(x, x, t, process), cache=cache)
    assert [mask is None for mask in masks] == [True, False, True, False]


def test_memory_is_allocated_once_and_reset_forgets():
    model, process = network(), hdlm.Absorbing(VOCAB)
    cache = model.new_cache(1, 8)
    place = cache.keys.data_ptr()
    x, t = torch.zeros(1, 8, dtype=torch.long), torch.zeros(1, 8, dtype=torch.float64)
    first = model(inference_layout(4, 8, shifted=False).fill(x, x, t, process), cache=cache)
    assert cache.settled == [4]
    cache.reset()
    assert cache.settled == [0]
    again = model(inference_layout(4, 8, shifted=False).fill(x, x, t, process), cache=cache)
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    assert cache.keys.data_ptr() == place


def test_a_layout_that_does_not_continue_the_cache_is_refused():
    model, process = network(), hdlm.Absorbing(VOCAB)
    cache = model.new_cache(1, 6)
    x, t = torch.zeros(1, 8, dtype=torch.long), torch.zeros(1, 8, dtype=torch.float64)
    with pytest.raises(ValueError, match="starts at position 3 in row 0: the cache holds 0"):
        model(inference_layout(4, 6, shifted=False, cached=3).fill(x, x, t, process), cache=cache)
    gap = training_layout(hdlm.Block(6, 3), shifted=False)
    gap = replace(gap, position=torch.where(gap.window == SETTLED, 2 * gap.position, gap.position))
    with pytest.raises(ValueError, match="settled slots without gaps, then windows"):
        model(gap.fill(x[:, :6], x[:, :6], t[:, :6], process), cache=cache)
    beyond = build_layout(6, [(4, 6), (3, 5)], shifted=False, settled=2)
    with pytest.raises(ValueError, match="a window's limit lies beyond what the cache holds"):
        model(beyond.fill(x, x, t, process), cache=cache)
    with pytest.raises(ValueError, match="ends at position 8 in row 0: the cache holds up to 6"):
        model(inference_layout(4, 8, shifted=False).fill(x, x, t, process), cache=cache)
