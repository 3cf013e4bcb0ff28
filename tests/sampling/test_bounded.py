"""The rule `bounded`: how many positions it settles, and what that can cost at most."""

import pytest
import torch
from support.bundles import bundle
from support.oracle import Oracle, chi_square, distance, random_law, sample

import hdlm
from hdlm import Bounded, Certain
from hdlm.theory.reading import CleanReading

N = 4


@pytest.mark.parametrize("seed", range(20))
def test_what_independent_draws_ignore_is_within_the_bound(seed):
    """On a joint law of three tokens: total correlation <= sum of entropies less the largest, for every set."""
    law = random_law(N, 3, seed=seed).view(N, N, N)
    for chosen in ([0, 1], [0, 2], [1, 2], [0, 1, 2]):
        joint = torch.einsum(law, [0, 1, 2], chosen)
        entropies = [torch.special.entr(torch.einsum(law, [0, 1, 2], [axis])).sum() for axis in chosen]
        correlation = sum(entropies) - torch.special.entr(joint).sum()
        assert -1e-12 < correlation <= sum(entropies) - max(entropies) + 1e-12


def settled_by(threshold, entropies):
    """Which positions a first step settles, of margins with such entropies; one is due."""
    rule = Bounded(threshold)
    order = torch.tensor(entropies).argsort()
    inside = rule.too(-torch.tensor(entropies, dtype=torch.float64)[order])
    return sorted(order[inside].tolist())


def test_positions_join_while_all_but_the_largest_stay_within_the_bound():
    assert settled_by(0.0, [0.5, 0.2, 0.9]) == [1]
    assert settled_by(0.0, [0.0, 0.2, 0.0]) == [0, 1, 2]  # what is certain costs nothing
    assert settled_by(0.2, [0.5, 0.2, 0.9]) == [0, 1]
    assert settled_by(0.69, [0.5, 0.2, 0.9]) == [0, 1]
    assert settled_by(0.71, [0.5, 0.2, 0.9]) == [0, 1, 2]


def test_at_0_it_is_exact():
    law = random_law(N, 3)
    oracle = Oracle(CleanReading(hdlm.Absorbing(N)), law, 3)
    for schedule in (hdlm.Flat(3), hdlm.Block(3, 2), hdlm.Slide(3, 2)):
        statistic, limit = chi_square(sample(oracle, schedule, Bounded(0.0), rows=20_000), law, N)
        assert statistic < limit


def test_a_larger_bound_costs_more_and_takes_fewer_calls():
    law = random_law(N, 3)
    oracle = Oracle(CleanReading(hdlm.Absorbing(N)), law, 3)
    far = [distance(sample(oracle, hdlm.Flat(3), Bounded(bound), rows=20_000), law, N) for bound in (0.0, 1.0)]
    assert far[0] < 0.03 < far[1]
    model = bundle("block", 8, process="absorbing")
    calls = [
        model.generate(length=16, seed=1, sampler="bounded", threshold=bound).stats.network_calls
        for bound in (0.0, 1.0)
    ]
    assert calls[0] == 16
    assert calls[1] <= 16
    few = model.generate(length=16, seed=1, sampler=Bounded(1.0), temperature=1.0)
    assert few.tokens != model.generate(length=16, seed=1, sampler=Certain(), temperature=1.0).tokens


def test_no_mask_is_left_and_more_than_is_due_may_go():
    """A bound that everything fits into: a block is written in one step."""

    class Everything(Bounded):
        def too(self, certainty):
            return torch.ones_like(certainty, dtype=torch.bool)

    model = bundle("block", 8, process="absorbing")
    frames = list(model.stream(length=16, seed=1, sampler=Everything()))
    assert [frame.step for frame in frames if bool(frame.changed.any())] == [0, 8]
    assert model.process.mask_id not in frames[-1].tokens


def test_a_bound_is_any_number_of_nats_and_a_probability_is_none_above_1():
    model = bundle(process="absorbing")
    assert Bounded(2.5).threshold == 2.5
    assert model.generate(length=8, seed=1, sampler="bounded", threshold=2.5).settings[0]["threshold"] == 2.5
    with pytest.raises(ValueError, match=r"threshold = -0\.1 is not accepted"):
        Bounded(-0.1)
    with pytest.raises(ValueError, match=r"threshold = 2\.5 is not accepted"):
        model.generate(length=8, seed=1, sampler="certain", threshold=2.5)
