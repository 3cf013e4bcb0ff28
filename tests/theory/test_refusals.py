"""What is refused is called by its name: every check of an argument says which one it was."""

import pytest
import torch

import hdlm
from hdlm.objectives.epsilon_bound import restoration_bound, shuffled_bound
from hdlm.objectives.score_entropy import score_entropy
from hdlm.theory.draws import draw_times
from hdlm.theory.epsilon_hybrid import epsilon_process
from hdlm.theory.layout import build_layout, training_layout
from hdlm.theory.parameterization import clean_to_score, output_to_clean, output_to_score, score_to_clean

N = 4
GAMMA, EPSILON = hdlm.GammaHybrid(N, 0.3), hdlm.EpsilonHybrid(N, 0.2)
TOKENS, BAD_TOKENS = torch.tensor([0, 3]), torch.tensor([0, 9])
LAW, NARROW = torch.full((2, N), 1 / N), torch.full((2, N - 1), 1 / (N - 1))
TIME, EARLIER, LATE = torch.tensor(0.5), torch.tensor(0.2), torch.tensor(1.5)
NOISES = [hdlm.Linear(), hdlm.LogLinear(), hdlm.Cosine(), hdlm.Geometric(1e-3, 8.0)]

CALLS = {
    "corrupt, tokens": ("x0", lambda: GAMMA.corrupt(BAD_TOKENS, TIME)),
    "corrupt, time": ("t", lambda: GAMMA.corrupt(TOKENS, LATE)),
    "marginal, law": ("p0", lambda: GAMMA.marginal(NARROW, TIME)),
    "marginal, time": ("t", lambda: GAMMA.marginal(LAW, LATE)),
    "posterior, tokens": ("xt", lambda: GAMMA.posterior(BAD_TOKENS, LAW, s=EARLIER, t=TIME)),
    "posterior, law": ("p0", lambda: GAMMA.posterior(TOKENS, NARROW, s=EARLIER, t=TIME)),
    "posterior, s": ("s", lambda: GAMMA.posterior(TOKENS, LAW, s=LATE, t=TIME)),
    "posterior, t": ("t", lambda: GAMMA.posterior(TOKENS, LAW, s=EARLIER, t=LATE)),
    "score, law": ("p0", lambda: GAMMA.score(TOKENS, NARROW, TIME)),
    "tau-leaping, tokens": ("xt", lambda: GAMMA.tau_leap(BAD_TOKENS, LAW, s=EARLIER, t=TIME)),
    "tau-leaping, score": ("score", lambda: GAMMA.tau_leap(TOKENS, NARROW, s=EARLIER, t=TIME)),
    "tau-leaping, s": ("s", lambda: GAMMA.tau_leap(TOKENS, LAW, s=LATE, t=TIME)),
    "tau-leaping, t": ("t", lambda: GAMMA.tau_leap(TOKENS, LAW, s=EARLIER, t=LATE)),
    "output to score": ("output", lambda: output_to_score(GAMMA, NARROW, TOKENS, TIME)),
    "output to clean": ("output", lambda: output_to_clean(GAMMA, NARROW, TOKENS, TIME)),
    "clean to score": ("log_pi", lambda: clean_to_score(GAMMA, NARROW, TOKENS, TIME)),
    "score to clean": ("log_score", lambda: score_to_clean(GAMMA, NARROW, TOKENS, TIME)),
    "score entropy": ("log_score", lambda: score_entropy(GAMMA, NARROW, TOKENS, TOKENS, TIME)),
    "score entropy, xt": ("xt", lambda: score_entropy(GAMMA, LAW, BAD_TOKENS, TOKENS, TIME)),
    "score entropy, x0": ("x0", lambda: score_entropy(GAMMA, LAW, TOKENS, BAD_TOKENS, TIME)),
    "shuffled bound": ("log_pi", lambda: shuffled_bound(EPSILON, NARROW, TOKENS, TOKENS, TIME)),
    "shuffled bound, x~": ("shuffled", lambda: shuffled_bound(EPSILON, LAW, TOKENS, BAD_TOKENS, TIME)),
    "restoration": ("log_pi", lambda: restoration_bound(EPSILON, NARROW, TOKENS, TOKENS)),
    "restoration, x~": ("shuffled", lambda: restoration_bound(EPSILON, LAW, BAD_TOKENS, TOKENS)),
    "restoration, x0": ("x0", lambda: restoration_bound(EPSILON, LAW, TOKENS, BAD_TOKENS)),
    "epsilon, vocabulary": ("vocab_size", lambda: hdlm.EpsilonHybrid(1, 0.1)),
    "epsilon, share": ("epsilon", lambda: hdlm.EpsilonHybrid(N, 1.1)),
    "epsilon, noise": ("noise", lambda: hdlm.EpsilonHybrid(N, 0.1, "linear")),
    "epsilon, process": ("process", lambda: epsilon_process(GAMMA)),
    "gamma, vocabulary": ("vocab_size", lambda: hdlm.GammaHybrid(1, 0.1)),
    "gamma, share": ("gamma", lambda: hdlm.GammaHybrid(N, -0.1)),
    "gamma, noise": ("noise", lambda: hdlm.GammaHybrid(N, 0.1, 3)),
    "log-linear": ("eps", lambda: hdlm.LogLinear(2.0)),
    "levels": ("levels", lambda: hdlm.Custom([[1], [2]])),
    "levels in a tensor": ("levels", lambda: hdlm.Custom(torch.tensor([[2, 2], [2, 3], [0, 0]]))),
    "custom, length": ("length", lambda: hdlm.Custom([[1], [0]]).resized(0)),
    "draws, batch": ("global_batch", lambda: draw_times(hdlm.Flat(4), seed=0, indices=TOKENS, global_batch=0)),
    "draws, indices": ("indices", lambda: draw_times(hdlm.Flat(4), seed=0, indices=-TOKENS, global_batch=2)),
    "slide, offset": ("offset", lambda: hdlm.Slide(8, 4).times(torch.ones(1, 3), 5)),
    "layout, length": ("length", lambda: build_layout(0, [], shifted=False)),
    "layout, settled": ("settled", lambda: build_layout(4, [(0, 4)], shifted=False, settled=5)),
    "layout, skip": ("skip", lambda: build_layout(4, [(2, 4)], shifted=False, settled=2, skip=3)),
    "layout, slots": ("slots", lambda: build_layout(4, [(0, 4)], shifted=False, slots=3)),
    "layout, prefix": ("prefix", lambda: training_layout(hdlm.Block(4, 2), shifted=False, prefix=-1)),
    **{f"{noise!r}, alpha": ("t", lambda noise=noise: noise.alpha(LATE)) for noise in NOISES},
    **{f"{noise!r}, sigma": ("t", lambda noise=noise: noise.sigma(LATE)) for noise in NOISES},
    **{f"{noise!r}, rate": ("t", lambda noise=noise: noise.rate(LATE)) for noise in NOISES},
}


