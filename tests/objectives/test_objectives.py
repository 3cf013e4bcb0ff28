"""The identities between objectives, and HDCE and the reweighting against their printed formulas."""

import math

import pytest
import torch

import hdlm
from hdlm.objectives.bounds import likelihoods, training_objective
from hdlm.objectives.epsilon_bound import EpsilonBound
from hdlm.objectives.hdce import HDCE, MAX_WEIGHT
from hdlm.objectives.masked import MaskedBound
from hdlm.objectives.objective import NextToken
from hdlm.objectives.score_entropy import ScoreBound
from hdlm.objectives.settled import position_weights
from hdlm.theory.parameterization import clean_to_score, output_to_clean, score_offset
from hdlm.theory.reading import CleanReading, HDCEReading, ScoreReading

N = 6


def batch(process, count=400):
    torch.manual_seed(1)
    x0 = torch.randint(N, (count,))
    t = 0.02 + 0.96 * torch.rand(count, dtype=torch.float64)
    return torch.randn(count, N, dtype=torch.float64), process.corrupt(x0, t), x0, t


def test_quench_is_the_causal_likelihood():
    outputs, xt, x0, t = batch(hdlm.Absorbing(N))
    expected = -outputs.softmax(-1).gather(-1, x0.unsqueeze(-1)).log().squeeze(-1)
    torch.testing.assert_close(NextToken()(outputs, xt, x0, t), expected)


def test_absorbing_is_mdlm():
    """MDLM's bound for alpha = 1 - t: cross-entropy over t on masked positions, nothing elsewhere."""
    outputs, xt, x0, t = batch(hdlm.Absorbing(N))
    expected = torch.where(xt == N, torch.nn.functional.cross_entropy(outputs, x0, reduction="none") / t, 0.0)
    torch.testing.assert_close(MaskedBound(hdlm.Absorbing(N))(outputs, xt, x0, t), expected)


def test_epsilon_0_is_mdlm():
    """With epsilon = 0 nothing is shuffled, and an unmasked position weighs nothing."""
    outputs, xt, x0, t = batch(hdlm.EpsilonHybrid(N, 0.0))
    one, other = HDCE(hdlm.EpsilonHybrid(N, 0.0)), MaskedBound(hdlm.Absorbing(N))
    torch.testing.assert_close(one(outputs, xt, x0, t), other(outputs, xt, x0, t))


@pytest.mark.parametrize("noise", [hdlm.LogLinear(), hdlm.Cosine()], ids=repr)
def test_gamma_0_is_sedd_absorb_and_mdlm(noise):
    outputs, xt, x0, t = batch(hdlm.Absorbing(N, noise))
    gamma = ScoreBound(hdlm.GammaHybrid(N, 0.0, noise), clean=True)(outputs, xt, x0, t)
    torch.testing.assert_close(gamma, MaskedBound(hdlm.Absorbing(N, noise))(outputs, xt, x0, t))


def test_gamma_1_is_sedd_uniform():
    """SEDD's uniform loss, from its own formulas: rate 1 / N, ratios from e^sigma - 1."""
    process = hdlm.Uniform(N)
    outputs, xt, x0, t = batch(process)
    esigm1 = torch.expm1(process.noise.sigma(t))
    ratio = 1 - N / (esigm1 + N)
    score = outputs + score_offset(process, xt, t).unsqueeze(-1)
    own = torch.nn.functional.one_hot(xt, N).bool()
    score = score.masked_fill(own, 0.0)
    clean = torch.nn.functional.one_hot(x0, N).bool()
    r = torch.where((xt == x0).unsqueeze(-1), ratio.unsqueeze(-1), torch.where(clean, 1 / ratio.unsqueeze(-1), 1.0))
    terms = score.exp() - r * score + r * (r.log() - 1)
    expected = process.noise.rate(t) * terms.masked_fill(own, 0.0).sum(-1) / N
    torch.testing.assert_close(ScoreBound(process, clean=False)(outputs, xt, x0, t), expected)


@pytest.mark.parametrize("gamma", [0.01, 0.3, 1.0])
def test_both_parameterisations_of_one_function_lose_the_same(gamma):
    process = hdlm.GammaHybrid(N, gamma)
    outputs, xt, x0, t = batch(process)
    clean = ScoreBound(process, clean=True)(outputs, xt, x0, t)
    log_pi = output_to_clean(process, outputs, xt, t)
    raw = clean_to_score(process, log_pi, xt, t) - score_offset(process, xt, t).unsqueeze(-1)
    torch.testing.assert_close(ScoreBound(process, clean=False)(raw, xt, x0, t), clean)


