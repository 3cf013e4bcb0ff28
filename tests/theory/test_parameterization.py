import itertools

import pytest
import torch
from support.processes import PROCESSES, RATE_PROCESSES, VOCAB

import hdlm
from hdlm.theory import dense
from hdlm.theory.parameterization import clean_to_score, output_to_clean, output_to_score, score_offset, score_to_clean


@pytest.mark.parametrize("process", RATE_PROCESSES, ids=repr)
def test_clean_to_score_is_the_mixture_of_dense_ratios(process):
    log_pi = torch.randn(VOCAB, dtype=torch.float64).log_softmax(0)
    for t, xt in itertools.product([1e-3, 0.2, 0.9], range(process.num_states)):
        if process.gamma == 1 and xt == VOCAB:
            continue
        pi = log_pi.exp()
        if process.gamma == 0 and xt < VOCAB:
            pi = torch.nn.functional.one_hot(torch.tensor(xt), VOCAB).double()
        columns = [dense.ratios(process, xt, x0, t)[:VOCAB] for x0 in range(VOCAB)]
        expected = sum(p * column for p, column in zip(pi, columns, strict=True) if p > 0)
        score = clean_to_score(process, log_pi, torch.tensor(xt), torch.tensor(t, dtype=torch.float64)).exp()
        torch.testing.assert_close(score, expected, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("process", RATE_PROCESSES, ids=repr)
def test_score_to_clean_inverts(process):
    xt = torch.randint(process.num_states, (300,))
    if process.gamma == 1:
        xt = xt.clamp(max=VOCAB - 1)
    t = 0.01 + 0.9 * torch.rand(300, dtype=torch.float64)
    log_pi = torch.randn(300, VOCAB, dtype=torch.float64).log_softmax(-1)
    back = score_to_clean(process, clean_to_score(process, log_pi, xt, t), xt, t)
    expected = log_pi.exp()
    if process.gamma == 0:
        tokens = xt < VOCAB
        expected[tokens] = torch.nn.functional.one_hot(xt[tokens], VOCAB).double()
    torch.testing.assert_close(back.exp(), expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("gamma", [0.0, 0.01, 0.5, 1.0])
@pytest.mark.parametrize("vocab_size", [2, 50_257, 200_000])
def test_float32_is_stable_from_tiny_to_huge_noise(gamma, vocab_size):
    """float32 against float64 from sigma = 1e-4 to 20, on laws from sharp to flat."""
    noise = hdlm.Geometric(1e-5, 20.0)
    process = hdlm.GammaHybrid(vocab_size, gamma, noise)
    sigma = torch.tensor([1e-4, 1e-2, 1.0, 5.0, 20.0])
    t = noise.time(sigma).clamp(max=1.0)
    for sharpness in (0.0, 1.0, 10.0):
        log_pi = (torch.randn(5, vocab_size) * sharpness).log_softmax(-1)
        states = [log_pi.argmax(-1), log_pi.argmin(-1)]
        if gamma < 1:
            states.append(torch.full((5,), vocab_size))
        for xt in states:
            single = clean_to_score(process, log_pi, xt, t)
            double = clean_to_score(process, log_pi.double(), xt, t.double())
            assert not single.isnan().any()
            finite = double.isfinite()
            assert torch.equal(finite, single.isfinite())
            assert (single.double() - double)[finite].abs().max() < 2e-4
            back = score_to_clean(process, single, xt, t)
            exact = score_to_clean(process, single.double(), xt, t.double())
            assert not back.isnan().any()
            assert (back.double().exp() - exact.exp()).abs().sum(-1).max() < 2e-3


def test_round_trip_in_float32_where_the_score_still_tells():
    process = hdlm.GammaHybrid(50_257, 0.01)
    xt = torch.tensor([50_257, 3, 50_257, 7])
    t = torch.tensor([0.1, 0.3, 0.9, 0.999])
    log_pi = (torch.randn(4, 50_257) * 3).log_softmax(-1)
    back = score_to_clean(process, clean_to_score(process, log_pi, xt, t), xt, t)
    assert (back.exp() - log_pi.exp()).abs().sum(-1).max() < 1e-2


def test_scores_of_hopeless_tokens_keep_their_logarithm():
    process, log_pi = hdlm.Absorbing(4), torch.tensor([0.0, -50.0, -120.0, -200.0])
    mask, t = torch.tensor(4), torch.tensor(0.4)
    back = score_to_clean(process, clean_to_score(process, log_pi, mask, t), mask, t)
    torch.testing.assert_close(back, log_pi, rtol=0, atol=1e-3)


def test_states_and_laws_broadcast():
    process, log_pi = hdlm.GammaHybrid(VOCAB, 0.3), torch.zeros(VOCAB).log_softmax(0)
    score = clean_to_score(process, log_pi, torch.tensor([0, VOCAB]), torch.tensor(0.5))
    assert score.shape == (2, VOCAB)
    assert score_to_clean(process, score, torch.tensor([0, VOCAB]), torch.tensor([0.5])).shape == (2, VOCAB)


@pytest.mark.parametrize("process", RATE_PROCESSES, ids=repr)
def test_offset_is_the_score_of_the_uninformed_network(process):
    """Raw output 0: out of MASK a uniform clean token's, out of a token as if that token were the clean one."""
    t = torch.tensor(0.4, dtype=torch.float64)
    raw = torch.zeros(VOCAB, dtype=torch.float64)
    token = output_to_score(process, raw, torch.tensor(1), t).exp()
    expected = dense.ratios(process, 1, 1, 0.4)[:VOCAB]
    torch.testing.assert_close(token, expected, rtol=1e-9, atol=1e-12)
    if process.mask_id is not None and process.gamma < 1:
        column = dense.transition(process, 0.0, 0.4)[:, 0]
        odds = (1 - column[VOCAB]) / column[VOCAB]
        torch.testing.assert_close(score_offset(process, torch.tensor(VOCAB), t).exp(), odds / VOCAB)


@pytest.mark.parametrize("process", PROCESSES, ids=repr)
def test_equal_outputs_are_bayes_rule_for_a_uniform_token(process):
    t = torch.tensor(0.3, dtype=torch.float64)
    for xt in range(process.num_states):
        joint = dense.transition(process, 0.0, 0.3)[xt, :VOCAB]
        if joint.sum() > 1e-12:
            pi = output_to_clean(process, torch.zeros(VOCAB, dtype=torch.float64), torch.tensor(xt), t).exp()
            torch.testing.assert_close(pi, joint / joint.sum(), rtol=1e-9, atol=1e-12)


def test_a_learned_score_is_brought_to_a_law():
    process = hdlm.GammaHybrid(VOCAB, 0.3)
    wild = torch.randn(200, VOCAB, dtype=torch.float64) * 4
    xt = torch.randint(VOCAB + 1, (200,))
    t = torch.rand(200, dtype=torch.float64).clamp(0.01, 0.99)
    log_pi = score_to_clean(process, output_to_score(process, wild, xt, t), xt, t)
    torch.testing.assert_close(log_pi.exp().sum(-1), torch.ones(200, dtype=torch.float64))
    law = process.tau_leap(xt, output_to_score(process, wild, xt, t).exp(), s=t / 2, t=t)
    assert (law >= 0).all()
    torch.testing.assert_close(law.sum(-1), torch.ones(200, dtype=torch.float64))