@pytest.mark.parametrize("case", CALLS)
def test_it_is_named(case):
    name, call = CALLS[case]
    with pytest.raises(ValueError, match=rf"\b{name}\b") as caught:
        call()
    assert str(caught.value).split()[0] in (name, f"{name}[0]", f"{name}[1]"), caught.value


@pytest.mark.parametrize("noise", NOISES, ids=repr)
def test_times_of_noise(noise):
    """The inverse of sigma: from 0 to the noise at t = 1, which rounding may overstep by a hair and nothing more."""
    end = noise.sigma(torch.ones((), dtype=torch.float64))
    assert noise.time(torch.zeros(())) == 0
    if torch.isfinite(end):
        assert noise.time(end * (1 + 1e-6)) == 1
        with pytest.raises(ValueError, match="sigma"):
            noise.time(end * 1.5)
    with pytest.raises(ValueError, match="sigma"):
        noise.time(torch.tensor(-0.1))


@pytest.mark.parametrize("make", [hdlm.Absorbing, hdlm.Uniform, lambda n, noise: hdlm.EpsilonHybrid(n, 0.1, noise)])
def test_the_noise_that_is_given_is_the_one_that_is_used(make):
    noise = hdlm.LogLinear(0.2)
    process = make(N, noise)
    assert process.noise is noise
    kept = process.channel(torch.tensor(0.5))
    assert kept.mask + kept.keep + kept.replace == pytest.approx(1.0)
    if process.mask_id is not None:
        assert kept.mask == pytest.approx(1 - noise.alpha(torch.tensor(0.5)).item())


