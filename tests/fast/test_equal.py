"""The fast floor writes what the reference writes, token for token in float64, whatever is asked of it."""

import itertools

import pytest
import torch
from support.bundles import PROCESSES, SAMPLERS, bundle

import hdlm
from hdlm.config.bundle import BundleConfig
from hdlm.config.process import NoiseConfig, ProcessConfig
from hdlm.config.schedule import ScheduleConfig
from hdlm.fast.engine import sample
from hdlm.fast.predictor import SparsePrediction
from hdlm.sampling.generate import start_run
from hdlm.sampling.loop import Predictor
from hdlm.sampling.loop import sample as reference
from hdlm.sampling.request import prompt_request
from hdlm.sampling.rule import Prediction, State, Thinned

pytestmark = pytest.mark.filterwarnings("ignore:.*trained on.*:UserWarning")

IN_ORDER = [[3] * 6, [2, 2, 3, 3, 3, 3], [0, 1, 2, 3, 3, 3], [0, 0, 0, 1, 1, 2], [0] * 6]
SCRAMBLED = [[3] * 6, [2, 2, 2, 0, 0, 0], [1, 1, 2, 0, 0, 0], [0, 1, 1, 0, 0, 0], [0] * 6]
SCHEDULES = [
    hdlm.Block(13, 4),
    hdlm.Block(12, 5, 0.4),
    hdlm.Slide(11, 4, 0.5),
    hdlm.Flat(9, 0.5),
    hdlm.Quench(9),
    hdlm.Custom(IN_ORDER),
    hdlm.Custom(SCRAMBLED),
]
CASES = [
    (process, sampler, schedule)
    for process in PROCESSES
    for sampler, schedule in itertools.product([None, *SAMPLERS[process]], SCHEDULES)
    if sampler is None or not schedule.autoregressive
]


def both(model, prompt=None, **settings):
    """What the two floors write, and what it took them."""
    found = [model.generate(prompt, **settings, backend=backend) for backend in ("reference", "fast")]
    assert found[0].tokens == found[1].tokens
    assert found[0].ended == found[1].ended
    return found


def name(value):
    return f"{value.name} {value.rate:g}" if isinstance(value, hdlm.Hyperschedule) else str(value)


