"""One step of a rule on a window that is written out: who goes first, how many, and who stays."""

import math

import pytest
import torch

from hdlm import (
    Absorbing,
    AdaptiveCorrection,
    Bounded,
    Certain,
    Confidence,
    LeftToRight,
    Linear,
    LogLinear,
    Posterior,
    Remask,
    TauLeaping,
)
from hdlm.config.sampling import DrawSettings
from hdlm.sampling.rng import StepRandom
from hdlm.sampling.rule import Prediction, State, Times
from hdlm.theory.reading import CleanReading, ScoreReading

N = 4
LAWS = torch.tensor(
    [[0.30, 0.30, 0.20, 0.20], [0.70, 0.10, 0.10, 0.10], [0.45, 0.45, 0.05, 0.05], [0.60, 0.40, 0.00, 0.00]],
    dtype=torch.float64,
)  # of the four positions of a window; their likeliest tokens: 0.3, 0.7, 0.45, 0.6


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


def masked_window(t, **settings):
    """Four masked positions whose clean tokens have LAWS, all at time t."""
    tokens, times = torch.full((1, 4), N), torch.full((1, 4), t, dtype=torch.float64)
    prediction = Prediction(LAWS.log()[None], tokens, times, CleanReading(Absorbing(N)), DrawSettings(**settings))
    return State(tokens, tokens == N, torch.ones(1, 4, dtype=torch.bool)), prediction


def first_to_go(rule, u, **settings):
    """The one position of four that a step settles, when all draw with the uniforms u."""
    state, prediction = masked_window(1.0, **settings)
    times = Times(Absorbing(N), torch.full((4,), 0.75).double(), torch.ones(4).double())
    after = rule.step(state, prediction, times, StepRandom(torch.zeros(1, 4).double(), numbers(*u)[None]))
    (gone,) = (after[0] != N).nonzero().flatten().tolist()
    return gone


def test_every_rule_of_certainty_has_its_own_order():
    """By the likeliest token, by entropy, from the left, by the token drawn; temperature has no say in it."""
    likeliest, unlikely = (0.0, 0.0, 0.0, 0.0), (0.0, 0.95, 0.0, 0.0)  # position 1 draws a token of 0.1
    for u, settings in ((likeliest, {}), (unlikely, {}), (unlikely, {"temperature": 0.1})):
        assert first_to_go(Certain(), u, **settings) == 1
        assert first_to_go(LeftToRight(), u, **settings) == 0
    assert torch.special.entr(LAWS).sum(-1).argmin() == 3
    assert first_to_go(Bounded(0.0), likeliest) == 3
    assert (first_to_go(Confidence(), likeliest), first_to_go(Confidence(), unlikely)) == (1, 3)


def test_as_many_leave_as_the_schedule_expects_of_any_noise():
    """Of ten masked positions at t = 1, those that are expected to be masked at s stay, rounded."""
    process = Absorbing(N, LogLinear(0.4))
    every, t = torch.ones(1, 10, dtype=torch.bool), torch.ones(10, dtype=torch.float64)
    full = process.channel(t[:1]).mask.item()
    assert full < 0.7, "else this shows nothing"
    for s in (0.2, 0.5, 0.8):
        times = Times(process, torch.full_like(t, s), t)
        left = 10 * process.channel(times.s[:1]).mask.item() / full
        assert Certain()._due(every, every, times).tolist() == [[10 - math.floor(left + 0.5)]]


def test_what_must_be_clean_leaves_although_others_have_gone_ahead():
    """Two rows: in one the others are written already, and the schedule still expects one to be masked."""
    times = Times(Absorbing(N), numbers(0, 0.5, 0.5), numbers(0.2, 1, 1))
    waiting = torch.tensor([[True, False, False], [True, True, True]])
    every = torch.ones_like(waiting)
    assert Certain()._due(waiting, every, times).tolist() == [[1], [2]]


def test_the_network_is_not_asked_before_the_schedule_has_caught_up():
    """Of four positions two are written, and two may be masked still: nothing is due, however sure the network is."""
    times = Times(Absorbing(N), torch.full((4,), 0.5).double(), torch.full((4,), 0.75).double())
    masked = torch.tensor([[True, True, False, False]])
    every = torch.ones_like(masked)
    rule = Certain(0.1)
    assert not rule.needs(masked, every, times, torch.zeros(1, 4)).any()
    _, prediction = masked_window(0.75)
    tokens = torch.where(masked, N, 2)
    random = StepRandom(torch.zeros(1, 4).double(), torch.zeros(1, 4).double())
    assert torch.equal(rule.step(State(tokens, masked, every), prediction, times, random), tokens)


