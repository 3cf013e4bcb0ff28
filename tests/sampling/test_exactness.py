"""Samplers against a denoiser that knows the truth: what claims to be exact is."""

import itertools
import math

import pytest
import torch
from support.oracle import Oracle, chi_square, distance, random_law, sample

import hdlm
from hdlm import (
    AdaptiveCorrection,
    Autoregressive,
    Certain,
    Confidence,
    Euler,
    Original,
    Posterior,
    PublishedCorrection,
    Remask,
    TauLeaping,
)
from hdlm.config.sampling import DrawSettings
from hdlm.sampling.rng import StepRandom
from hdlm.sampling.rule import Prediction
from hdlm.theory.reading import CleanReading, HDCEReading, ScoreReading

N = 4
ABSORBING = [hdlm.Absorbing(N), hdlm.Absorbing(N, hdlm.LogLinear()), hdlm.Absorbing(N, hdlm.Cosine())]
GAMMA = [hdlm.GammaHybrid(N, 0.05), hdlm.GammaHybrid(N, 0.5), hdlm.GammaHybrid(N, 0.3, hdlm.Linear())]
UNIFORM = [hdlm.Uniform(N, hdlm.LogLinear(1e-6))]
EPSILON = [hdlm.EpsilonHybrid(N, 0.2), hdlm.EpsilonHybrid(N, 0.05, hdlm.LogLinear())]
FINITE = [p for p in ABSORBING + GAMMA + UNIFORM if torch.isfinite(p.noise.sigma(torch.ones(())))]

CASES = [
    *[(Posterior, CleanReading(p)) for p in ABSORBING + GAMMA + UNIFORM + EPSILON],
    *[(Posterior, HDCEReading(p)) for p in EPSILON],
    *[(Original, CleanReading(p)) for p in ABSORBING],
    *[(TauLeaping, CleanReading(p)) for p in ABSORBING + GAMMA + UNIFORM],
    *[(TauLeaping, ScoreReading(p)) for p in FINITE],
]
CONVERGING = [
    (Posterior, CleanReading(GAMMA[0])),
    (Posterior, CleanReading(UNIFORM[0])),
    (Posterior, CleanReading(EPSILON[1])),
    (Posterior, HDCEReading(EPSILON[1])),
    (Original, CleanReading(ABSORBING[0])),
    (TauLeaping, ScoreReading(GAMMA[1])),
    (TauLeaping, ScoreReading(ABSORBING[1])),
    (Euler, CleanReading(GAMMA[1])),
    (Euler, ScoreReading(FINITE[0])),
]


def name(case):
    rule, reading = case
    return f"{rule.name}-{type(reading).__name__}-{reading.process!r}"


def schedules(length, steps):
    """All kinds, with `steps` levels."""
    custom = [[steps] * length] + [[max(steps - k - i % 2, 0) for i in range(length)] for k in range(1, steps + 1)]
    return {
        "flat": hdlm.Flat(length, length / steps),
        "block": hdlm.Block(length, max(1, length - 1), max(1, length - 1) / steps),
        "slide": hdlm.Slide(length, max(1, length - 1), max(1, length - 1) / steps),
        "custom": hdlm.Custom(custom),
    }


@pytest.mark.parametrize(("kind", "steps"), [("flat", 1), ("flat", 2), ("block", 7), ("slide", 7), ("custom", 7)])
@pytest.mark.parametrize("case", CASES, ids=name)
def test_one_token_is_exact_for_any_number_of_steps(case, steps, kind):
    rule, reading = case
    law = random_law(N, 1)
    tokens = sample(Oracle(reading, law, 1), schedules(1, steps)[kind], rule(), rows=8_000)
    statistic, limit = chi_square(tokens, law, N)
    assert statistic < limit


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        *itertools.product(CONVERGING, ["flat", "slide"]),
        *itertools.product(CONVERGING[:1] + CONVERGING[3:4], ["block", "custom"]),
    ],
    ids=lambda value: value if isinstance(value, str) else name(value),
)
def test_several_tokens_converge(case, kind, capsys):
    rule, reading = case
    n, length, rows = N, 3, 6_000
    law = random_law(n, length)
    found = []
    for steps in (4, 32):
        tokens = sample(Oracle(reading, law, length), schedules(length, steps)[kind], rule(), rows=rows)
        found.append(distance(tokens, law, n))
    noise = 0.5 * (2 / torch.pi * law * (1 - law) / rows).sqrt().sum().item()  # of a perfect sampler
    with capsys.disabled():
        print(
            f"\n  {name(case)} {kind}: " + ", ".join(f"{tv:.3f}" for tv in found) + f" (chance alone {noise:.3f})",
            end="",
        )
    assert found[1] < max(0.5 * found[0], 1.5 * noise)
    assert found[1] < 2 * noise + 0.02


