"""The loss of a batch: chunked or whole, and equal to what naive passes, window by window, would add up to."""

import dataclasses

import numpy as np
import pytest
import torch
from support.networks import BOS_ID, VOCAB, network
from support.runs import tiny_recipe

import hdlm
from hdlm.config.process import ProcessConfig
from hdlm.config.recipe import LossSettings, MixtureMember, ModelSettings
from hdlm.data.packed import Rows
from hdlm.nn.transformer import CHUNK_ELEMENTS
from hdlm.objectives.bounds import training_objective
from hdlm.objectives.objective import NextToken
from hdlm.theory.averaging import averaged_times
from hdlm.theory.layout import NOTHING, inference_layout, next_token_layout
from hdlm.theory.reading import CleanReading
from hdlm.train.batch import Batches
from hdlm.train.loss import LossModule

LENGTH, ROWS = 11, 3


def make(kind, width, *, shifted, process=None, **changes):
    process = process or ProcessConfig("absorbing")
    schedules = (MixtureMember(kind, width),)
    recipe = tiny_recipe("x", length=LENGTH, shifted=shifted, schedules=schedules, process=process, **changes)
    rows = Rows(np.random.default_rng(0).integers(0, VOCAB, (5, LENGTH)))
    built = recipe.process.build(VOCAB)
    batches = Batches(recipe, rows, built, bos_id=BOS_ID, device=torch.device("cpu"))
    return built, batches.at(torch.arange(ROWS), global_batch=ROWS)


def as_double(batch):
    slots = dataclasses.replace(batch.slots, sigma=batch.slots.sigma.double(), weight=batch.slots.weight.double())
    active = dataclasses.replace(batch.active, t=batch.active.t.double())
    return dataclasses.replace(batch, slots=slots, active=active)


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize(("kind", "width"), [("block", 4), ("block", 1), ("slide", 4), ("flat", None)])
def test_the_doubled_loss_is_the_sum_of_naive_passes(kind, width, shifted):
    """Block and absorbing: the BD3-LM bound, each block given the clean text before it. Flat: the MDLM bound."""
    process, batch = make(kind, width, shifted=shifted, loss=LossSettings())
    batch, model = as_double(batch), network()
    total = LossModule(model, training_objective(CleanReading(process)))(batch)
    order = batch.active.slot.argsort()
    tokens = batch.slots.layout.predicts[batch.active.slot]
    x0, xt, t = (torch.empty(ROWS, LENGTH, dtype=x.dtype) for x in (batch.active.x0, batch.active.xt, batch.active.t))
    for found, values in ((x0, batch.active.x0), (xt, batch.active.xt), (t, batch.active.t)):
        found[:, tokens] = values
    windows = batch.slots.layout.window[batch.active.slot]
    expected = 0.0
    for number in windows.unique().tolist():
        inside = tokens[windows == number]
        start, stop = int(inside.min()), int(inside.max()) + 1
        layout = inference_layout(start, stop, shifted=shifted)
        slots = layout.fill(x0[:, :stop], xt[:, :stop], t[:, :stop], process, bos_id=BOS_ID)
        chosen = (layout.window == 0) & (layout.predicts != NOTHING)
        log_p = model(slots)[:, chosen].log_softmax(-1).gather(-1, x0[:, start:stop].unsqueeze(-1)).squeeze(-1)
        masked = xt[:, start:stop] == VOCAB
        expected = expected - (log_p / t[:, start:stop])[masked].sum()
    assert len(order) == LENGTH
    torch.testing.assert_close(total.active, expected)


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize(("kind", "width"), [("block", 4), ("slide", 4)])
def test_one_window_at_a_time_is_its_share_of_the_doubled_loss(kind, width, shifted):
    """The same draws of noise, the same losses, token by token; every window comes, as often as it has positions."""
    model, settled_loss = network(), LossSettings(beta1=0.5)
    recipe = tiny_recipe(
        "x", length=LENGTH, shifted=shifted, schedules=(MixtureMember(kind, width),), loss=settled_loss
    )
    rows = Rows(np.random.default_rng(0).integers(0, VOCAB, (5, LENGTH)))
    process = recipe.process.build(VOCAB)
    both = [
        Batches(dataclasses.replace(recipe, doubled=doubled), rows, process, bos_id=BOS_ID, device=torch.device("cpu"))
        for doubled in (True, False)
    ]
    objective, starts, shapes = training_objective(CleanReading(process)), [], set()
    for step in range(300):
        whole, part = (batches.at(torch.arange(2) + 2 * step, global_batch=2) for batches in both)
        tokens = part.slots.layout.predicts[part.active.slot]
        starts.append(int(tokens[0]))
        shapes.add(len(part.slots.layout))
        if step >= 12:
            continue
        found = {}
        for name, batch in (("whole", as_double(whole)), ("part", as_double(part))):
            features = model.trunk(batch.slots)[:, batch.active.slot]
            columns = (x.flatten() for x in (batch.active.xt, batch.active.x0, batch.active.t))
            losses = objective(model.head(features).flatten(0, 1), *columns).view(2, -1)
            found[name] = dict(zip(batch.slots.layout.predicts[batch.active.slot].tolist(), losses.T, strict=True))
        assert len(found["whole"]) == LENGTH
        for token, losses in found["part"].items():
            torch.testing.assert_close(losses, found["whole"][token])
        settled = part.slots.layout.predicts[part.settled.slot] if part.settled is not None else torch.tensor([])
        assert settled.tolist() == list(range(int(tokens[0])))
    assert shapes == {LENGTH + int(shifted)}
    if kind == "block":
        counts = [starts.count(start) for start in (0, 4, 8)]
        assert sum(counts) == 300
        assert counts == pytest.approx([300 * size / LENGTH for size in (4, 4, 3)], abs=40)