def test_a_threshold_is_to_be_exceeded():
    assert Certain(0.5).too(numbers(0.4, 0.5, 0.6)).tolist() == [False, False, True]
    assert not Certain().too(numbers(1.0)).any()
    assert Bounded().threshold == 0.1


def test_remasking_leaves_a_position_alone_whose_level_stays():
    """Whatever chance says, MASK stays MASK and a token a token."""
    state, prediction = masked_window(0.5)
    tokens = torch.tensor([[N, N, 1, 2]])
    state = State(tokens, tokens == N, state.free)
    times = Times(Absorbing(N), torch.full((4,), 0.5).double(), torch.full((4,), 0.5).double())
    for event in (0.0, 0.5, 1 - 2**-53):
        random = StepRandom(torch.full((1, 4), event, dtype=torch.float64), torch.zeros(1, 4).double())
        assert torch.equal(Remask(1.0).step(state, prediction, times, random), tokens)


def test_flawed_draws_of_the_posterior_do_not_go_by_the_event():
    """Its MASK is one more state that the Gumbel draw may take."""
    process, (state, prediction) = Absorbing(N), masked_window(0.8)
    times = Times(process, torch.full((4,), 0.2).double(), torch.full((4,), 0.8).double())
    u = numbers(0.9, 0.2, 0.2, 0.2, 0.2)
    for event in (0.0, 0.9):
        random = StepRandom(torch.full((1, 4), event, dtype=torch.float64), torch.zeros(1, 4).double(), lambda n: u[:n])
        law = torch.cat([0.75 * LAWS, torch.full((4, 1), 0.25, dtype=torch.float64)], -1)
        expected = (law / -u.log()).argmax(-1)
        assert torch.equal(Posterior().step(state, prediction, times, random)[0], expected)
        assert expected.tolist() == [0, 0, 0, 0]


def test_a_uniform_of_0_gives_the_flawed_draw_a_finite_number():
    random = StepRandom(torch.zeros(1), torch.zeros(1), lambda states: torch.zeros(1, states))
    assert random.draw(torch.tensor([[0.2, 0.8]])).tolist() == [1]


def test_probabilities_are_of_the_law_that_is_drawn_from_and_mask_has_none():
    """`probability` follows temperature unless told otherwise; `log_probability` never does."""
    tokens = torch.tensor([[0, 1, 2, N]])
    _, prediction = masked_window(1.0, temperature=0.5)
    own = LAWS.gather(-1, tokens.clamp(max=N - 1).view(4, 1)).squeeze(-1)
    warped = (own**2 / (LAWS**2).sum(-1))[:3]
    torch.testing.assert_close(prediction.probability(tokens)[0, :3], warped)
    torch.testing.assert_close(prediction.probability(tokens, warped=False)[0, :3], own[:3])
    torch.testing.assert_close(prediction.log_probability(tokens)[0, :3], own[:3].log())
    for found in (prediction.probability(tokens), prediction.log_probability(tokens)):
        assert found[0].isnan().tolist() == [False, False, False, True]


def test_a_step_by_scores_needs_finite_noise_and_foresees_nothing():
    """The network's scores say whether MASK is left; where it gives p0, that is known ahead, for any noise."""
    with pytest.raises(ValueError, match=r"needs finite noise at t = 1"):
        TauLeaping().check(ScoreReading(Absorbing(N, Linear())))
    TauLeaping().check(CleanReading(Absorbing(N, Linear())))
    assert TauLeaping().foresees(CleanReading(Absorbing(N)))
    assert not TauLeaping().foresees(ScoreReading(Absorbing(N, LogLinear())))


@pytest.mark.parametrize("rule", [AdaptiveCorrection, Remask])
def test_a_refused_eta_is_named(rule):
    with pytest.raises(ValueError, match=r"^eta = 2 is not accepted"):
        rule(2)


def test_what_is_clean_already_does_not_tell_of_a_broken_network():
    """Of outputs that are no numbers only those count that a draw may read: where the time is above 0."""
    outputs = LAWS.log()[None].clone()
    outputs[0, 0] = math.nan
    for t, broken in (((0.0, 0.5, 0.5, 0.5), False), ((0.5, 0.0, 0.0, 0.0), True)):
        witness = torch.zeros((), dtype=torch.float64)
        reading = CleanReading(Absorbing(N))
        prediction = Prediction(outputs, torch.full((1, 4), N), numbers(*t)[None], reading, DrawSettings(), witness)
        assert prediction.p0.shape == (1, 4, N)
        assert bool(witness.isnan()) == broken