def test_epsilon_restores_all_tokens_of_a_window_at_once():
    """Its last step takes every position from x~ to x0 on its own: an error of order epsilon that no number of steps
    removes in a flat schedule, worked out here by enumeration. A slide settles one position at a time and has none.
    """
    process, law, rows = EPSILON[0], random_law(N, 3), 8_000
    oracle = Oracle(CleanReading(process), law, 3)
    channel = (1 - process.epsilon) * torch.eye(N, dtype=torch.float64) + process.epsilon / N
    joint = law.unsqueeze(0)  # [noisy, clean]
    for i in range(3):
        joint = joint * channel[oracle.clean[:, i].unsqueeze(1), oracle.clean[:, i].unsqueeze(0)]
    restored = joint.sum(1, keepdim=True)
    for i in range(3):
        same = (oracle.clean[:, i].unsqueeze(0) == oracle.clean[:, i].unsqueeze(1)).double()
        restored = restored * (joint @ same / joint.sum(1, keepdim=True))
    restored = restored.sum(0)
    floor = 0.5 * (restored - law).abs().sum().item()
    assert floor > 0.05
    flat, slide = (sample(oracle, schedules(3, 64)[kind], Posterior(), rows=rows) for kind in ("flat", "slide"))
    noise = 0.5 * (2 / torch.pi * law * (1 - law) / rows).sqrt().sum().item()
    assert distance(flat, restored, N) < 2 * noise
    assert distance(flat, law, N) > floor - 2 * noise
    assert distance(slide, law, N) < 2 * noise


@pytest.mark.parametrize("process", [hdlm.Absorbing(N), hdlm.EpsilonHybrid(N, 0.2), hdlm.GammaHybrid(N, 0.2)], ids=repr)
@pytest.mark.parametrize("shifted", [False, True])
def test_quench_is_ancestral_sampling(process, shifted):
    """Any rule draws each token from its conditional, so that even a few tokens are exact."""
    law = random_law(N, 3)
    oracle = Oracle(CleanReading(process), law, 3, shifted=shifted)
    for rule in (Autoregressive(), Original()):
        tokens = sample(oracle, hdlm.Quench(3), rule, rows=20_000)
        statistic, limit = chi_square(tokens, law, N)
        assert statistic < limit


@pytest.mark.parametrize("process", [*GAMMA, *EPSILON], ids=repr)
def test_correction_without_eta_is_the_original(process):
    oracle = Oracle(CleanReading(process), random_law(N, 3), 3)
    for schedule in schedules(3, 8).values():
        plain, corrected = (sample(oracle, schedule, rule, rows=500) for rule in (Original(), AdaptiveCorrection(0.0)))
        assert torch.equal(plain, corrected)
        assert not torch.equal(plain, sample(oracle, schedule, AdaptiveCorrection(0.5), rows=500))


@pytest.mark.parametrize("rule", [AdaptiveCorrection, PublishedCorrection], ids=lambda rule: rule.name)
@pytest.mark.parametrize("reading", [CleanReading, HDCEReading])
def test_a_token_is_redrawn_as_often_as_the_paper_says(reading, rule):
    """eta (1 - p_transfer) = eta s / t with linear noise, at every step; from p0, or from the outputs as they are."""
    epsilon, eta, rows = 0.3, 0.6, 40_000
    law, seen = random_law(N, 1), []

    class Watch(rule):
        def step(self, state, prediction, times, random):
            after = super().step(state, prediction, times, random)
            token = ~state.masked
            if token.any() and not bool((times.s == 0).all()):
                chance = eta * (times.s / times.t) * other[state.tokens.clamp(max=N - 1)][token]
                changed = (after != state.tokens)[token].double()
                seen.append((changed.mean(), chance.mean(), (chance * (1 - chance)).mean() / len(changed)))
            return after

    # p(x0 = y | x) by Bayes' rule, times HDCE's weights where those are drawn from.
    joint = law.unsqueeze(0) * (epsilon / N + (1 - epsilon) * torch.eye(N, dtype=torch.float64))
    if reading is HDCEReading and rule is PublishedCorrection:
        joint = joint * torch.where(torch.eye(N, dtype=torch.bool), epsilon, 1 - epsilon)
    other = 1 - (joint / joint.sum(1, keepdim=True)).diagonal()
    sample(Oracle(reading(hdlm.EpsilonHybrid(N, epsilon)), law, 1), hdlm.Flat(1, 1 / 6), Watch(eta), rows=rows)
    assert len(seen) == 4
    for changed, chance, variance in seen:
        assert 0 < (changed - chance).abs() < 4.5 * variance.sqrt()


