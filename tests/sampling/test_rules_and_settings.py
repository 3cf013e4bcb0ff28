"""Which rule draws, and with what settings: what is asked for, what the model wishes, what the default is."""

import json
from dataclasses import replace

import pytest
import torch
from support.bundles import bundle, letters, score_bundle

import hdlm
from hdlm.bundle import Bundle
from hdlm.config.bundle import BundleConfig
from hdlm.config.process import NoiseConfig, ProcessConfig
from hdlm.config.sampling import DrawSettings
from hdlm.sampling.rng import SampleRNG
from hdlm.sampling.rule import Times

pytestmark = pytest.mark.filterwarnings("ignore:.*trained on.*:UserWarning")


def test_flawed_draws_follow_their_weights_all_the_same():
    """The draw of earlier work goes wrong only far out in the tail, below about 2^-24."""
    law = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    random = SampleRNG(0, torch.arange(2000), flawed=True).step(0, torch.arange(4))
    drawn = random.draw(law.expand(2000, 4, -1))
    counts = torch.bincount(drawn.flatten(), minlength=4).double()
    assert ((counts - 8000 * law) ** 2 / (8000 * law)).sum() < 25


@pytest.mark.parametrize("schedule", [hdlm.Block(9, 3), hdlm.Quench(9)], ids=repr)
@pytest.mark.parametrize("temperature", [1e-6, 1e-38, 1e-40])
def test_tiny_temperatures_are_greedy(schedule, temperature):
    model = bundle(dtype=torch.float32, process="absorbing")
    tokens = [
        model.generate(hyperschedule=schedule, temperature=t, sampler=None, seed=0).tokens for t in (0, temperature)
    ]
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize("sampler", ["posterior", "original", "certain", "confidence", "remask"])
def test_score_networks_start_from_infinite_noise(sampler):
    """Where every score out of MASK is infinite, their ratios still tell the token; with gamma > 0 nothing does."""
    with pytest.raises(ValueError, match="say nothing at t = 1"):
        score_bundle(ProcessConfig("gamma", noise=NoiseConfig("linear"), gamma=0.2)).generate(length=4)
    model = score_bundle(ProcessConfig("absorbing", noise=NoiseConfig("linear")))
    samples = model.generate(length=9, rate=4, sampler=sampler, num_samples=20, seed=0)
    assert max(max(row) for row in samples.tokens) < 11


def test_autoregression_reads_logits_whatever_the_parameterisation():
    """Settled slots learn cross-entropy: what they say is no score."""
    process = ProcessConfig("gamma", noise=NoiseConfig("loglinear"), gamma=0.5)
    as_score = score_bundle(process)
    as_clean = Bundle(as_score.model, replace(as_score.config, parameterization="clean"), letters())
    found = [m.generate(hyperschedule=hdlm.Quench(12), num_samples=8, seed=0).tokens for m in (as_score, as_clean)]
    assert found[0] == found[1]


def test_a_models_own_temperature_is_what_nothing_else_asks_for():
    plain = bundle()
    config = replace(plain.config, sampling=DrawSettings(temperature=0.0))
    cold = Bundle(plain.model, config, plain.tokenizer)
    asked = {"num_samples": 2, "length": 12, "seed": 5}
    assert cold.generate(**asked).tokens == plain.generate(temperature=0.0, **asked).tokens
    assert cold.generate(temperature=1.0, **asked).tokens == plain.generate(**asked).tokens
    assert plain.generate(temperature=None, **asked).tokens == plain.generate(**asked).tokens


def test_a_models_own_rule_is_what_nothing_else_asks_for():
    plain = bundle(process="absorbing")
    own = DrawSettings(sampler="certain", threshold=0.2)
    config = replace(plain.config, sampling=own)
    model = Bundle(plain.model, config, plain.tokenizer)
    asked = {"num_samples": 2, "length": 12, "seed": 5}
    certain = plain.generate(sampler="certain", threshold=0.2, **asked).tokens
    assert model.generate(**asked).tokens == certain
    assert model.generate(sampler="original", **asked).tokens == plain.generate(**asked).tokens != certain
    assert model.generate(threshold=1.0, **asked).tokens == plain.generate(sampler="certain", **asked).tokens
    ar = {"hyperschedule": hdlm.Quench(12), "num_samples": 2, "seed": 5}
    assert model.generate(**ar).tokens == plain.generate(**ar).tokens
    assert BundleConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


