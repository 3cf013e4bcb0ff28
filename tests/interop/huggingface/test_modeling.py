"""The network of an exported folder against our own: the same logits, cached and padded too, for every style."""

import pytest
import torch
from support.exported import NETWORKS, NOISES, exported

import hdlm
from hdlm.theory.layout import inference_layout

transformers = pytest.importorskip("transformers")


def opened(bundle, folder):
    """The exported folder of a bundle as transformers has it, by the file that is copied there."""
    from hdlm.interop.huggingface.modeling_hdlm import HDLMForCausalLM

    hdlm.export(bundle, folder)
    return HDLMForCausalLM.from_pretrained(folder).eval()


def tokens_of(rows, columns, seed=0):
    """Rows that begin with BOS."""
    tokens = torch.randint(11, (rows, columns), generator=torch.Generator().manual_seed(seed))
    tokens[:, 0] = 3
    return tokens


@pytest.mark.parametrize("name", NETWORKS)
def test_logits_are_ours_whole_cached_and_padded(name, tmp_path):
    bundle = exported(name)
    model, tokens = opened(bundle, tmp_path), tokens_of(2, 9)
    assert model.dtype == torch.float64
    wanted = bundle.logits(tokens[:, 1:])
    with torch.no_grad():
        whole = model(tokens, use_cache=True)
        torch.testing.assert_close(whole.logits[:, 1:], wanted, rtol=0, atol=1e-10)
        assert whole.past_key_values.get_seq_length() == 9
        last = model(tokens, logits_to_keep=1).logits
        torch.testing.assert_close(last, whole.logits[:, -1:], rtol=0, atol=1e-10)
        cache, found = None, []
        for piece in tokens.split([4, 1, 1, 3], dim=1):
            out = model(piece, past_key_values=cache, use_cache=True)
            cache, found = out.past_key_values, [*found, out.logits]
        torch.testing.assert_close(torch.cat(found, dim=1), whole.logits, rtol=0, atol=1e-10)
        padded = torch.cat([torch.full((2, 3), 5), tokens], dim=1)
        mask = (torch.arange(12) >= 3).long().expand(2, -1)
        found = model(padded, attention_mask=mask).logits[:, 3:]
        torch.testing.assert_close(found, whole.logits, rtol=0, atol=1e-10)


def window_of(bundle, tokens, times, start):
    """Our own scores of a window, through the layout of a generation step; tokens without BOS."""
    layout = inference_layout(start, tokens.shape[1], shifted=bundle.config.shifted, block=block_of(bundle))
    noise = torch.ones(tokens.shape, dtype=torch.float64)
    noise[:, start:] = times
    slots = layout.fill(tokens, tokens, noise, bundle.process, bos_id=bundle.config.bos_id)
    with torch.no_grad():
        scores = bundle.model(slots)[..., :11]
    return scores[:, -(tokens.shape[1] - start) - bundle.config.shifted :][:, : tokens.shape[1] - start]


def block_of(bundle):
    return bundle.config.hyperschedule.width if bundle.config.block_causal else None


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        *((name, {}) for name in NETWORKS if name != "no MASK"),
        ("adaLN, weighted", {"shifted": False, "next_token": False}),
        ("unconditioned", {"shifted": False, "next_token": False, "block_causal": True}),
        *(("adaLN, weighted", {"noise": noise}) for noise in NOISES if noise != "cosine"),
        ("adaLN, plain head", {"noise": "cosine"}),
    ],
)
def test_windows_are_ours(name, changes, tmp_path):
    """Every slot at a time of its own, as in a slide, and with the text before it in a cache or not."""
    bundle = exported(name, **changes)
    model, shift = opened(bundle, tmp_path), bundle.config.shifted
    tokens, start, times = tokens_of(2, 12)[:, 1:], 4, torch.linspace(0.1, 1.0, 7, dtype=torch.float64)
    tokens[:, 5:9] = torch.where(torch.arange(4) % 2 == 0, model.config.mask_token_id, tokens[:, 5:9])
    wanted = window_of(bundle, tokens, times, start)
    given = torch.cat([torch.full((2, 1), 3), tokens], dim=1) if shift else tokens
    with torch.no_grad():
        found = model.denoise(given, times, start + shift)
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)
        cache = transformers.DynamicCache()
        for _ in range(2):  # the second time the text before is cached
            found = model.denoise(given, times, start + shift, past_key_values=cache)
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)
            assert cache.get_seq_length() == 4


def test_labels_give_the_loss_of_the_next_token_and_gradients(tmp_path):
    bundle = exported("tied, drafts")
    model, tokens = opened(bundle, tmp_path), tokens_of(2, 9)
    out = model(tokens, labels=tokens)
    law = out.logits.float().log_softmax(-1)[:, :-1]
    wanted = -law.gather(-1, tokens[:, 1:].unsqueeze(-1)).mean()
    torch.testing.assert_close(out.loss, wanted, rtol=0, atol=1e-6)
    shares = [model(row, labels=row, num_items_in_batch=16).loss for row in tokens.split(1)]  # as a Trainer has it
    torch.testing.assert_close(sum(shares), wanted.float(), rtol=0, atol=1e-6)
    out.loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert model.head.weight is model.embedding.weight


def test_what_the_network_cannot_say_is_refused(tmp_path):
    model = opened(exported("unconditioned", shifted=False, next_token=False), tmp_path)
    with pytest.raises(ValueError, match="this network is aligned: it predicts the tokens of a window"):
        model(torch.tensor([[1, 2]]))
    model = opened(exported("unconditioned"), tmp_path)
    with pytest.raises(ValueError, match="this network keeps neither"):
        model(torch.tensor([[3, 2]]), output_attentions=True)
    with pytest.raises(ValueError, match=r"attention_mask is not accepted: it must be \[batch, columns\]"):
        model(torch.tensor([[3, 2]]), attention_mask=torch.ones(1, 1, 2, 2))
    for start, count in ((0, 2), (1, 2), (3, 1)):
        with pytest.raises(ValueError, match=rf"start = {start} with {count} times is not accepted"):
            model.denoise(torch.tensor([[3, 2]]), torch.ones(count), start)


def test_a_network_of_a_configuration_alone_is_made_at_random():
    from hdlm.interop.huggingface.configuration_hdlm import HDLMConfig
    from hdlm.interop.huggingface.modeling_hdlm import HDLMForCausalLM

    model = HDLMForCausalLM(HDLMConfig(vocab_size=20, bos_token_id=1))
    logits = model(torch.tensor([[1, 2, 3]])).logits
    assert logits.shape == (1, 3, 20)
    assert logits.isfinite().all()
    assert model.config.mask_token_id == 20
    assert 0.015 < model.embedding.weight.std() < 0.025


def test_no_slot_is_left_with_nothing_to_see(tmp_path, monkeypatch):
    """Not padding either: of a row of nothing some attention kernels make numbers that are none."""
    model, masks = opened(exported("unconditioned"), tmp_path), []
    attend = torch.nn.functional.scaled_dot_product_attention

    def seen(q, k, v, mask, **how):
        masks.append(mask)
        return attend(q, k, v, mask, **how)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", seen)
    tokens, mask = tokens_of(2, 6), torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6])
    model(tokens, attention_mask=mask)
    model.denoise(tokens, torch.ones(5).double(), 1, attention_mask=mask)
    assert len(masks) == 4
    assert all(one.any(-1).all() for one in masks)
