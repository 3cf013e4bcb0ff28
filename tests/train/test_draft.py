"""A draft head learns what autoregression would say, and the network stays as it was."""

import pytest
import torch
from support.bundles import bundle

from hdlm.train.draft import WINDOW, Windows, draft_loss, train_draft

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


def test_the_loss_is_the_cross_entropy_of_the_two_laws(trained):
    """Against a plain loop over windows and depths."""
    _, model, _ = trained
    network, draft = model.model, model.model.draft
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


def test_who_cannot_speculate_is_refused():
    with pytest.raises(ValueError, match="shifted networks whose process masks"):
        train_draft(bundle(process="absorbing", shifted=False))
    with pytest.raises(ValueError, match="texts = 0"):
        train_draft(bundle(process="absorbing"), texts=0)