@pytest.mark.parametrize(("process", "sampler", "schedule"), CASES, ids=name)
def test_every_rule_process_and_schedule(process, sampler, schedule):
    """By turns with and without a cache, aligned and shifted, prompts of one length and of several."""
    prompts = [[[], []], [[5], [1, 2, 4]]]
    number = CASES.index((process, sampler, schedule))
    model = bundle(process=process, shifted=number % 2 == 0, model={"layers": 1})
    settings = {"hyperschedule": schedule, "sampler": sampler, "seed": number, "cache": number // 2 % 2 == 0}
    reference, fast = both(model, prompts[number // 4 % 2], **settings)
    assert fast.stats.network_calls + fast.stats.skipped_calls == reference.stats.network_calls
    assert fast.stats.head_slots <= reference.stats.head_slots


@pytest.mark.parametrize("how", [{"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.5}, {"temperature": 0.0}], ids=str)
@pytest.mark.parametrize("sampler", ["posterior", "acs", "certain", "confidence", "remask"])
def test_warped_laws(sampler, how):
    both(bundle(process="epsilon"), [[5], []], hyperschedule=hdlm.Block(12, 4), sampler=sampler, seed=3, **how)


@pytest.mark.parametrize("sampler", [None, "certain", "acs", "remask"])
def test_rows_that_end(sampler):
    model = bundle(process="epsilon", eos_id=2)
    for seed in range(3):
        samples, _ = both(model, num_samples=6, length=16, sampler=sampler, seed=seed)
    assert any(samples.ended)


@pytest.mark.parametrize("sampler", [None, "original", "certain", "remask"])
def test_gaps(sampler):
    for model, text in ((bundle("flat"), "ab[[gap:3]]cd e[[gap:2]]f"), (bundle("block", 6), "abcdefgh[[gap:3]]ij")):
        found = [model.infill(text, num_samples=3, seed=1, sampler=sampler, backend=b) for b in ("reference", "fast")]
        assert found[0].tokens == found[1].tokens


@pytest.mark.parametrize("sampler", [None, "certain", "posterior"])
def test_flawed_draws(sampler):
    both(bundle(process="gamma"), [[5], []], length=12, sampler=sampler, seed=3, precision="float32")


def test_thresholds_and_block_causal_networks():
    both(bundle(process="absorbing"), length=16, width=8, sampler="certain", threshold=0.15, seed=1, temperature=5.0)
    both(bundle(shifted=False, block_causal=True), [[1, 2], [1, 2, 3, 4, 5, 6]], length=9, seed=1)


@pytest.mark.parametrize(
    "schedule", [hdlm.Block(12, 4), hdlm.Slide(11, 4, 0.5), hdlm.Flat(9), hdlm.Quench(9)], ids=name
)
def test_blocks_of_other_peoples_style(schedule):
    """Biases of queries, keys and values, norms of queries and keys, stretched rotary waves."""
    for shifted in (True, False) if not schedule.autoregressive else (True,):
        model = bundle(process="absorbing", style="qwen", shifted=shifted)
        for cache in (True, False):
            both(model, [[5], [1, 2, 4]], hyperschedule=schedule, seed=2, cache=cache)


@pytest.mark.parametrize("process", ["gamma", "absorbing", "uniform"])
@pytest.mark.parametrize("sampler", [None, "posterior", "euler"])
def test_networks_that_give_scores(process, sampler):
    plain = bundle(process=process, style="plain")
    noise = ProcessConfig(process, noise=NoiseConfig("loglinear"), gamma=0.2 if process == "gamma" else None)
    schedule = ScheduleConfig("block", 24, width=4)
    config = BundleConfig(plain.model.config, noise, schedule, True, "score", bos_id=3, next_token=True)
    for schedule in (hdlm.Block(12, 4), hdlm.Slide(11, 4, 0.5), hdlm.Flat(9)):
        both(hdlm.Bundle(plain.model, config), [[5], []], hyperschedule=schedule, sampler=sampler, seed=3)


@pytest.mark.parametrize("sampler", [None, "original", "acs", "acs-paper", "certain"])
def test_networks_by_hdce(sampler):
    model = bundle(process="epsilon", parameterization="hdce")
    for schedule in (hdlm.Block(12, 4), hdlm.Slide(11, 4, 0.5), hdlm.Flat(9)):
        both(model, [[5], []], hyperschedule=schedule, sampler=sampler, seed=3)


def test_frames_are_those_of_the_reference():
    for sampler in ("posterior", "certain", "remask"):
        model = bundle(process="epsilon")
        how = {"length": 10, "seed": 2, "num_samples": 2, "sampler": sampler}
        streams = [model.stream([[5]], **how, backend=backend) for backend in ("reference", "fast")]
        for one, other in itertools.zip_longest(*streams):
            assert torch.equal(one.tokens, other.tokens)
            assert torch.equal(one.levels, other.levels)
            assert torch.equal(one.changed, other.changed)
            torch.testing.assert_close(one.confidence.double(), other.confidence.double(), equal_nan=True)
            torch.testing.assert_close(one.doubt.double(), other.doubt.double(), equal_nan=True)


def test_float32_agrees_almost_everywhere(capsys):
    """Rounding differs between the floors: how many tokens are the same is printed, not promised."""
    model, same = bundle(process="absorbing", dtype=torch.float32), []
    for seed in range(10):
        found = [model.generate(length=20, seed=seed, backend=backend).tokens[0] for backend in ("reference", "fast")]
        same += [a == b for a, b in zip(*found, strict=True)]
    with capsys.disabled():
        print(f"\n  float32, fast against reference: {sum(same) / len(same):.1%} of tokens equal", end="")
    assert sum(same) / len(same) > 0.9


class Lazy(Thinned):
    """A rule of nobody's: it needs the network wherever MASK may leave, and says so."""

    name = "lazy"

    def needs(self, masked, free, times, event):
        return masked & (event >= times.stay_masked)

    def draw(self, tokens, prediction, times, random):
        return prediction.p0.argmax(-1)


def test_a_rule_from_outside_runs_on_both_floors():
    model = bundle(process="absorbing")
    both(model, [[5], []], hyperschedule=hdlm.Block(12, 4), sampler=Lazy(), seed=0)
    request = prompt_request(model, [[5]], hyperschedule=hdlm.Block(12, 4))
    runs = [start_run(model, request.batches[0], request, 0, [0]) for _ in range(2)]
    for _ in sample(runs[0], watched=False, graphs=True):
        pass
    for _ in reference(runs[1], Predictor(runs[1])):
        pass
    assert torch.equal(runs[0].tokens, runs[1].tokens)


def test_a_sparse_prediction_says_what_the_whole_one_says_wherever_it_is_needed():
    """Every public member, for rules of anybody's; elsewhere nothing that is heard, and never an error."""
    model = bundle(process="gamma")
    run = start_run(model, prompt_request(model, [[5]]).batches[0], prompt_request(model, [[5]]), 0, [0])
    tokens, t = torch.tensor([[11, 3, 11, 4]]), torch.full((1, 4), 0.5, dtype=torch.float64)
    state = State(tokens, tokens == 11, torch.ones(1, 4, dtype=torch.bool))
    outputs, needed = torch.randn(1, 4, 11, dtype=torch.float64), torch.tensor([[True, False, True, True]])
    random = run.rng.step(0, torch.arange(4))
    whole = Prediction(outputs, tokens, t, run.reading, run.settings)
    sparse = SparsePrediction(run, outputs[needed], needed, state, t)
    empty = SparsePrediction(run, None, needed & False, state, t)
    asked = {
        "draw": lambda one: one.draw(random),
        "certainty": lambda one: one.certainty(),
        "entropy": lambda one: one.entropy(),
        "probability": lambda one: one.probability(tokens),
        "log_probability": lambda one: one.log_probability(tokens),
        "likeliest": lambda one: one.likeliest(3)[1],
        "told": lambda one: one.told(tokens, False, 3)["likeliest"][0],
    }
    public = {name for name in dir(Prediction) if not name.startswith("_")}
    assert public == {"p0", "own_p0", "score", *asked}
    for member in sorted(public):
        say = asked.get(member, lambda one, member=member: getattr(one, member))
        torch.testing.assert_close(say(sparse)[needed], say(whole)[needed], equal_nan=True)
        assert say(empty).shape == say(whole).shape
