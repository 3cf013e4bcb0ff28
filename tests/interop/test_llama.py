"""Llama-layout checkpoints against `transformers`: a tiny random one, and the real stories15m."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import hdlm
from hdlm.interop import llama
from hdlm.theory.layout import build_layout, next_token_layout

transformers = pytest.importorskip("transformers")
STORIES = Path(__file__).parents[3] / "shared" / "weights" / "stories15m"
needs_stories = pytest.mark.skipif(not STORIES.exists(), reason="the stories15m weights are not beside this checkout")


def tiny(folder, **changes):
    settings = {
        "vocab_size": 50,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**(settings | changes))).eval()
    model.save_pretrained(folder)
    return model


def our_logits(bundle, tokens):
    """Next-token logits of rows that start with BOS, through the causal layout."""
    x = tokens[:, 1:]
    layout = build_layout(x.shape[1], [], shifted=True)
    slots = layout.fill(x, x, torch.zeros_like(x, dtype=torch.float32), bundle.process, bos_id=bundle.config.bos_id)
    with torch.no_grad():
        return bundle.model(slots)


def our_cached_logits(bundle, tokens):
    """The same, one token at a time through the cache."""
    x, cache = tokens[:, 1:], bundle.model.new_cache(tokens.shape[0], tokens.shape[1] + 1)
    times = torch.zeros_like(x, dtype=torch.float32)
    rows = []
    with torch.no_grad():
        for j in range(x.shape[1]):
            layout = next_token_layout(j, cached=cache.settled[0])
            slots = layout.fill(x, x, times, bundle.process, bos_id=bundle.config.bos_id)
            rows.append(bundle.model(slots, cache=cache)[:, -1])
    return torch.stack(rows, dim=1)


@pytest.mark.parametrize(
    "changes", [{}, {"tie_word_embeddings": True}, {"rope_theta": 500.0, "num_key_value_heads": 4}, {"head_dim": 16}]
)
def test_a_random_llama_gives_the_logits_of_transformers(tmp_path, changes):
    model = tiny(tmp_path, **changes)
    bundle = hdlm.load(tmp_path)
    tokens = torch.randint(50, (3, 20))
    tokens[:, 0] = 1
    with torch.no_grad():
        expected = model(tokens).logits
    torch.testing.assert_close(our_logits(bundle, tokens), expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(our_cached_logits(bundle, tokens), expected[:, :-1], rtol=0, atol=1e-4)
    torch.testing.assert_close(bundle.logits(tokens[:, 1:]), expected[:, 1:], rtol=0, atol=1e-4)


@needs_stories
def test_stories15m_gives_the_logits_of_transformers():
    model = transformers.LlamaForCausalLM.from_pretrained(STORIES, dtype=torch.float32).eval()
    bundle = hdlm.load(STORIES)
    assert bundle.model.num_parameters == sum(parameter.numel() for parameter in model.parameters())
    generator = torch.Generator().manual_seed(0)
    tokens = torch.ones(2, 64, dtype=torch.long)
    with torch.no_grad():  # text that the model itself finds likely
        for i in range(1, 64):
            law = model(tokens[:, :i]).logits[:, -1].softmax(-1)
            tokens[:, i] = torch.multinomial(law, 1, generator=generator)[:, 0]
        expected = model(tokens).logits
    torch.testing.assert_close(our_logits(bundle, tokens), expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(our_cached_logits(bundle, tokens), expected[:, :-1], rtol=0, atol=1e-4)


def edit(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_shards_are_read_through_their_index(tmp_path):
    tiny(tmp_path / "whole")
    data = load_file(tmp_path / "whole" / "model.safetensors")
    parts = tmp_path / "parts"
    parts.mkdir()
    (parts / "config.json").write_text((tmp_path / "whole" / "config.json").read_text())
    names = sorted(data)
    shards = {"a.safetensors": names[:5], "b.safetensors": names[5:]}
    for file, chosen in shards.items():
        save_file({name: data[name] for name in chosen}, parts / file)
    index = {"weight_map": {name: file for file, chosen in shards.items() for name in chosen}}
    (parts / "model.safetensors.index.json").write_text(json.dumps(index))
    one, other = llama.load_denoiser(tmp_path / "whole"), llama.load_denoiser(parts)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling"),
        ({"num_hidden_layers": 3}, r"lacks model\.layers\.2\.input_layernorm\.weight.* more tensors"),
        ({"num_hidden_layers": 1}, r"also holds model\.layers\.1\.input_layernorm\.weight"),
        ({"intermediate_size": 40}, r"mlp\.gate_proj\.weight of shape \(48, 32\): it must be \(40, 32\)"),
        ({"num_key_value_heads": 1}, r"self_attn\.k_proj\.weight of shape"),
        ({"vocab_size": 45}, r"model\.embed_tokens\.weight of shape \(50, 32\): it must be \(45, 32\)"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ],
)
def test_what_we_cannot_compute_is_refused_by_name(tmp_path, changes, message):
    tiny(tmp_path)
    edit(tmp_path, **changes)
    with pytest.raises(ValueError, match=message):
        hdlm.load(tmp_path)


def test_a_missing_setting_is_named(tmp_path):
    tiny(tmp_path)
    path = tmp_path / "config.json"
    data = json.loads(path.read_text())
    del data["hidden_size"]
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match="lacks hidden_size"):
        hdlm.load(tmp_path)
