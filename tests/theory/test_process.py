"""Every process against its matrices: the closed forms must be the matrix exponential and Bayes' rule."""

import itertools
import math
import subprocess
import sys

import pytest
import torch
from support.processes import EPSILON_PROCESSES, PROCESSES, RATE_PROCESSES, VOCAB

import hdlm
from hdlm.theory import checks, dense
from hdlm.theory.random import Keyed

TIMES = [0.0, 1e-6, 0.1, 0.5, 0.9, 0.999, 1.0]
PAIRS = list(itertools.combinations_with_replacement(TIMES, 2))


def one_hots(dtype=torch.float64):
    return torch.eye(VOCAB, dtype=dtype)


def at(value, dtype=torch.float64):
    return torch.tensor(value, dtype=dtype)


def masks(process):
    """Whether MASK ever comes up: a GammaHybrid with gamma = 1 has the state but never enters it."""
    return process.mask_id is not None and getattr(process, "gamma", 0.0) < 1


def possible(process, xt, x0, t):
    return dense.transition(process, 0.0, t)[xt, x0] > 1e-30


@pytest.mark.parametrize("process", PROCESSES, ids=repr)
def test_dense_columns_are_laws_and_compose(process):
    for s, t in PAIRS:
        operator = dense.transition(process, s, t)
        assert (operator >= -1e-15).all()
        torch.testing.assert_close(operator.sum(0), torch.ones(process.num_states, dtype=torch.float64))
        between = (s + t) / 2
        if s < between < t < 1:
            composed = dense.transition(process, between, t) @ dense.transition(process, s, between)
            torch.testing.assert_close(composed, operator)


def test_generators_commute_as_the_paper_says():
    absorb, uniform = dense.absorbing_generator(VOCAB), dense.uniform_generator(VOCAB)
    torch.testing.assert_close(absorb @ absorb, -absorb)
    torch.testing.assert_close(uniform @ uniform, -uniform)
    torch.testing.assert_close(uniform @ absorb, -uniform)
    torch.testing.assert_close(absorb @ uniform, -uniform)


@pytest.mark.parametrize("process", PROCESSES, ids=repr)
def test_marginal_is_the_matrix_exponential(process):
    for t in TIMES:
        law = process.marginal(one_hots(), at(t))
        torch.testing.assert_close(law.T, dense.transition(process, 0.0, t)[:, :VOCAB])


@pytest.mark.parametrize("process", PROCESSES, ids=repr)
def test_evolution_composes(process):
    """Semigroup of the closed form: from clean to s, then densely from s to t, is from clean to t."""
    for s, t in PAIRS:
        onward = dense.transition(process, s, t) @ process.marginal(one_hots(), at(s)).T
        torch.testing.assert_close(onward, process.marginal(one_hots(), at(t)).T)


@pytest.mark.parametrize("process", PROCESSES, ids=repr)
def test_posterior_is_bayes_rule(process):
    compared = 0
    for s, t in PAIRS:
        pairs = (dense.transition(process, 0.0, t)[:, :VOCAB] > 1e-30).nonzero().tolist()  # that can come together
        xt, x0 = torch.tensor(pairs).T
        expected = torch.stack([dense.posterior(process, *pair, s, t) for pair in pairs])
        law = process.posterior(xt, one_hots()[x0], s=at(s), t=at(t))
        torch.testing.assert_close(law, expected, rtol=1e-9, atol=1e-12)
        compared += len(pairs)
    assert compared > 100