def test_float32_draws_have_no_tail():
    """A 24-bit uniform below 1 ends at 1 - 2^-24: a token of weight w beside one of weight 1 wins where its exponential
    -log u is below w times the other's, which never happens for w under 2^-24 = 6e-8. Exact draws know no such end.
    """
    weights = torch.tensor([1.0, 1e-9, 3e-7], dtype=torch.float64)

    def flawed(first, second, third):
        uniforms = torch.tensor([first, second, third], dtype=torch.float64)
        return int(StepRandom(torch.zeros(()), torch.zeros(()), lambda states: uniforms).draw(weights))

    half, last = 0.5, 1 - 2.0**-53
    assert weights[1] / -math.log(last) > weights[0] / -math.log(half)  # as the draw would have it, exactly
    assert [flawed(half, last, half), flawed(half, half, last), flawed(last, half, half)] == [0, 2, 0]
    exact = StepRandom(torch.zeros(3), torch.tensor([0.0, 1 - 2e-7, 1 - 3.0e-7 - 5e-10], dtype=torch.float64))
    assert exact.draw((weights / weights.sum()).expand(3, -1)).tolist() == [0, 2, 1]


def test_float32_draws_of_a_likely_token_are_right():
    law = random_law(N, 1)
    tokens = sample(Oracle(CleanReading(hdlm.Absorbing(N)), law, 1), hdlm.Flat(1), Original(), rows=20_000, flawed=True)
    statistic, limit = chi_square(tokens, law, N)
    assert statistic < limit


class Unthinned(Posterior):
    """The posterior with every position drawn, as the network would have it."""

    def needs(self, masked, free, times, event):
        return times.moves.expand_as(masked)


@pytest.mark.parametrize("process", ABSORBING + GAMMA + UNIFORM + EPSILON, ids=repr)
def test_thinning_changes_nothing(process):
    """Asking the network only where it can matter gives the same tokens, one by one, and asks far less."""
    oracle = Oracle(CleanReading(process), random_law(N, 3), 3)
    for schedule in schedules(3, 8).values():
        thin, full = (sample(oracle, schedule, rule, rows=300) for rule in (Posterior(), Unthinned()))
        assert torch.equal(thin, full)


@pytest.mark.parametrize(
    "rule", [Certain(), Confidence(), Remask(0.3), AdaptiveCorrection(0.3)], ids=lambda rule: rule.name
)
def test_inexact_rules_still_draw_one_token_exactly(rule):
    reading = CleanReading(hdlm.EpsilonHybrid(N, 0.2))
    law = random_law(N, 1)
    tokens = sample(Oracle(reading, law, 1), hdlm.Flat(1, 1 / 6), rule, rows=20_000)
    statistic, limit = chi_square(tokens, law, N)
    # A token that is corrected is drawn given itself, as it was corrupted: only unmasked ones are exact.
    assert rule.name == "acs" or statistic < limit


def test_remasking_keeps_the_level():
    """ReMDM's promise: at each time as many places are masked as without remasking."""
    process = hdlm.Absorbing(N)
    oracle = Oracle(CleanReading(process), random_law(N, 2), 2)
    seen = []

    class Watch(Remask):
        def step(self, *args):
            after = super().step(*args)
            seen.append(process.is_mask(after).double().mean().item())
            return after

    sample(oracle, hdlm.Flat(2, 2 / 8), Watch(1.0), rows=20_000)
    assert [round(share, 1) for share in seen] == pytest.approx([(8 - k) / 8 for k in range(1, 9)], abs=0.06)


def test_confidence_unmasks_as_many_as_the_schedule_says():
    process = hdlm.Absorbing(N)
    oracle = Oracle(CleanReading(process), random_law(N, 3), 3)
    left = []

    class Watch(Confidence):
        def step(self, *args):
            after = super().step(*args)
            left.append(process.is_mask(after).sum(1).unique().tolist())
            return after

    sample(oracle, hdlm.Flat(3, 1), Watch(), rows=50)
    assert left == [[2], [1], [0]]