def test_quench_is_the_causal_likelihood():
    process, batch = make("quench", None, shifted=True, loss=LossSettings())
    batch, model = as_double(batch), network()
    total = LossModule(model, NextToken())(batch)
    assert total.active_tokens == ROWS * LENGTH
    inputs = torch.cat([torch.full((ROWS, 1), BOS_ID), batch.active.x0[:, :-1]], dim=1)
    expected = 0.0
    for end in range(1, LENGTH + 1):  # one prefix at a time, nothing to the right of it
        layout = next_token_layout(end - 1)
        x = torch.cat([inputs[:, 1:end], torch.zeros(ROWS, 1, dtype=torch.long)], dim=1)
        slots = layout.fill(x, x, torch.zeros(ROWS, end, dtype=torch.float64), process, bos_id=BOS_ID)
        expected = expected - model(slots)[:, -1].log_softmax(-1).gather(-1, batch.active.x0[:, end - 1 : end]).sum()
    torch.testing.assert_close(total.active, expected)


@pytest.mark.parametrize("process", [ProcessConfig("gamma", gamma=0.1), ProcessConfig("epsilon", epsilon=0.1)])
def test_chunks_change_neither_loss_nor_gradients(process, monkeypatch):
    if process.kind == "gamma":
        process = dataclasses.replace(process, noise=tiny_recipe("x").process.noise)
    built, batch = make("block", 4, shifted=True, process=process)
    batch, model = as_double(batch), network()
    module = LossModule(model, training_objective(CleanReading(built)))

    def run():
        model.zero_grad()
        result = module(batch)
        (result.active + result.settled).backward()
        gradients = [parameter.grad.clone() for parameter in model.parameters()]
        return result.active.item(), result.settled.item(), gradients

    whole = run()
    monkeypatch.setitem(CHUNK_ELEMENTS, "cpu", 5 * len(model.head.weight))
    assert len(model.head.chunks(ROWS * LENGTH)) > 1
    parts = run()
    assert parts[:2] == pytest.approx(whole[:2])
    for one, other in zip(whole[2], parts[2], strict=True):
        torch.testing.assert_close(one, other)


def test_the_scores_of_chunks_are_not_kept_but_found_again(monkeypatch):
    """Once on the way there, a chunk at a time, and once on the way back; of one chunk they are kept."""
    built, batch = make("block", 4, shifted=True, loss=LossSettings())
    batch, model = as_double(batch), network()
    module, calls = LossModule(model, training_objective(CleanReading(built))), []
    model.head.register_forward_hook(lambda head, given, scores: calls.append(len(scores)))
    result = module(batch)
    result.active.backward()
    assert calls == [ROWS * LENGTH]
    assert (result.settled.item(), result.settled_tokens) == (0, 0)
    monkeypatch.setitem(CHUNK_ELEMENTS, "cpu", 5 * len(model.head.weight))
    sizes = [rows.stop - rows.start for rows in model.head.chunks(ROWS * LENGTH)]
    calls.clear()
    loss = module(batch).active
    assert calls == sizes
    loss.backward()
    assert sorted(calls) == sorted(2 * sizes)


