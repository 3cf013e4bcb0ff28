import itertools

import pytest
import torch
from support.enumeration import Joint, drawn_loss, integrated_loss

import hdlm
from hdlm.objectives.masked import masked_bound
from hdlm.objectives.score_entropy import score_entropy
from hdlm.theory import dense
from hdlm.theory.parameterization import clean_to_score

GAMMAS = [0.0, 0.01, 0.3, 1.0]


def dense_loss(process, log_score, xt, x0, t):
    """The definition: forward rates z -> xt times the Bregman term, one z at a time."""
    rates = dense.hybrid_generator(process.vocab_size, process.gamma)
    ratios = dense.ratios(process, xt, x0, t)
    total = 0.0
    for z in range(process.vocab_size):
        if z != xt and rates[xt, z] > 0:
            s, r = log_score[z].exp(), ratios[z]
            total += rates[xt, z] * (s - torch.xlogy(r, s) + torch.xlogy(r, r) - r)
    return process.noise.rate(torch.tensor(t, dtype=torch.float64)) * total


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("vocab_size", [2, 5])
def test_it_is_the_definition(gamma, vocab_size):
    process = hdlm.GammaHybrid(vocab_size, gamma)
    for t, xt, x0 in itertools.product([0.05, 0.5, 0.95], range(vocab_size + (gamma < 1)), range(vocab_size)):
        if gamma == 0 and xt not in (x0, vocab_size):
            continue
        log_score = torch.randn(vocab_size, dtype=torch.float64)
        if xt < vocab_size:
            log_score[xt] = 0.0
        args = (torch.tensor(xt), torch.tensor(x0), torch.tensor(t, dtype=torch.float64))
        loss = score_entropy(process, log_score, *args)
        torch.testing.assert_close(loss, torch.as_tensor(dense_loss(process, log_score, xt, x0, t), dtype=loss.dtype))
        assert loss >= 0


@pytest.mark.parametrize("gamma", GAMMAS)
def test_it_is_zero_at_the_true_ratios(gamma):
    process = hdlm.GammaHybrid(5, gamma)
    x0 = torch.randint(5, (200,))
    t = 0.01 + 0.98 * torch.rand(200, dtype=torch.float64)
    xt = process.corrupt(x0, t)
    log_pi = torch.nn.functional.one_hot(x0, 5).double().log()
    loss = score_entropy(process, clean_to_score(process, log_pi, xt, t), xt, x0, t)
    assert loss.abs().max() < 1e-9


def test_what_can_go_nowhere_costs_nothing_whatever_its_scores():
    """With gamma = 0 a token that is no MASK is where it stays."""
    log_score = torch.full((2, 5), 800.0, dtype=torch.float64)
    t = torch.full((2,), 0.5, dtype=torch.float64)
    loss = score_entropy(hdlm.GammaHybrid(5, 0.0), log_score, torch.tensor([3, 3]), torch.tensor([3, 3]), t)
    assert loss.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("noise", [hdlm.LogLinear(), hdlm.Cosine()], ids=repr)
def test_gamma_0_is_the_masked_bound(noise):
    """SEDD-absorb in the clean parameterisation is MDLM, position by position."""
    process = hdlm.Absorbing(7, noise)
    x0, t = torch.randint(7, (500,)), 0.01 + 0.9 * torch.rand(500, dtype=torch.float64)
    xt = process.corrupt(x0, t)
    log_pi = torch.randn(500, 7, dtype=torch.float64).log_softmax(-1)
    loss = score_entropy(process, clean_to_score(process, log_pi, xt, t), xt, x0, t)
    target = log_pi.gather(-1, x0.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(loss, masked_bound(noise, target, process.is_mask(xt), t))


@pytest.mark.parametrize("gamma", [0.0, 0.3, 1.0])
def test_gradients_are_finite_at_every_state_and_time(gamma):
    process = hdlm.GammaHybrid(5, gamma, hdlm.LogLinear())
    t = torch.tensor([0.0, 1e-6, 0.5, 1.0], dtype=torch.float64).repeat(3)
    x0 = torch.full_like(t, 3, dtype=torch.long)
    xt = torch.tensor([3, 1, 5]).repeat_interleave(4)
    kept = ((xt == 3) | (t > 0)) & ((xt < 5) | (gamma < 1)) & ((xt != 1) | (gamma > 0))
    xt, x0, t = xt[kept], x0[kept], t[kept]
    logits = torch.randn(len(t), 5, dtype=torch.float64, requires_grad=True)
    loss = score_entropy(process, clean_to_score(process, logits.log_softmax(-1), xt, t), xt, x0, t)
    assert loss.isfinite().all()
    loss.sum().backward()
    assert logits.grad.isfinite().all()
    assert logits.grad.abs().sum() > 0


def test_masked_bound_has_no_gradient_where_nothing_is_masked():
    log_prob = torch.tensor([-1.0, -2.0], requires_grad=True)
    masked_bound(hdlm.Linear(), log_prob, torch.tensor([False, True]), torch.tensor([0.0, 0.5])).sum().backward()
    assert log_prob.grad.tolist() == [0.0, -2.0]


def test_infinite_noise_is_refused():
    process = hdlm.Absorbing(5)
    with pytest.raises(ValueError, match="infinite noise"):
        score_entropy(process, torch.zeros(5), torch.tensor(5), torch.tensor(1), torch.tensor(1.0))


SCHEDULES = [hdlm.Flat(3), hdlm.Block(3, 2), hdlm.Block(3, 1), hdlm.Slide(3, 2), hdlm.Slide(3, 3, 0.5)]
SCRAMBLED = hdlm.Custom([[3, 3, 3], [3, 1, 2], [3, 0, 2], [3, 0, 2], [1, 0, 0], [0, 0, 0]])


@pytest.mark.parametrize("gamma", [0.0, 0.2, 1.0])
def test_path_independence(gamma):
    """With exact scores every hyperschedule integrates to the same information: what noise had destroyed.

    alpha(1) > 0 here, so the denoiser sees the worthless positions too, as the identity demands.
    """
    torch.manual_seed(3)
    joint = Joint(hdlm.GammaHybrid(2, gamma, hdlm.LogLinear(0.05)), 3)
    if gamma == 1:
        joint = Joint(hdlm.Uniform(2, hdlm.LogLinear(0.05)), 3)
    clean, noise = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    destroyed = joint.information(clean) - joint.information(noise)
    assert destroyed > 0.5
    for schedule in SCHEDULES:
        assert integrated_loss(joint, schedule, score_entropy) == pytest.approx(destroyed, abs=2e-5), schedule
    assert drawn_loss(joint, SCRAMBLED, score_entropy) == pytest.approx(destroyed, abs=2e-5), "as training draws it"