@pytest.mark.parametrize("process", ABSORBING[:2], ids=repr)
def test_one_at_a_time_where_the_network_is_certain_is_exact(process):
    """The order depends on what is there and not on what is drawn, so that a step's draw follows its conditional."""
    law = random_law(N, 3)
    oracle = Oracle(CleanReading(process), law, 3)
    for schedule in (hdlm.Flat(3, 1), hdlm.Block(3, 2, 1), hdlm.Slide(3, 2, 1), hdlm.Flat(3, 0.5)):
        statistic, limit = chi_square(sample(oracle, schedule, Certain(), rows=20_000), law, N)
        assert statistic < limit
    statistic, limit = chi_square(sample(oracle, hdlm.Flat(3, 1), Confidence(), rows=20_000), law, N)
    assert statistic > 2 * limit  # as wrong as it says that it is
    hybrid = Oracle(CleanReading(EPSILON[0]), law, 3)
    statistic, limit = chi_square(sample(hybrid, hdlm.Flat(3, 1), Certain(), rows=20_000), law, N)
    assert statistic > 2 * limit  # the noise that such a network expects is not there


def test_only_places_that_move_are_settled():
    """Position 0 stays at full noise for two steps; the others leave MASK one by one."""
    process = hdlm.Absorbing(N)
    schedule = hdlm.Custom([[2, 2, 2], [2, 1, 1], [2, 0, 0], [1, 0, 0], [0, 0, 0]])
    left = []

    class Watch(Certain):
        def step(self, *args):
            after = super().step(*args)
            left.append(process.is_mask(after).long())
            return after

    sample(Oracle(CleanReading(process), random_law(N, 3), 3), schedule, Watch(), rows=50)
    assert [state.sum(1).unique().tolist() for state in left[:2]] == [[2], [1]]
    assert all(bool(state[:, 0].all()) for state in left[:2])


def test_certainty_is_the_networks_own_whatever_the_temperature():
    """Always the likeliest token, and still in the order of certainty."""
    process = hdlm.Absorbing(N)
    orders = []

    class Watch(Certain):
        def step(self, *args):
            after = super().step(*args)
            orders[-1].append(process.is_mask(after)[0].tolist())
            return after

    for temperature in (1.0, 0.0):
        orders.append([])
        oracle = Oracle(CleanReading(process), random_law(N, 3), 3)
        sample(oracle, hdlm.Flat(3, 1), Watch(), rows=1, temperature=temperature)
    assert orders[0][0] == orders[1][0]  # before anything is drawn the two see the same


def test_starting_from_mask_is_closer_than_starting_from_the_prior():
    """alpha(1) > 0: the prior leaves some tokens at random for good, MASK says nothing and loses nothing."""
    process = hdlm.Absorbing(N, hdlm.LogLinear(0.2))
    law = random_law(N, 1)
    tokens = sample(Oracle(CleanReading(process), law, 1), hdlm.Flat(1, 0.25), Posterior(), rows=20_000)
    statistic, limit = chi_square(tokens, law, N)
    assert statistic < limit


def test_confidence_is_the_networks_own_whatever_the_temperature():
    """Drawn at a low temperature, ranked by the law as it is: warped probabilities would all be near 1."""
    outputs = torch.tensor([[[2.0, 0.0, 0.0, 0.0], [0.0, 3.0, 0.0, 0.0]]], dtype=torch.float64)
    reading, settings = CleanReading(hdlm.Absorbing(N)), DrawSettings(temperature=0.1, top_p=1.0)
    masked = torch.full((1, 2), N)
    prediction = Prediction(outputs, masked, torch.full((1, 2), 0.5, dtype=torch.float64), reading, settings)
    drawn = torch.tensor([[0, 1]])
    own = outputs.softmax(-1).gather(-1, drawn.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(Confidence().certainty(prediction, drawn), own)


@pytest.mark.parametrize("eta", [0.3, 1.0])
def test_a_token_is_masked_again_as_often_as_the_schedule_allows(eta):
    """ReMDM: eta times min(1, (1 - alpha_s) / alpha_t), with linear noise s / (1 - t)."""
    seen = []

    class Watch(Remask):
        def step(self, state, prediction, times, random):
            after = super().step(state, prediction, times, random)
            token = ~state.masked
            if token.any():
                chance = eta * min(1.0, float(times.s[0] / (1 - times.t[0])))
                back = (after == N)[token].double()
                seen.append((back.mean().item(), chance, (chance * (1 - chance) / len(back)) ** 0.5))
            return after

    sample(Oracle(CleanReading(hdlm.Absorbing(N)), random_law(N, 1), 1), hdlm.Flat(1, 1 / 6), Watch(eta), rows=40_000)
    assert len(seen) == 5
    for share, chance, error in seen:
        assert abs(share - chance) < 4.5 * error + 1e-12
