"""A draft head learns what autoregression would say, and the network stays as it was."""

import math
from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch
from support.bundles import CONTEXT, bundle

from hdlm.theory.layout import inference_layout, next_token_layout
from hdlm.train.draft import WINDOW, Windows, _fit, _texts, _windows, _with_draft, draft_loss, train_draft

pytestmark = pytest.mark.filterwarnings("ignore:.*trained on.*:UserWarning")


@pytest.fixture(scope="module")
def trained():
    """A bundle before and after, and what was told."""
    model, told = bundle(process="absorbing", dtype=torch.float32), []
    how = {"texts": 120, "epochs": 8, "width": 24, "batch_size": 64, "lr": 1e-2}
    return model, train_draft(model, **how, progress=lambda *words: told.append(words)), told


def test_the_network_is_as_it_was(trained):
    before, after, told = trained
    weights = after.model.state_dict()
    assert all(torch.equal(weights[name], value) for name, value in before.model.state_dict().items())
    assert set(weights) - set(before.model.state_dict()) == {"draft.inner.weight", "draft.outer.weight"}
    assert before.model.draft is None
    assert [done for what, done, of in told if what == "texts"][-1] == 120
    assert {what: of for what, _, of in told}["windows"] == 120
    assert not any(parameter.requires_grad for parameter in after.model.draft.parameters())


def test_more_of_a_draft_is_kept(trained):
    """By texts that were not among those of training, and the texts are the same."""
    before, after, _ = trained
    how = {"num_samples": 24, "length": 20, "seed": 999, "temperature": 1.0, "stop_at_eos": False}
    plain, better = (
        model.generate(sampler="speculative", draft=3, ahead="every", **how).stats for model in (before, after)
    )
    assert better.accepted / better.drafted > plain.accepted / plain.drafted + 0.02
    assert after.generate(sampler="speculative", **how).tokens == before.generate(sampler="ar", **how).tokens


def test_the_loss_is_the_cross_entropy_of_the_two_laws():
    """Against a plain loop over windows and depths."""
    model = bundle(process="absorbing", dtype=torch.float32)
    network = _with_draft(model, 24, torch.Generator().manual_seed(1))
    draft = network.draft
    draft.outer.weight.normal_(generator=torch.Generator().manual_seed(2))
    generator = torch.Generator().manual_seed(0)
    features, settled = (torch.randn(2, WINDOW, 32, generator=generator) for _ in range(2))
    previous = torch.randint(11, (2, WINDOW), generator=generator)
    found = draft_loss(network, draft, Windows(features, settled, previous), torch.tensor([1, 0]), model)
    for depth in range(1, WINDOW):
        losses = []
        for row in range(2):
            state = torch.zeros(1, 24)
            for at in range(depth + 1):
                said, state = draft(features[row, at][None], network.embedding[previous[row, at]][None], state)
            law = network.head(settled[row, depth])[:11].softmax(-1)
            losses.append(-(law * network.head(said[0])[:11].log_softmax(-1)).sum())
        torch.testing.assert_close(found[depth - 1], torch.stack(losses).mean())


def test_the_texts_are_those_of_autoregression_at_two_temperatures():
    """In calls of at most 96, each with a seed of its own."""
    calls, told = [], []

    def generate(**how):
        calls.append(how)
        return SimpleNamespace(tokens=[[len(calls)] * how["length"]] * how["num_samples"])

    model = SimpleNamespace(config=SimpleNamespace(context=CONTEXT), generate=generate)
    found = _texts(model, 300, 3, lambda *words: told.append(words))
    shared = {"kind": "quench", "length": CONTEXT - 1, "top_p": 1.0, "batch_size": 96, "stop_at_eos": False}
    sizes, temperatures = [96, 96, 96, 12], [1.0, 1.0, 0.6, 1.0]
    assert calls == [
        {"num_samples": size, "temperature": temperature, "seed": 3 * 2**16 + turn, **shared}
        for turn, (size, temperature) in enumerate(zip(sizes, temperatures, strict=True))
    ]
    assert found[:, 0].tolist() == [1] * 96 + [2] * 96 + [3] * 96 + [4] * 12
    assert found.shape == (300, CONTEXT - 1)
    assert told == [("texts", done, 300) for done in (96, 192, 288, 300)]


def test_windows_tile_texts_and_know_what_the_network_makes_of_each():
    """Against one pass for each window alone, and one over the text for each token's settled slot."""
    model, told = bundle(process="absorbing"), []
    rows = torch.randint(11, (20, CONTEXT - 1), generator=torch.Generator().manual_seed(1))
    found = _windows(model, rows, torch.Generator().manual_seed(2), lambda *words: told.append(words))
    again = torch.Generator().manual_seed(2)
    expected = []
    for first, last in ((0, 16), (16, 20)):
        offset = int(torch.randint(1, 7, (), generator=again))
        for row in rows[first:last]:
            expected += [(row, at) for at in range(offset, CONTEXT - 1 - WINDOW + 1, WINDOW)]
    assert len(found) == len(expected)
    for number, (row, at) in list(enumerate(expected))[::7]:
        x0, masks, noise = row[None], torch.full((1, CONTEXT - 1), 11), torch.ones(1, CONTEXT - 1)
        layout = inference_layout(at, at + WINDOW, shifted=True)
        features = model.model.trunk(layout.fill(x0, masks, noise, model.process, bos_id=3))[0]
        own = [int((layout.predicts == at + depth).nonzero()) for depth in range(WINDOW)]
        torch.testing.assert_close(found.features[number].double(), features[own], rtol=2e-3, atol=2e-3)
        for depth in range(WINDOW):
            layout = next_token_layout(at + depth)
            said = model.model.trunk(layout.fill(x0, masks, noise, model.process, bos_id=3))[0, -1]
            torch.testing.assert_close(found.settled[number, depth].double(), said, rtol=2e-3, atol=2e-3)
        assert found.previous[number].tolist() == row[at - 1 : at + WINDOW - 1].tolist()
    assert told == [("windows", 16, 20), ("windows", 20, 20)]
    assert found.features.dtype == found.settled.dtype == torch.float16


