"""What travels in a step, against sums by hand."""

import pytest

from hdlm.bench.plan import plan
from hdlm.bench.traffic import Traffic, traffic
from hdlm.config.parse import override
from hdlm.config.recipes import get

P, REST = 1000, 100  # parameters in blocks, and in embedding and head
HOW = {"sharded": False, "hybrid": False, "micro_batches": 3}


def test_one_process_sends_nothing():
    for sharded in (False, True):
        assert traffic(P, REST, nodes=1, gpus=1, **HOW | {"sharded": sharded}) == Traffic(0, 0)


def test_copies_exchange_a_gradient_whatever_the_micro_batches():
    assert traffic(P, REST, nodes=1, gpus=4, **HOW) == Traffic(2 * 3 / 4 * 4 * 1100, 0)
    assert traffic(P, REST, nodes=2, gpus=4, **HOW) == Traffic(0, 2 * 7 / 8 * 4 * 1100)


def test_shards_are_gathered_twice_a_micro_batch():
    gathered, added = 3 * (2 * 2 * 1000 + 4 * 100), 4 * 1100
    shards = HOW | {"sharded": True}
    assert traffic(P, REST, nodes=1, gpus=4, **shards) == Traffic(3 / 4 * (gathered + added), 0)
    assert traffic(P, REST, nodes=2, gpus=4, **shards) == Traffic(0, 7 / 8 * (gathered + added))
    both = traffic(P, REST, nodes=2, gpus=4, **shards | {"hybrid": True})
    assert both == Traffic(3 / 4 * (gathered + added), 2 * 1 / 2 * added / 4)


def test_time_is_bytes_by_bandwidth():
    assert Traffic(100, 30).seconds(inside=50, between=10) == 5


def test_a_plan_adds_traffic_and_price():
    recipe = override(get("owt-ar"), "sharded", "true")
    one, eight, far = (plan(recipe, gpus=gpus, nodes=nodes, price=2.0) for gpus, nodes in ((1, 1), (8, 1), (8, 4)))
    assert one.hours_at_most == one.hours
    assert eight.hours == pytest.approx(one.hours / 8)
    assert far.hours == pytest.approx(one.hours / 32)
    assert (eight.sent_between, far.sent_inside) == (0, 0)
    assert eight.hours_at_most - eight.hours == pytest.approx(1e6 * eight.sent_inside / 450e9 / 3600)
    assert far.hours_at_most - far.hours == pytest.approx(1e6 * far.sent_between / 50e9 / 3600)
    assert far.price_per_billion == pytest.approx(2 * 32 * far.hours_at_most / (far.tokens / 1e9))
    assert far.tokens_per_s == pytest.approx(far.tokens / far.hours_at_most / 3600)
    hybrid = plan(override(recipe, "hybrid", "true"), gpus=8, nodes=4)
    assert 0 < hybrid.sent_between < far.sent_between / 8


def test_what_is_recomputed_costs_time_and_saves_memory():
    recipe = get("owt-ar")
    kept, again = plan(recipe), plan(override(recipe, "recompute", "true"))
    assert again.hours == pytest.approx(kept.hours * 4 / 3)
    assert again.memory_gib < kept.memory_gib / 2


@pytest.mark.parametrize(("name", "value"), [("nodes", 0), ("link", 0.0), ("network", -1.0), ("price", float("nan"))])
def test_what_no_plan_can_be_made_of_is_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} = "):
        plan(get("laptop"), **{name: value})