def test_settled_loss_is_the_next_token_where_shifted():
    _, batch = make("block", 4, shifted=True, loss=LossSettings(beta1=1.0, reweighted=True))
    assert batch.settled is not None
    tokens = batch.slots.layout.predicts[batch.settled.slot]
    assert tokens.tolist() == list(range(LENGTH))
    assert torch.equal(batch.settled.x0, batch.slots.token[:, 1 : LENGTH + 1])
    assert batch.settled.weight.tolist() == [0.0] * 4 + [0.5] * 4 + [1.0] * 3


def test_batches_do_not_depend_on_how_they_are_split():
    recipe = tiny_recipe("x", length=LENGTH)
    rows = Rows(np.random.default_rng(0).integers(0, VOCAB, (50, LENGTH)))
    process = hdlm.GammaHybrid(VOCAB, 0.05)
    batches = Batches(recipe, rows, process, bos_id=BOS_ID, device=torch.device("cpu"))
    for step in range(5):
        whole = batches.at(torch.arange(step * 8, step * 8 + 8), global_batch=8)
        part = batches.at(torch.arange(step * 8 + 5, step * 8 + 8), global_batch=8)
        assert torch.equal(part.slots.token, whole.slots.token[5:])
        assert torch.equal(part.active.t, whole.active.t[5:])


def test_the_mixture_keeps_its_shares():
    recipe = tiny_recipe("x")
    rows = Rows(np.zeros((4, recipe.length), dtype=np.int64))
    batches = Batches(recipe, rows, hdlm.GammaHybrid(VOCAB, 0.05), bos_id=BOS_ID, device=torch.device("cpu"))
    counts = torch.bincount(torch.tensor([batches.member(step) for step in range(4000)]), minlength=3)
    assert (counts / 4000).tolist() == pytest.approx([0.5, 0.25, 0.25], abs=0.03)


def test_autoregression_comes_first_where_the_recipe_says_so():
    recipe = tiny_recipe("x", shifted=True, steps=40, autoregressive_first=0.25)
    rows = Rows(np.zeros((4, recipe.length), dtype=np.int64))
    batches = Batches(recipe, rows, hdlm.GammaHybrid(VOCAB, 0.05), bos_id=BOS_ID, device=torch.device("cpu"))
    first = [batches.at(torch.arange(step * 4, step * 4 + 4), global_batch=4).autoregressive for step in range(40)]
    assert first == [True] * 10 + [False] * 30
    assert [share for _, share in recipe.members] == pytest.approx([0.375, 0.1875, 0.1875, 0.25])
    with pytest.raises(ValueError, match="autoregressive_first"):
        dataclasses.replace(recipe, shifted=False)


def ending_early(kind, width, end):
    """A batch of rows that end after `end` tokens."""
    recipe = tiny_recipe("x", length=LENGTH, schedules=(MixtureMember(kind, width),), loss=LossSettings(beta1=1.0))
    recipe = dataclasses.replace(recipe, process=ProcessConfig("absorbing"))
    tokens = np.random.default_rng(0).integers(0, VOCAB, (5, LENGTH))
    tokens[:, end:] = -1
    built = recipe.process.build(VOCAB)
    batches = Batches(recipe, Rows(tokens), built, bos_id=BOS_ID, device=torch.device("cpu"))
    return built, batches.at(torch.arange(ROWS), global_batch=ROWS)


def test_what_comes_after_a_rows_end_has_no_loss():
    end = 6
    process, batch = ending_early("quench", None, end)
    model = network()
    losses = LossModule(model, training_objective(CleanReading(process)))(as_double(batch))
    x0 = batch.active.x0[:, :end]
    layout = next_token_layout(end - 1)
    slots = layout.fill(x0, x0, torch.zeros(x0.shape, dtype=torch.float64), process, bos_id=BOS_ID)
    expected = -model(slots).log_softmax(-1).gather(-1, x0.unsqueeze(-1)).sum()
    assert torch.allclose(losses.active.double(), expected, rtol=1e-6)