def test_shapes_are_broadcast_together():
    """Tokens, laws and times of different shapes: as if each had been spelled out, draws by the same generator."""
    torch.manual_seed(0)
    xt, law = torch.tensor([[0], [4]]), torch.rand(3, N, dtype=torch.float64).softmax(-1)
    s, t = torch.tensor(0.2, dtype=torch.float64), torch.tensor([[0.5], [0.9]], dtype=torch.float64)
    whole = (xt.expand(2, 3), law.expand(2, 3, N))
    spelled = {"s": s.expand(2, 3), "t": t.expand(2, 3)}
    found = GAMMA.tau_leap(xt, law, s=s, t=t)
    torch.testing.assert_close(found, GAMMA.tau_leap(*whole, **spelled))
    torch.testing.assert_close(GAMMA.posterior(xt, law, s=s, t=t), GAMMA.posterior(*whole, **spelled))
    draws = [
        GAMMA.sample_posterior(*args, **times, generator=torch.Generator().manual_seed(5))
        for args, times in (((xt, law), {"s": s, "t": t}), (whole, spelled))
    ]
    assert torch.equal(*draws)
    other = GAMMA.sample_posterior(
        torch.full((500,), N), law[:1].expand(500, N), s=s, t=t[1], generator=torch.Generator().manual_seed(6)
    )
    again = GAMMA.sample_posterior(
        torch.full((500,), N), law[:1].expand(500, N), s=s, t=t[1], generator=torch.Generator().manual_seed(7)
    )
    assert not torch.equal(other, again)
    log_score = clean_to_score(GAMMA, law.log(), xt, t)
    assert log_score.shape == (2, 3, N)
    torch.testing.assert_close(score_to_clean(GAMMA, log_score, xt, t).exp(), law.expand(2, 3, N))


def test_a_custom_schedule_keeps_its_columns():
    levels = [[3, 3, 3], [2, 3, 3], [1, 2, 3], [0, 1, 1], [0, 0, 0]]
    schedule = hdlm.Custom(levels)
    assert schedule.resized(3) is schedule
    assert schedule.resized(2).levels.tolist() == [row[:2] for row in levels]
    for step in schedule.walk():
        assert step.levels.tolist() == levels[step.index][step.start : step.stop]
        assert step.next_levels.tolist() == levels[step.index + 1][step.start : step.stop]
    assert hdlm.Custom(torch.tensor(levels)) == schedule
    assert hdlm.Custom([torch.tensor(row) for row in levels]) == schedule


@pytest.mark.parametrize(
    "levels", [[[2, 1], [0, 0]], [[2, 2], [1, 1]], [[0, 0], [0, 0]], [[2, 2], [1, 2], [2, 1], [0, 0]], [[1.5], [0]]]
)
def test_matrices_that_are_no_schedule_are_refused_as_lists_and_as_tensors(levels):
    for given in (levels, torch.tensor(levels)):
        with pytest.raises(ValueError, match="levels"):
            hdlm.Custom(given)


def test_drawn_times_are_below_one_in_any_precision():
    """Where noise is infinite at t = 1 a loss would not be finite there."""
    for dtype in (torch.float32, torch.float64):
        draw = draw_times(hdlm.Flat(2), seed=0, indices=torch.arange(4096), global_batch=4096, dtype=dtype)
        assert draw.times.dtype == dtype
        assert 0.999 < draw.times.max() < 1
        assert draw.times.min() > 0


def test_drawn_times_depend_on_seed_step_and_window():
    def times(seed, first):
        indices = torch.arange(first, first + 8)
        return draw_times(hdlm.Block(12, 4), seed=seed, indices=indices, global_batch=8).times

    assert torch.equal(times(0, 0), times(0, 0))
    assert not torch.equal(times(0, 0), times(1, 0))
    assert not torch.equal(times(0, 0), times(0, 8))
    found = times(0, 0)[:, [0, 4, 8]]  # a window each
    assert len(found.flatten().unique()) == 24
    # Not one order of rows for all windows, nor for all steps and seeds.
    orders = [
        tuple(times(seed, first)[:, column].argsort().tolist())
        for seed, first, column in [(0, 0, 0), (0, 0, 4), (0, 0, 8), (0, 8, 0), (1, 0, 0), (2, 0, 0)]
    ]
    assert len(set(orders)) > 3