@pytest.mark.parametrize("process", PROCESSES, ids=repr)
def test_posterior_mixes_over_p0(process):
    """With p0 the true law of x0 given xt, the mixture is Bayes' rule for a random clean token."""
    prior = torch.rand(VOCAB, dtype=torch.float64).softmax(0)
    for s, t in [(0.0, 0.4), (0.3, 0.8), (0.5, 0.999)]:
        joint = dense.transition(process, 0.0, t)[:, :VOCAB] * prior
        for xt in range(process.num_states):
            if joint[xt].sum() < 1e-30:
                continue
            p0 = joint[xt] / joint[xt].sum()
            before = dense.transition(process, 0.0, s)[:, :VOCAB] @ prior
            expected = dense.transition(process, s, t)[xt] * before
            law = process.posterior(torch.tensor(xt), p0, s=at(s), t=at(t))
            torch.testing.assert_close(law, expected / expected.sum(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("process", PROCESSES, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_posterior_sums_to_one_for_any_p0(process, dtype):
    xt = torch.randint(process.num_states, (500,))
    p0 = torch.randn(500, VOCAB).mul(5).softmax(-1).to(dtype)
    t = torch.rand(500).clamp(min=1e-6)
    law = process.posterior(xt, p0, s=t * torch.rand(500), t=t)
    assert law.dtype == dtype
    assert (law >= 0).all()
    torch.testing.assert_close(law.sum(-1), torch.ones(500, dtype=dtype), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("process", [p for p in PROCESSES if masks(p)], ids=repr)
def test_settling_gives_a_real_token(process):
    xt = torch.full((VOCAB,), process.mask_id)
    law = process.posterior(xt, one_hots(), s=at(0.0), t=at(0.7))
    assert (law[:, process.mask_id] == 0).all()


@pytest.mark.parametrize(
    "process", [hdlm.Absorbing(VOCAB), hdlm.GammaHybrid(VOCAB, 0.0), hdlm.EpsilonHybrid(VOCAB, 0.0)], ids=repr
)
def test_masking_alone_carries_tokens_over_whatever_p0_says(process):
    p0 = torch.full((VOCAB, VOCAB), 1 / VOCAB, dtype=torch.float64)
    for s in (0.0, 0.2):
        law = process.posterior(torch.arange(VOCAB), p0, s=at(s), t=at(0.6))
        torch.testing.assert_close(law[:, :VOCAB], one_hots(), rtol=0, atol=0)


NOISE = hdlm.LogLinear()
LIMITS = [
    (hdlm.GammaHybrid(VOCAB, 1e-9, NOISE), hdlm.Absorbing(VOCAB, NOISE)),
    (hdlm.GammaHybrid(VOCAB, 1 - 1e-9, NOISE), hdlm.Uniform(VOCAB, NOISE)),
    (hdlm.EpsilonHybrid(VOCAB, 1e-9, NOISE), hdlm.Absorbing(VOCAB, NOISE)),
]


@pytest.mark.parametrize(("process", "limit"), LIMITS, ids=repr)
def test_limits_of_gamma_and_epsilon(process, limit):
    t = torch.rand(50, dtype=torch.float64)
    p0 = torch.rand(50, VOCAB, dtype=torch.float64).softmax(-1)
    states = limit.num_states
    torch.testing.assert_close(process.marginal(p0, t)[..., :states], limit.marginal(p0, t), rtol=0, atol=1e-7)
    # As gamma goes to 0 a token's posterior still trusts p0; at 0 it cannot. The limit holds where xt is MASK.
    xt = torch.randint(VOCAB, (50,)) if limit.mask_id is None else torch.full((50,), limit.mask_id)
    law = process.posterior(xt, p0, s=t / 2, t=t)[..., :states]
    torch.testing.assert_close(law, limit.posterior(xt, p0, s=t / 2, t=t), rtol=0, atol=1e-6)


@pytest.mark.parametrize("process", RATE_PROCESSES, ids=repr)
def test_score_is_the_ratio_of_dense_columns(process):
    for t, xt, x0 in itertools.product([1e-6, 0.1, 0.5, 0.999], range(process.num_states), range(VOCAB)):
        if possible(process, xt, x0, t):
            expected = dense.ratios(process, xt, x0, t)[:VOCAB]
            score = process.score(torch.tensor(xt), one_hots()[x0], at(t))
            torch.testing.assert_close(score, expected, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("process", RATE_PROCESSES, ids=repr)
def test_tau_leaping_of_the_score_is_the_posterior(process):
    xt = torch.randint(process.num_states, (400,))
    if process.gamma == 1.0:
        xt = xt.clamp(max=VOCAB - 1)
    p0 = torch.randn(400, VOCAB, dtype=torch.float64).softmax(-1)
    t = 0.01 + 0.98 * torch.rand(400, dtype=torch.float64)
    s = t * torch.rand(400, dtype=torch.float64)
    law = process.tau_leap(xt, process.score(xt, p0, t), s=s, t=t)
    torch.testing.assert_close(law, process.posterior(xt, p0, s=s, t=t), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("process", PROCESSES, ids=repr)
def test_prior_kl_against_the_dense_sum(process):
    # The epsilon bound starts from the shuffled token: only masking lies between it and the prior.
    start = 1e-300 if isinstance(process, hdlm.EpsilonHybrid) else 0.0
    column = dense.transition(process, start, 1.0)[:, 0]
    uniform = torch.full((VOCAB,), column[:VOCAB].sum() / VOCAB, dtype=torch.float64)
    prior = torch.cat([uniform, column[VOCAB:]])
    expected = torch.special.xlogy(column, column / prior).nan_to_num(0.0).sum().item()
    assert process.prior_kl() == pytest.approx(expected, abs=1e-13)
    assert process.prior_kl() >= 0


def test_prior_kl_of_the_papers_setting():
    """The closed form of docs/theory.md, and its value at eps = 1e-3, N = 50,257 for gamma = 0.01."""
    process = hdlm.GammaHybrid(50_257, 0.01, hdlm.LogLinear(1e-3))
    sigma, n = -math.log(1e-3), 50_257
    a, b = math.exp(-0.99 * sigma), math.exp(-0.01 * sigma)
    expected = a * ((b + (1 - b) / n) * math.log(n * b + 1 - b) + (1 - 1 / n) * (1 - b) * math.log(1 - b))
    assert process.prior_kl() == pytest.approx(expected, rel=1e-9)
    assert process.prior_kl() == pytest.approx(0.011, abs=5e-4)


def chi_square(counts, law):
    """The statistic over its degrees of freedom, standardised: above 6 is not chance."""
    expected = law * counts.sum()
    kept = expected > 1e-9
    assert counts[~kept].sum() == 0
    statistic = ((counts - expected)[kept] ** 2 / expected[kept]).sum()
    freedom = max(1, int(kept.sum()) - 1)
    return float((statistic - freedom) / math.sqrt(2 * freedom))


@pytest.mark.parametrize("process", PROCESSES, ids=repr)
def test_corrupt_follows_the_marginal(process):
    for t in (0.0, 0.05, 0.5, 1.0):
        x0 = torch.full((100_000,), 2)
        xt = process.corrupt(x0, at(t), generator=torch.Generator().manual_seed(1))
        counts = torch.bincount(xt, minlength=process.num_states).double()
        assert chi_square(counts, process.marginal(one_hots()[2], at(t))) < 6
    assert (process.corrupt(x0, torch.zeros(100_000)) == x0).all()


@pytest.mark.parametrize("process", PROCESSES, ids=repr)
def test_sample_posterior_follows_the_posterior(process):
    p0 = torch.tensor([0.1, 0.0, 0.6, 0.3], dtype=torch.float64)
    states = VOCAB + masks(process)
    for xt, (s, t) in itertools.product(range(states), [(0.0, 0.5), (0.3, 0.7), (0.5, 0.5), (0.7, 0.99)]):
        start = torch.full((8_000,), xt)
        drawn = process.sample_posterior(start, p0, s=at(s), t=at(t), generator=torch.Generator().manual_seed(xt))
        counts = torch.bincount(drawn, minlength=process.num_states).double()
        assert chi_square(counts, process.posterior(torch.tensor(xt), p0, s=at(s), t=at(t))) < 6


@pytest.mark.parametrize("process", PROCESSES, ids=repr)
def test_prior_is_the_law_at_full_noise(process):
    drawn = process.prior((50_000,), generator=torch.Generator().manual_seed(0))
    averaged = process.marginal(torch.full((VOCAB,), 1 / VOCAB, dtype=torch.float64), at(1.0))
    assert chi_square(torch.bincount(drawn, minlength=process.num_states).double(), averaged) < 6


@pytest.mark.parametrize("process", PROCESSES, ids=repr)
def test_times_are_per_position_and_any_leading_shape_works(process):
    x0 = torch.randint(VOCAB, (2, 3, 5))
    t = torch.rand(5)
    xt = process.corrupt(x0, t)
    assert xt.shape == (2, 3, 5)
    p0 = torch.randn(2, 3, 5, VOCAB).softmax(-1)
    s = t / 2
    whole = process.posterior(xt, p0, s=s, t=t)
    assert whole.shape == (2, 3, 5, process.num_states)
    for i in range(5):
        torch.testing.assert_close(whole[:, :, i], process.posterior(xt[:, :, i], p0[:, :, i], s=s[i], t=t[i]))
    assert process.sample_posterior(xt, p0, s=s, t=t).shape == xt.shape
    assert process.marginal(p0, t).shape == whole.shape


def test_posterior_is_differentiable_in_p0():
    process = hdlm.GammaHybrid(VOCAB, 0.3)
    xt, t = torch.tensor([0, 2, VOCAB]), torch.tensor([0.3, 0.6, 0.9], dtype=torch.float64)
    logits = torch.randn(3, VOCAB, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: process.posterior(xt, x.softmax(-1), s=t / 2, t=t), logits)


def test_corruption_of_a_row_does_not_depend_on_its_batch():
    process = hdlm.GammaHybrid(1000, 0.1)
    x0, t = torch.randint(1000, (8, 64)), torch.rand(8, 1)
    keys = torch.arange(100, 108)
    whole = process.corrupt(x0, t, generator=Keyed(7, keys))
    parts = [process.corrupt(x0[i : i + 2], t[i : i + 2], generator=Keyed(7, keys[i : i + 2])) for i in range(0, 8, 2)]
    assert torch.equal(whole, torch.cat(parts))
    assert not torch.equal(whole, process.corrupt(x0, t, generator=Keyed(8, keys)))


BAD = {
    "gamma above 1": (lambda: hdlm.GammaHybrid(100, gamma=1.5), r"gamma = 1.5 .*\[0, 1\]"),
    "gamma not a number": (lambda: hdlm.GammaHybrid(100, gamma=math.nan), r"gamma = nan .*\[0, 1\]"),
    "epsilon below 0": (lambda: hdlm.EpsilonHybrid(100, epsilon=-0.1), r"epsilon = -0.1 .*\[0, 1\]"),
    "vocabulary of one": (lambda: hdlm.Absorbing(1), r"vocab_size = 1 .*>= 2"),
    "token out of range": (
        lambda: hdlm.Absorbing(10).corrupt(torch.tensor([10]), torch.tensor([0.5])),
        r"id 10.*0\.\.9",
    ),
    "negative token": (lambda: hdlm.Uniform(10).corrupt(torch.tensor([-1]), torch.tensor([0.5])), r"id -1.*0\.\.9"),
    "NaN time": (lambda: hdlm.Absorbing(10).corrupt(torch.tensor([1]), torch.tensor([math.nan])), r"nan.*\[0, 1\]"),
    "integer time": (lambda: hdlm.Absorbing(10).corrupt(torch.tensor([1]), torch.tensor([1])), r"int64.*\[0, 1\]"),
    "s above t": (
        lambda: hdlm.Absorbing(2).posterior(
            torch.tensor(2), torch.ones(2) / 2, s=torch.tensor(0.6), t=torch.tensor(0.5)
        ),
        r"s = 0.6.* above t = 0.5",
    ),
    "MASK out of range": (
        lambda: hdlm.Uniform(2).posterior(torch.tensor(2), torch.ones(2) / 2, s=torch.tensor(0.1), t=torch.tensor(0.5)),
        r"id 2.*0\.\.1",
    ),
    "p0 over the wrong vocabulary": (
        lambda: hdlm.Absorbing(5).marginal(torch.ones(6) / 6, torch.tensor(0.5)),
        r"\(6,\).*5 real tokens",
    ),
    "score of MASK at 0": (
        lambda: hdlm.Absorbing(2).score(torch.tensor(2), torch.ones(2) / 2, torch.tensor(0.0)),
        r"MASK \(id 2\) at t = 0",
    ),
    "byte tokens": (
        lambda: hdlm.Absorbing(256).corrupt(torch.zeros(3, dtype=torch.uint8), torch.tensor(0.5)),
        "uint8: it must be an int64 or int32",
    ),
    "logits as p0": (
        lambda: hdlm.Absorbing(2).marginal(torch.tensor([-1.0, 2.0]), torch.tensor(0.5)),
        r"p0 holds -1.0: probabilities must be in \[0, 1\]",
    ),
    "p0 that sums to 2": (
        lambda: hdlm.Absorbing(2).marginal(torch.ones(2), torch.tensor(0.5)),
        "p0 sums to 2 somewhere",
    ),
    "noise by number": (lambda: hdlm.Absorbing(10, 0.5), "noise = 0.5 is not accepted: it must be a Noise"),
    "tau-leaping out of infinite noise": (
        lambda: hdlm.Absorbing(2).tau_leap(torch.tensor(2), torch.ones(2), s=torch.tensor(0.5), t=torch.tensor(1.0)),
        "infinite noise",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_names_the_value_and_the_range(case):
    make, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        make()


KINDS = [
    lambda: hdlm.Absorbing(VOCAB),
    lambda: hdlm.Absorbing(VOCAB + 1),
    lambda: hdlm.Absorbing(VOCAB, hdlm.Cosine()),
    lambda: hdlm.Uniform(VOCAB),
    lambda: hdlm.GammaHybrid(VOCAB, 0.0),
    lambda: hdlm.GammaHybrid(VOCAB, 0.5),
    lambda: hdlm.GammaHybrid(VOCAB, 0.5, hdlm.LogLinear(0.1)),
    lambda: hdlm.EpsilonHybrid(VOCAB, 0.0),
    lambda: hdlm.EpsilonHybrid(VOCAB, 0.5),
]


def test_processes_are_equal_when_their_numbers_are():
    made = [make() for make in KINDS]
    for i, one in enumerate(made):
        assert [one == make() for make in KINDS] == [j == i for j in range(len(KINDS))]
        assert hash(one) == hash(KINDS[i]())
        assert one != repr(one)
    assert len({*made, *(make() for make in KINDS)}) == len(KINDS)


@pytest.mark.parametrize("process", PROCESSES, ids=repr)
def test_a_process_says_whether_mask_is_all_the_noise_there_is(process):
    channel = process.channel(at(0.5))
    assert process.masks_only == (channel.replace.item() == 0 and masks(process))
    assert process.has_scores == hasattr(process, "score")
    assert process.starts_masked == masks(process)


@pytest.mark.parametrize("process", PROCESSES, ids=repr)
def test_certain_stay_is_the_least_probability_of_staying(process):
    """Whatever p0 says; out of MASK it is exactly the probability."""
    s, t = at([0.0, 0.2, 0.5]), at([0.3, 0.2, 0.999])
    for xt in range(VOCAB + masks(process)):
        state = torch.full((3,), xt)
        laws = [process.posterior(state, p0.expand(3, -1), s=s, t=t)[:, xt] for p0 in one_hots()]
        least = process.certain_stay(process.is_mask(state), s=s, t=t)
        torch.testing.assert_close(least, torch.stack(laws).amin(0), rtol=1e-9, atol=1e-12)


def test_trusted_code_reads_no_values():
    with checks.trusted():
        hdlm.Absorbing(10).corrupt(torch.tensor([10]), torch.tensor([0.5]))


def test_epsilon_processes_have_no_score():
    assert not any(hasattr(process, "score") for process in EPSILON_PROCESSES)


def test_corrupt_builds_nothing_over_the_vocabulary():
    """A thousand million tokens: any tensor of that width would end the test."""
    process = hdlm.GammaHybrid(10**9, 0.5)
    xt = process.corrupt(torch.randint(10**9, (8, 1024)), torch.rand(8, 1))
    assert (xt == process.mask_id).any()


@pytest.mark.parametrize("process", [p for p in RATE_PROCESSES if masks(p)], ids=repr)
def test_tau_leaping_to_zero_gives_a_real_token(process):
    law = process.tau_leap(torch.tensor(VOCAB), torch.full((VOCAB,), 0.01), s=torch.tensor(0.0), t=torch.tensor(0.5))
    assert law[VOCAB] == 0
    assert law.sum() == pytest.approx(1.0)


def test_a_token_without_weight_is_never_drawn():
    """p0 rounded to 16 bits sums to a little less than 1; the missing weight belongs to nobody."""
    p0 = torch.tensor([0.0, 0.0, 0.0, 0.998]).bfloat16()
    xt = torch.full((20_000,), 3)
    drawn = hdlm.EpsilonHybrid(4, 0.3).sample_posterior(xt, p0, s=torch.tensor(0.0), t=torch.tensor(0.5))
    assert (drawn == 3).all()


PEAK = """
import resource, torch, hdlm
torch.set_num_threads(1)
process = hdlm.{process}
p0 = torch.rand(8, 1024, 50257).div_(50257 / 2)
xt = torch.randint(50258, (8, 1024))
t = torch.rand(8, 1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
process.{method}(xt, p0, s=t / 2, t=t)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print((after - before) / 2**20)
"""


@pytest.mark.slow
@pytest.mark.parametrize("process", [hdlm.GammaHybrid(50_257, 0.01), hdlm.EpsilonHybrid(50_257, 0.01)], ids=repr)
@pytest.mark.parametrize(("method", "gib"), [("posterior", 4.0 - 1.54), ("sample_posterior", 0.5)])
def test_memory_at_full_size(process, method, gib):
    """8 x 1,024 positions, in a fresh process that reports its peak.

    The input p0 has 1.54 GiB: with it the posterior fits in 4 GiB. A draw must not come near one more such tensor.
    """
    script = PEAK.format(process=repr(process).replace("noise=", "noise=hdlm."), method=method)
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert float(run.stdout) < gib


@pytest.mark.parametrize("process", [hdlm.Absorbing(5), hdlm.GammaHybrid(5, 0.3), hdlm.EpsilonHybrid(5, 0.1)], ids=repr)
def test_shapes_that_do_not_fit_are_named(process):
    tokens, times, law = torch.zeros(3, 4, dtype=torch.long), torch.ones(2, 4), torch.full((3, 4, 5), 0.2)
    s = times / 2
    calls = {
        r"x0 \(3, 4\), t \(2, 4\)": lambda: process.corrupt(tokens, times),
        r"p0 \(3, 4\), t \(2, 4\)": lambda: process.marginal(law, times),
        r"xt \(3, 4\), p0 \(3, 4\), s \(2, 4\), t \(2, 4\)": lambda: process.posterior(tokens, law, s=s, t=times),
        r"s \(4, 1\), t \(2, 4\)": lambda: process.posterior(tokens, law, s=s[:1].reshape(4, 1), t=times),
    }
    if process.has_scores:
        calls[r"xt \(3, 4\), t \(2, 4\)"] = lambda: process.score(tokens, law, times)
    for words, call in calls.items():
        with pytest.raises(ValueError, match=f"shapes do not fit together: .*{words}"):
            call()


@pytest.mark.parametrize("noise", [hdlm.LogLinear(1e-3), hdlm.Cosine(), hdlm.Geometric(1e-3, 20.0)], ids=repr)
@pytest.mark.parametrize("gamma", [0.0, 0.01, 0.3, 1.0])
def test_an_embedding_fades_by_the_noise_that_replaces_tokens(gamma, noise):
    """Eq. weightedtokenembedding: e^(-gamma sigma), with sigma = -log alpha."""
    t = torch.linspace(0, 0.99, 23, dtype=torch.float64)
    found = hdlm.GammaHybrid(7, gamma, noise=noise).embedding_weight(t)
    torch.testing.assert_close(found, noise.alpha(t) ** gamma)


@pytest.mark.parametrize("process", [hdlm.Absorbing(7), hdlm.EpsilonHybrid(7, 0.1), hdlm.Uniform(7)], ids=repr)
def test_where_the_paper_weighs_no_embedding_it_stays_whole(process):
    t = torch.linspace(0, 1, 5, dtype=torch.float64)
    assert (process.embedding_weight(t) == 1).all()
