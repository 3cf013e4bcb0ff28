"""Generation with real networks: the cache changes nothing, and one seed means one text."""

import pytest
import torch
from support.bundles import PROCESSES, SCHEDULES, bundle

import hdlm
from hdlm.bench.count import count
from hdlm.sampling.request import prompt_request
from hdlm.sampling.rng import TOKEN, row_keys
from hdlm.theory.layout import build_layout
from hdlm.theory.random import keyed_uniform, race

pytestmark = pytest.mark.filterwarnings("ignore:.*trained on.*:UserWarning")


@pytest.mark.parametrize("prompt", [None, ["abc", "a", "jihgfe dcba"]], ids=["unconditional", "prompts"])
@pytest.mark.parametrize("shifted", [False, True], ids=["aligned", "shifted"])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
@pytest.mark.parametrize("process", PROCESSES)
def test_the_cache_changes_no_token(process, schedule, shifted, prompt):
    """On the plain loop and on whatever is chosen by default."""
    model, how = bundle(process=process, shifted=shifted), {"num_samples": 2, "hyperschedule": schedule, "seed": 5}
    texts = [
        model.generate(prompt, cache=cache, backend=backend, **how).tokens
        for cache, backend in [(False, "reference"), (True, "reference"), (True, None)]
    ]
    assert texts[0] == texts[1]
    assert texts[0] == texts[2]


@pytest.mark.parametrize("threshold", [1.0, 0.15])
@pytest.mark.parametrize("schedule", SCHEDULES[:-1], ids=repr)
def test_the_cache_changes_no_token_where_the_network_says_the_order(schedule, threshold):
    """And a row's text is its own, whatever the others beside it are up to."""
    model = bundle(process="absorbing")
    how = {"hyperschedule": schedule, "sampler": "certain", "threshold": threshold, "seed": 5, "temperature": 5.0}
    texts = [model.generate(["abc", "a"], num_samples=2, cache=cache, **how).tokens for cache in (True, False)]
    assert texts[0] == texts[1]
    assert model.generate(["a"], num_samples=2, **how).tokens == texts[0][2:]


@pytest.mark.parametrize("schedule", [hdlm.Block(12, 4), hdlm.Slide(12, 4), hdlm.Flat(12), hdlm.Quench(12)], ids=repr)
def test_a_text_does_not_depend_on_its_company(schedule):
    model, how = bundle(), {"hyperschedule": schedule, "temperature": 5.0}
    together = model.generate(["abc", "b", "abc"], num_samples=2, seed=1, **how)
    apart = model.generate(["abc"], num_samples=4, seed=1, batch_size=3, **how)
    alone = model.generate("b", num_samples=2, seed=1, **how)
    assert [*together.tokens[:2], *together.tokens[4:]] == apart.tokens
    assert together.tokens[2:4] == alone.tokens
    assert len({tuple(row) for row in apart.tokens}) > 1
    assert model.generate("b", seed=2, **how).tokens != alone.tokens[:1]
    again = model.generate("b", **how)
    assert model.generate("b", seed=again.seed, **how).tokens == again.tokens


def test_the_same_seed_begins_alike_whatever_the_length():
    short, long = (bundle().generate("ab", length=n, seed=3, temperature=5.0).tokens[0] for n in (8, 16))
    assert long[:10] == short


def test_autoregression_is_what_a_plain_loop_does():
    model = bundle("quench", process="absorbing")
    samples = model.generate("ab", length=9, num_samples=3, seed=7)
    rows = [[0, 1]] * 3
    keys = torch.tensor(row_keys(rows))
    x = torch.tensor(rows)
    for step in range(9):
        layout = build_layout(x.shape[1], [], shifted=True)
        slots = layout.fill(x, x, torch.zeros(x.shape), model.process, bos_id=3)
        law = model.model(slots)[:, -1, :11].softmax(-1)
        u = keyed_uniform(7, keys, TOKEN, step, torch.tensor(step))
        x = torch.cat([x, race(law, u).unsqueeze(1)], 1)
    assert samples.tokens == x.tolist()


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("schedule", [*SCHEDULES, hdlm.Flat(13, 2)], ids=repr)
def test_counting_from_the_schedule_is_what_happens(schedule, shifted, cache):
    """Euler asks at every step, so that no call is spared."""
    model = bundle(shifted=shifted)
    for prompt in ("", "abc"):
        settled = len(prompt) if schedule.has_prefix else 0
        sampler = "ar" if schedule.autoregressive else "euler"
        request = model.generate(prompt, hyperschedule=schedule, sampler=sampler, seed=0, cache=cache)
        found = count(
            prompt_request(model, prompt, hyperschedule=schedule).batches[0].schedule, shifted=shifted, prompt=settled
        )
        assert request.stats.network_calls == found.calls
        uncached = not cache or not schedule.has_prefix
        assert request.stats.slots == (found.slots_uncached if uncached else found.slots_cached)
        assert request.stats.slots + request.stats.reused_slots == found.slots_uncached


def test_counts_by_hand():
    found = count(hdlm.Block(8, 4, 2), shifted=False)
    assert (found.calls, found.slots_uncached, found.slots_cached) == (4, 4 + 4 + 8 + 8, 4 + 4 + 8 + 4)
    assert (found.paper_calls, found.paper_slots_uncached, found.paper_slots_cached) == (3, 12, 8)
    found = count(hdlm.Quench(4), shifted=True, prompt=2)
    assert (found.calls, found.slots_uncached, found.slots_cached) == (4, 3 + 4 + 5 + 6, 3 + 1 + 1 + 1)
