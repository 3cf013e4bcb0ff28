"""Exact likelihoods of ordered decoding: they sum to 1, are the law's own with a network that knows it, and are refused
where they would not be exact.
"""

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.bundles import bundle
from support.enumeration import sequences
from support.oracle import Oracle, random_law

import hdlm
from hdlm.cli.main import main
from hdlm.config.process import NoiseConfig, ProcessConfig
from hdlm.evaluate.ordered import ORDERS, ordered_likelihood
from hdlm.theory.layout import inference_layout

pytestmark = pytest.mark.filterwarnings("ignore:.*trained on.*:UserWarning")
SCHEDULES = [hdlm.Block(3, 2), hdlm.Block(3, 3, 0.5), hdlm.Slide(3, 2), hdlm.Flat(3)]


def total(model, schedule, order):
    """The sum of the probabilities of all texts of three tokens after one that is given, where there may be one."""
    given = [5] if schedule.has_prefix else []
    rows = [[*given, *row] for row in sequences(11, 3).tolist()]
    how = {"prefix": len(given), "hyperschedule": schedule, "batch_size": 512}
    found = ordered_likelihood(model, rows, order, **how)
    return sum(math.exp(-nats) for nats in found.row_nats)


@pytest.mark.parametrize(("order", "schedule"), [*itertools.product(ORDERS, SCHEDULES)], ids=str)
@pytest.mark.parametrize("shifted", [False, True])
def test_all_texts_together_have_probability_1(order, schedule, shifted):
    model = bundle(process="absorbing", shifted=shifted, model={"layers": 1})
    assert total(model, schedule, order) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_a_network_that_knows_the_law_gives_the_law_in_any_order(order, schedule, monkeypatch):
    law = random_law(11, 3)
    model = bundle(process="absorbing", shifted=False, model={"layers": 1})
    oracle = Oracle(model.config.reading(model.process), law, 3)
    oracle.embedding, oracle.new_cache = model.model.embedding, lambda batch, capacity: None
    monkeypatch.setattr(model, "model", oracle)
    monkeypatch.setattr(type(model), "device", torch.device("cpu"))
    rows = torch.randint(11, (20, 3), generator=torch.Generator().manual_seed(0))
    found = ordered_likelihood(model, rows.tolist(), order, hyperschedule=schedule)
    expected = -law[(rows * 11 ** torch.arange(2, -1, -1)).sum(1)].log()
    torch.testing.assert_close(torch.tensor(found.row_nats, dtype=torch.float64), expected)


def test_left_to_right_by_hand():
    """Naive passes: a block's tokens from the left, those to come masked, each given all that is settled."""
    model, row = bundle(process="absorbing", shifted=True), [4, 2, 9, 7, 1]
    nats, mask = 0.0, model.process.mask_id
    for position in range(5):
        start = position // 2 * 2
        stop = min(start + 2, 5)
        layout = inference_layout(start, stop, shifted=True)
        held = torch.tensor([[token if i < position else mask for i, token in enumerate(row[:stop])]])
        slots = layout.fill(held, held, torch.full((1, stop), 0.5).double(), model.process, bos_id=model.config.bos_id)
        [slot] = ((layout.predicts == position) & (layout.window == 0)).nonzero().flatten().tolist()
        nats -= model.model(slots)[0, slot, :11].log_softmax(-1)[row[position]].item()
    found = ordered_likelihood(model, [row], "left-to-right", hyperschedule=hdlm.Block(5, 2))
    assert found.row_nats == pytest.approx([nats])
    assert found.name == "exact negative log-likelihood, left-to-right"


def test_it_is_the_probability_of_what_is_drawn():
    """The log-probabilities of samples by `certain`, one a step, sum to the likelihood of their texts."""
    model = bundle(process="absorbing")
    samples = model.generate(length=12, num_samples=5, seed=1, sampler="certain", temperature=1.0, logprobs=True)
    found = ordered_likelihood(model, samples.tokens, "certain", hyperschedule=hdlm.Block(12, 4))
    assert [-nats for nats in found.row_nats] == pytest.approx([sum(values) for values in samples.logprobs])


def test_rows_of_several_lengths_keep_their_places():
    model = bundle(process="absorbing")
    rows = [[1, 2, 3, 4, 5], [7, 8], [5, 4, 3, 2, 1], [9, 1]]
    told = []
    how = {"hyperschedule": hdlm.Block(8, 4)}
    together = ordered_likelihood(model, rows, "certain", **how, batch_size=1, progress=lambda *n: told.append(n))
    alone = [ordered_likelihood(model, [row], "certain", **how).row_nats[0] for row in rows]
    assert together.row_nats == pytest.approx(alone)
    assert told == [(n, 4) for n in (1, 2, 3, 4)]
    assert together.value == pytest.approx(sum(alone) / 14)


@pytest.mark.parametrize(
    ("process", "schedule", "order", "message"),
    [
        ("gamma", hdlm.Block(4, 2), "certain", "MASK alone"),
        ("absorbing", hdlm.Quench(4), "certain", "exact without one"),
        ("absorbing", hdlm.Block(4, 2), "sideways", "order = 'sideways' is not accepted"),
    ],
)
def test_what_would_not_be_exact_is_refused(process, schedule, order, message):
    with pytest.raises(ValueError, match=message):
        ordered_likelihood(bundle(process=process), [[1, 2, 3, 4]], order, hyperschedule=schedule)


def test_noise_that_settles_several_a_step_is_refused():
    plain = bundle(process="absorbing")
    config = replace(plain.config, process=ProcessConfig("absorbing", noise=NoiseConfig("cosine")))
    with pytest.raises(ValueError, match="settles several positions"):
        ordered_likelihood(hdlm.Bundle(plain.model, config), [[1] * 8], "certain", hyperschedule=hdlm.Block(8, 8))


def test_the_rate_counts_as_one():
    model, rows = bundle(process="absorbing"), [[1, 2, 3, 4]]
    found = [ordered_likelihood(model, rows, "certain", hyperschedule=hdlm.Block(4, 4, rate)).value for rate in (1, 4)]
    assert found[0] == found[1]


def test_on_the_command_line_and_in_python(tmp_path, capsys):
    model = bundle(process="absorbing")
    model.save(tmp_path / "model")
    rows = np.random.default_rng(0).integers(0, 11, (3, 24)).astype(np.uint16)
    np.save(tmp_path / "rows.npy", rows)
    how = ["--data", str(tmp_path / "rows.npy"), "--metrics", "bound", "--json"]
    assert main(["evaluate", str(tmp_path / "model"), *how, "--order", "certain"]) == 0
    [cell] = json.loads(capsys.readouterr().out)["cells"]
    assert cell["result"]["name"] == "exact negative log-likelihood, certain"
    python = hdlm.load(tmp_path / "model").perplexity(rows.astype(int).tolist(), order="certain")
    assert cell["result"]["value"] == pytest.approx(python.value)
    assert main(["evaluate", str(tmp_path / "model"), *how, "--order", "any"]) == 2
    assert "order = 'any' is not accepted" in capsys.readouterr().err
    assert main(["evaluate", str(tmp_path / "model"), "--order", "certain"]) == 2
    assert "without text to score" in capsys.readouterr().err