def test_hdce_weights_are_the_printed_ones():
    process = hdlm.EpsilonHybrid(N, 0.2)
    t = torch.tensor([0.25, 0.25, 0.25, 0.999999], dtype=torch.float64)
    x0, xt = torch.tensor([1, 1, 1, 1]), torch.tensor([N, 2, 1, 1])
    weights = HDCE(process, lambda_=3.0).weights(xt, x0, t)
    expected = [1 / 0.25, 3 * 0.8 / 0.75, 3 * 0.2 / 0.75, 3 * 0.2 * MAX_WEIGHT]
    torch.testing.assert_close(weights, torch.tensor(expected, dtype=torch.float64))
    undivided = HDCE(process, lambda_=3.0, divided=False).weights(xt, x0, t)
    torch.testing.assert_close(undivided[1:], torch.tensor([3 * 0.8, 3 * 0.2, 3 * 0.2], dtype=torch.float64))


def test_both_unmasked_classes_weigh_the_same_in_expectation():
    """Shuffled: probability eps (1 - 1/N); not shuffled: 1 - eps + eps / N. Each times its weight, up to 1/N."""
    process, n = hdlm.EpsilonHybrid(1000, 0.1), 400_000
    x0, t = torch.randint(1000, (n,)), torch.full((n,), 0.5)
    xt = process.corrupt(x0, t)
    weights = HDCE(process).weights(xt, x0, t)
    shuffled, kept = (xt != x0) & (xt < 1000), xt == x0
    assert weights[shuffled].sum() / n == pytest.approx(0.1 * 0.9, rel=0.05)
    assert weights[kept].sum() / n == pytest.approx(0.1 * 0.9, rel=0.05)


def test_position_weights_are_the_printed_ones():
    assert position_weights(10, 4).tolist() == pytest.approx([0] * 4 + [0.5] * 4 + [1.0] * 2)
    assert position_weights(4, 4).tolist() == [1.0] * 4


@pytest.mark.parametrize("gamma", [0.01, 0.3, 1.0])
def test_an_untrained_network_is_charged_the_uniform_law(gamma):
    """Equal outputs are the exact denoiser of uniform tokens: the bound is log N, nothing more."""
    process, count = hdlm.GammaHybrid(N, gamma, hdlm.LogLinear(1e-3)), 400_000
    torch.manual_seed(0)
    x0, t = torch.randint(N, (count,)), (torch.arange(count, dtype=torch.float64) + 0.5) / count
    loss = ScoreBound(process, clean=True)(torch.zeros(count, N, dtype=torch.float64), process.corrupt(x0, t), x0, t)
    error = loss.std().item() / count**0.5
    assert loss.mean().item() + process.prior_kl() == pytest.approx(math.log(N), abs=5 * error)


def test_a_perfect_network_loses_nothing():
    process = hdlm.GammaHybrid(N, 0.3)
    _, xt, x0, t = batch(process)
    certain = torch.full((len(x0), N), -40.0, dtype=torch.float64).scatter(-1, x0.unsqueeze(-1), 40.0)
    assert ScoreBound(process, clean=True)(certain, xt, x0, t).abs().max() < 1e-6
    assert math.isclose(MaskedBound(hdlm.Absorbing(N))(certain, torch.full_like(x0, N), x0, t).max().item(), 0.0)


BESIDE = "masked bound of the absorbing process"
JUDGED = {
    "absorbing": (CleanReading(hdlm.Absorbing(N)), MaskedBound, ["masked bound"]),
    "epsilon 0": (CleanReading(hdlm.EpsilonHybrid(N, 0.0)), MaskedBound, ["masked bound"]),
    "gamma": (CleanReading(hdlm.GammaHybrid(N, 0.3)), ScoreBound, ["score-entropy bound", BESIDE]),
    "gamma, scores": (ScoreReading(hdlm.GammaHybrid(N, 0.3)), ScoreBound, ["score-entropy bound", BESIDE]),
    "uniform": (CleanReading(hdlm.Uniform(N)), ScoreBound, ["score-entropy bound"]),
    "absorbing, scores": (ScoreReading(hdlm.Absorbing(N, hdlm.LogLinear())), ScoreBound, ["score-entropy bound"]),
    "epsilon": (CleanReading(hdlm.EpsilonHybrid(N, 0.3)), EpsilonBound, ["epsilon-hybrid bound", BESIDE]),
    "epsilon, HDCE": (HDCEReading(hdlm.EpsilonHybrid(N, 0.3)), HDCE, ["epsilon-hybrid bound", BESIDE]),
}


