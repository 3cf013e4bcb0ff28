import pytest
import torch
from support.networks import BOS_ID, STYLES, VOCAB, batch, network

import hdlm
from hdlm.config.model import DenoiserConfig
from hdlm.nn.transformer import Denoiser
from hdlm.theory.layout import build_layout, training_layout
from hdlm.theory.levels import spread


def fresh(style="paper", **changes):
    return Denoiser(DenoiserConfig(vocab_size=VOCAB, layers=2, width=32, heads=4, **(STYLES[style] | changes)))


@pytest.mark.parametrize("style", STYLES)
def test_an_untrained_network_knows_nothing(style):
    """Zero head: every token equally likely, whatever the input."""
    x0, xt, t, process = batch(6)
    out = fresh(style)(training_layout(hdlm.Flat(6), shifted=False).fill(x0, xt, t.float(), process))
    assert out.shape == (2, 6, VOCAB)
    assert (out == 0).all()


def test_adaln_zero_starts_as_the_identity():
    model = fresh()
    x0, xt, t, process = batch(6)
    slots = training_layout(hdlm.Flat(6), shifted=False).fill(x0, xt, t.float(), process)
    embedded = model.embed(slots.token, slots.weight)
    torch.testing.assert_close(model.trunk(slots), model.head.norm(embedded))


def test_levels_are_computed_once_and_picked_per_slot():
    """One row of the table per distinct level gives what one row per slot gives."""
    model = network()
    x0, xt, t, process = batch(8)
    t = t[:, :2].repeat_interleave(4, dim=1)
    windows = [(0, 4), (4, 8)]
    few = build_layout(8, windows, shifted=True, one_level_a_window=True)
    many = build_layout(8, windows, shifted=True)
    assert len(few.level_token) == 3
    assert len(many.level_token) == 11
    one, other = (model(layout.fill(x0, xt, t, process, bos_id=BOS_ID)) for layout in (few, many))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    table = torch.randn(2, 3, 5)
    rows = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2])
    torch.testing.assert_close(spread(table, ((1, 4), (2, 2))), table[:, rows])


def test_conditioning_is_per_position():
    """The noise of one position changes that position's output; without attention to it, no other."""
    model = network(layers=1)
    x0, xt, t, process = batch(4, rows=1)
    layout = training_layout(hdlm.Block(4, 1), shifted=False)
    other = t.clone()
    other[0, 2] = t[0, 2] / 2
    changed = model(layout.fill(x0, xt, t, process)) != model(layout.fill(x0, xt, other, process))
    assert changed.any(-1)[0].nonzero().flatten().tolist() == [6]


def test_infinite_noise_is_finite_to_the_network():
    process = hdlm.Absorbing(VOCAB)
    x0 = torch.zeros(1, 4, dtype=torch.long)
    slots = training_layout(hdlm.Flat(4), shifted=False).fill(x0, x0, torch.ones(1, 4), process)
    assert slots.sigma.isinf().any()
    assert network().float()(slots).isfinite().all()


def test_weighted_embedding_fades_into_mask():
    model = network()
    token = torch.tensor([[1, 2, VOCAB]])
    weight = torch.tensor([[1.0, 0.25, 0.5]], dtype=torch.float64)
    table = model.embedding
    x = model.embed(token, weight)[0]
    torch.testing.assert_close(x[0], table[1])
    torch.testing.assert_close(x[1], 0.25 * table[2] + 0.75 * table[VOCAB])
    torch.testing.assert_close(x[2], table[VOCAB])


def test_tokens_alone_are_no_slots():
    with pytest.raises(TypeError, match=r"reads Slots, not Tensor: bundle.logits\(token_ids\)"):
        network()(torch.zeros(1, 4, dtype=torch.long))


def test_trunk_and_head_apart():
    model = network()
    x0, xt, t, process = batch(6)
    slots = training_layout(hdlm.Flat(6), shifted=False).fill(x0, xt, t, process)
    chosen = torch.tensor([1, 4])
    torch.testing.assert_close(model.head(model.trunk(slots)[:, chosen]), model(slots)[:, chosen])


def test_parameters_are_counted_without_padding():
    config = DenoiserConfig(vocab_size=VOCAB, layers=1, width=8, heads=2, conditioned=False, hidden=16)
    attention, mlp, norms = 4 * 8 * 8, 2 * 8 * 16 + 16 + 8, 3 * 8
    assert Denoiser(config).num_parameters == (VOCAB + 1) * 8 + attention + mlp + norms + VOCAB * 8


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_training_step_reaches_every_parameter(dtype):
    model = network().to(dtype)
    x0, xt, t, process = batch(6)
    layout = training_layout(hdlm.Block(6, 3), shifted=True)
    model(layout.fill(x0, xt, t.to(dtype), process, bos_id=BOS_ID)).logsumexp(-1).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in model.parameters())


BAD = {
    "no layers": {"layers": 0},
    "heads that do not divide": {"heads": 5},
    "groups that do not divide": {"kv_heads": 3},
    "odd heads": {"heads": 32},
    "dropout 1": {"dropout": 1.0},
    "tied to fewer rows": {"tied": True, "mask_output": True, "mask_embedding": False},
}


@pytest.mark.parametrize("case", BAD)
def test_bad_settings_are_refused(case):
    with pytest.raises(ValueError, match="not accepted"):
        DenoiserConfig(**({"vocab_size": VOCAB, "layers": 1, "width": 32, "heads": 4} | BAD[case]))