@pytest.mark.parametrize(("kind", "width"), [("block", 4), ("slide", 4), ("flat", None)])
def test_the_end_of_a_row_takes_the_weight_away_and_cannot_be_seen(kind, width):
    end = 6
    process, batch = ending_early(kind, width, end)
    for targets in (batch.active, batch.settled):
        if targets is None:
            continue
        predicted = batch.slots.layout.predicts[targets.slot]
        assert torch.equal(targets.weight, (predicted < end).float().expand(targets.x0.shape))
    holds, noisy = batch.slots.layout.holds, batch.slots.layout.noisy
    assert (batch.slots.token[:, (holds >= end) & noisy] == process.mask_id).all()
    model = network()
    module = LossModule(model, training_objective(CleanReading(process)))
    before = module(as_double(batch)).active
    later = batch.slots.layout.predicts[batch.active.slot] >= end
    x0 = batch.active.x0.clone()
    x0[:, later] = (x0[:, later] + 1) % VOCAB
    after = module(as_double(dataclasses.replace(batch, active=dataclasses.replace(batch.active, x0=x0)))).active
    assert torch.equal(before, after)


@pytest.mark.parametrize(("kind", "width"), [("block", 4), ("slide", 4), ("flat", None)])
def test_averaged_weights_reach_the_loss_and_not_the_network(kind, width):
    loss, model = LossSettings(averaged=True), ModelSettings(layers=1, width=32, heads=2, conditioned=False)
    _, plain = make(kind, width, shifted=True, loss=LossSettings(), model=model)
    process, batch = make(kind, width, shifted=True, loss=loss, model=model, process=ProcessConfig("absorbing"))
    assert torch.equal(batch.slots.token, plain.slots.token)
    assert torch.equal(batch.slots.sigma, plain.slots.sigma)
    order = batch.slots.layout.predicts[batch.active.slot].argsort()
    offset = (
        int((batch.slots.layout.window[batch.slots.layout.window >= 0] == 0).sum()) - 1 if kind == "slide" else None
    )
    schedule = MixtureMember(kind, width).schedule(LENGTH).build()
    expected = averaged_times(schedule, process.is_mask(batch.active.xt[:, order]), offset=offset)
    assert torch.allclose(batch.active.t[:, order], expected)
    assert not torch.allclose(batch.active.t, plain.active.t)


def test_averaging_is_refused_where_the_time_is_read():
    with pytest.raises(ValueError, match=r"loss.averaged = True is not accepted"):
        tiny_recipe("x", loss=LossSettings(averaged=True))


def test_parts_of_a_batch_of_unequal_rows_add_up_to_it():
    recipe = tiny_recipe("x", length=LENGTH, schedules=(MixtureMember("block", 4),), loss=LossSettings(beta1=1.0))
    recipe = dataclasses.replace(recipe, process=ProcessConfig("absorbing"))
    tokens = np.random.default_rng(0).integers(0, VOCAB, (4, LENGTH))
    tokens[:2, 3:] = -1
    process = recipe.process.build(VOCAB)
    batches = Batches(recipe, Rows(tokens), process, bos_id=BOS_ID, device=torch.device("cpu"))
    module = LossModule(network(), training_objective(CleanReading(process)))

    def loss(indices):
        found = module(as_double(batches.at(indices, global_batch=4)))
        return len(indices) / 4 * (found.active / found.active_tokens + found.settled / found.settled_tokens)

    parts = [loss(indices) for indices in torch.arange(4).split(1)]
    assert torch.allclose(sum(parts), loss(torch.arange(4)), rtol=1e-6)
    lengths = batches.at(torch.arange(4), global_batch=4).active.weight.sum(1)
    assert sorted(lengths.tolist()) == [3, 3, 11, 11]


def test_chunks_are_even_and_cover_all_rows(monkeypatch):
    head = network().head
    monkeypatch.setitem(CHUNK_ELEMENTS, "cpu", 100 * len(head.weight))
    chunks = head.chunks(1001)
    assert [index for rows in chunks for index in range(1001)[rows]] == list(range(1001))
    sizes = [rows.stop - rows.start for rows in chunks]
    assert max(sizes) <= 100
    assert max(sizes) - min(sizes) <= len(chunks)
    assert head.chunks(0) == []