@pytest.mark.parametrize("case", JUDGED)
def test_one_place_says_which_loss_and_bound_belong_to_a_process(case):
    reading, loss, names = JUDGED[case]
    assert type(training_objective(reading)) is loss
    found = likelihoods(reading, autoregressive=False)
    assert [one.name for one in found] == names
    assert [one.restoration is not None for one in found] == [name.startswith("epsilon") for name in names]
    assert found[0].prior == reading.process.prior_kl()
    [exact] = likelihoods(reading, autoregressive=True)
    assert (exact.name, exact.process, exact.prior) == ("exact negative log-likelihood", None, 0.0)


@pytest.mark.parametrize("case", [name for name in JUDGED if not name.startswith("epsilon,") and name != "epsilon"])
def test_what_is_trained_is_what_is_bounded(case):
    """But for HDCE, which is no bound, and the epsilon bound, which takes two passes: the loss in training is the bound
    in evaluation.
    """
    reading, _, _ = JUDGED[case]
    objective, bound = training_objective(reading), likelihoods(reading, autoregressive=False)[0].loss
    states = batch(reading.process)
    torch.testing.assert_close(bound(*states), objective(*states))


def test_hdce_gets_its_settings():
    reading = HDCEReading(hdlm.EpsilonHybrid(N, 0.3))
    _, xt, x0, t = batch(reading.process)
    for lambda_, divided in ((0.5, True), (2.0, False), (1.0, False)):
        found = training_objective(reading, lambda_=lambda_, divided=divided).weights(xt, x0, t)
        torch.testing.assert_close(found, HDCE(reading.process, lambda_=lambda_, divided=divided).weights(xt, x0, t))
    divided, plain = (training_objective(reading, divided=divided).weights(xt, x0, t) for divided in (True, False))
    assert not torch.equal(divided, plain)
    printed = HDCE(reading.process, lambda_=1.0, divided=True).weights(xt, x0, t)
    assert torch.equal(training_objective(reading).weights(xt, x0, t), printed)


def test_clean_outputs_of_the_epsilon_process_are_trained_by_its_bound():
    reading = CleanReading(hdlm.EpsilonHybrid(N, 0.3, hdlm.Cosine()))
    made = batch(reading.process)
    expected = EpsilonBound(hdlm.EpsilonHybrid(N, 0.3, hdlm.Cosine()))
    torch.testing.assert_close(training_objective(reading)(*made), expected(*made))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["next token", "clean", "scores"])
def test_outputs_of_half_precision_are_summed_in_single(kind, dtype):
    process = hdlm.GammaHybrid(N, 0.2)
    loss = NextToken() if kind == "next token" else ScoreBound(process, clean=kind == "clean")
    outputs, xt, x0, t = batch(process)
    narrow, t = outputs.to(dtype), t.float()
    found = loss(narrow, xt, x0, t)
    assert found.dtype == torch.float32
    assert torch.equal(found, loss(narrow.float(), xt, x0, t))


@pytest.mark.parametrize("noise", [hdlm.LogLinear(0.1), hdlm.Linear()], ids=repr)
def test_bounds_add_what_the_last_level_leaves(noise):
    """And the bound beside a hybrid's is of the absorbing process with the same noise."""
    [masked] = likelihoods(CleanReading(hdlm.Absorbing(N, noise)), autoregressive=False)
    assert masked.prior == hdlm.Absorbing(N, noise).prior_kl()
    for reading in (CleanReading(hdlm.EpsilonHybrid(N, 0.2, noise)), CleanReading(hdlm.GammaHybrid(N, 0.2, noise))):
        _, beside = likelihoods(reading, autoregressive=False)
        assert beside.process == hdlm.Absorbing(N, noise)
        assert beside.prior == masked.prior
        outputs, xt, x0, t = batch(beside.process)
        torch.testing.assert_close(beside.loss(outputs, xt, x0, t), MaskedBound(beside.process)(outputs, xt, x0, t))


@pytest.mark.parametrize("lambda_", [0.0, 0.5])
def test_unmasked_positions_may_count_little_or_nothing(lambda_):
    process, t = hdlm.EpsilonHybrid(N, 0.1), torch.tensor([0.4], dtype=torch.float64)
    same = torch.tensor([1])
    found, whole = (HDCE(process, lambda_=share).weights(same, same, t) for share in (lambda_, 1.0))
    torch.testing.assert_close(found, lambda_ * whole)


def test_no_position_counts_less_than_nothing():
    with pytest.raises(ValueError, match=r"lambda = -0\.1 is not accepted"):
        HDCE(hdlm.EpsilonHybrid(N, 0.1), lambda_=-0.1)