@pytest.mark.parametrize(
    ("process", "own", "words"),
    [
        ("absorbing", {"threshold": 0.5}, "without a sampler"),
        ("absorbing", {"sampler": "ar"}, "sampler = 'ar' is not accepted"),
        ("absorbing", {"sampler": "sure"}, "sampler = 'sure' is not accepted"),
        ("epsilon", {"sampler": "acs", "threshold": 0.5}, r"threshold = 0\.5 is not accepted for sampler 'acs'"),
        ("uniform", {"sampler": "certain", "threshold": 0.2}, "needs a process that masks"),
        ("absorbing", {"seed": 1}, r"sampling\.seed is not accepted"),
    ],
)
def test_a_model_cannot_wish_for_what_does_not_fit_it(process, own, words):
    with pytest.raises(ValueError, match=words):
        bundle(process=process, sampling=DrawSettings(**own))


def test_settings_beside_a_rule_that_has_none_of_them_are_refused():
    model = bundle(process="absorbing", sampling=DrawSettings(sampler="certain", threshold=0.2))
    with pytest.raises(ValueError, match="it has its own"):
        model.generate(sampler=hdlm.Certain(), threshold=0.5)
    with pytest.raises(ValueError, match=r"eta = 0\.5 is not accepted for sampler 'certain'"):
        model.generate(eta=0.5)


def test_a_rule_may_be_given_by_name_or_as_an_object():
    model, asked = bundle(process="epsilon"), {"num_samples": 2, "length": 12, "seed": 5}
    named = model.generate(sampler="acs", eta=0.4, **asked)
    assert model.generate(sampler=hdlm.AdaptiveCorrection(0.4), **asked).tokens == named.tokens
    assert named.tokens != model.generate(sampler="acs", eta=0.0, **asked).tokens


def test_samples_know_what_they_were_drawn_with():
    """The settings of a sample, given back to the model, write it again."""
    model = bundle(process="epsilon", sampling=DrawSettings(sampler="acs", eta=0.3, temperature=2.0))
    first = model.generate("ab", length=12, width=6, rate=0.5)
    used = dict(first.settings[0])
    assert (used["sampler"], used["eta"], used["temperature"], used["precision"]) == ("acs", 0.3, 2.0, "float64")
    schedule = used.pop("hyperschedule")
    assert (schedule["kind"], schedule["width"], schedule["rate"]) == ("block", 6, 0.5)
    assert used.pop("steps") == 24
    how = {"length": schedule["length"], "kind": schedule["kind"], "width": schedule["width"], "rate": schedule["rate"]}
    again = bundle(process="epsilon").generate("ab", seed=first.seed, **how, **used)
    assert again.tokens == first.tokens


@pytest.mark.parametrize("process", [hdlm.EpsilonHybrid(11, 0.1), hdlm.GammaHybrid(11, 0.2)], ids=repr)
def test_correction_redraws_with_probability_eta_times_what_stays(process):
    """Algorithm 4: eta (1 - p_transfer), p_transfer by Bayes' rule on the two masking probabilities."""
    t, s = torch.tensor([0.9, 0.6, 0.3], dtype=torch.float64), torch.tensor([0.8, 0.2, 0.0], dtype=torch.float64)
    masked_t, masked_s = process.channel(t).mask, process.channel(s).mask
    wanted = 0.3 * (1 - (masked_t - masked_s) / masked_t)
    event = torch.arange(10_000, dtype=torch.float64).unsqueeze(1).expand(-1, 3) / 10_000
    free, masked = torch.ones(10_000, 3, dtype=torch.bool), torch.zeros(10_000, 3, dtype=torch.bool)
    redrawn = hdlm.AdaptiveCorrection(0.3).needs(masked, free, Times(process, s, t), event)
    torch.testing.assert_close(redrawn.double().mean(0), wanted, rtol=0, atol=2e-4)


def test_the_precision_of_draws_reaches_them():
    model, how = bundle(process="absorbing"), {"length": 16, "num_samples": 4, "seed": 0}
    plain, flawed = (model.generate(precision=precision, **how).tokens for precision in ("float64", "float32"))
    assert plain == model.generate(**how).tokens != flawed