def test_windows_begin_anywhere():
    model = bundle(process="absorbing")
    rows = torch.arange(CONTEXT - 1)[None] % 11
    firsts = {
        int(_windows(model, rows, torch.Generator().manual_seed(seed), lambda *_: None).previous[0, 0])
        for seed in range(40)
    }
    assert firsts == set(range(WINDOW))


def test_an_untrained_draft_head_changes_nothing():
    before = bundle(process="absorbing")
    model = _with_draft(before, 24, torch.Generator().manual_seed(4))
    weights = before.model.state_dict()
    assert all(torch.equal(model.state_dict()[name], value) for name, value in weights.items())
    inner = torch.randn(24, 2 * 32 + 24, generator=torch.Generator().manual_seed(4)) * 0.03
    assert torch.equal(model.draft.inner.weight, inner.double())
    assert not model.draft.outer.weight.any()
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert model.config.draft_width == 24


def test_a_draft_head_is_fitted_by_adamw_with_a_rate_that_warms_up_and_falls():
    """On batches by lot, where a token counts a tenth less than the one before it."""
    before = bundle(process="absorbing")
    model = _with_draft(before, 8, torch.Generator().manual_seed(4))
    draft, expected = model.draft, deepcopy(model.draft).requires_grad_(True)
    generator = torch.Generator().manual_seed(5)
    features, settled = (torch.randn(45, WINDOW, 32, generator=generator).double() for _ in range(2))
    windows = Windows(features, settled, torch.randint(11, (45, WINDOW), generator=generator))
    told, seeded = [], torch.Generator().manual_seed(6)
    _fit(model, draft, windows, before, 14, 10, 0.05, seeded, lambda *words: told.append(words))
    again = torch.Generator().manual_seed(6)
    orders = [torch.randperm(45, generator=again) for _ in range(14)]
    optimizer = torch.optim.AdamW(expected.parameters(), betas=(0.9, 0.98), weight_decay=0.01)
    for step in range(56):
        falling = 0.05 + 0.95 * math.cos(math.pi / 2 * step / 56) ** 2
        optimizer.param_groups[0]["lr"] = 0.05 * min(1, (step + 1) / 50) * falling
        chosen = orders[step // 4][step % 4 * 10 : step % 4 * 10 + 10]
        losses = draft_loss(model, expected, windows, chosen, before)
        optimizer.zero_grad()
        sum(weight * loss / 4 for weight, loss in zip((1, 0.9, 0.8, 0.7, 0.6), losses, strict=True)).backward()
        optimizer.step()
    for found, wanted in zip(draft.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-7)
        assert not found.requires_grad
    assert told == [("steps", step + 1, 56) for step in range(56)]


def test_a_batch_larger_than_all_windows_is_all_of_them():
    before = bundle(process="absorbing")
    model = _with_draft(before, 8, torch.Generator().manual_seed(4))
    windows = Windows(*(torch.randn(5, WINDOW, 32) for _ in range(2)), torch.zeros(5, WINDOW, dtype=torch.long))
    told = []
    _fit(model, model.draft, windows, before, 2, 10, 0.01, torch.Generator(), lambda *words: told.append(words))
    assert told == [("steps", 1, 2), ("steps", 2, 2)]
    assert model.draft.outer.weight.any()


@pytest.mark.parametrize("name", ["texts", "epochs", "width", "batch_size"])
def test_counts_are_at_least_one(name):
    with pytest.raises(ValueError, match=f"{name} = 0"):
        train_draft(bundle(process="absorbing"), **{name: 0})


def test_who_cannot_speculate_is_refused():
    with pytest.raises(ValueError, match="shifted networks whose process masks"):
        train_draft(bundle(process="absorbing", shifted=False))
    with pytest.raises(ValueError, match="shifted networks whose process masks"):
        train_draft(bundle(process="uniform"))


def test_the_least_of_everything_is_enough_and_a_seed_is_one_head():
    """And its settings are those of the bundle before, but for the head's width."""
    before = bundle(process="absorbing")
    first, again, other = (
        train_draft(before, texts=1, epochs=1, width=1, batch_size=1, seed=seed) for seed in (1, 1, 2)
    )
    weights = [model.model.draft.inner.weight for model in (first, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert not first.model.training
    assert vars(first.config) | {"model": 0} == vars(before.config) | {"model": 0}
    assert first.config.model == first.model.config
    assert first.tokenizer is before.tokenizer
