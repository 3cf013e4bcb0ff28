"""Llama, Qwen2 and Qwen3 layouts against `transformers`: tiny random ones, and the real stories15m."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.floors import FLOORS
from support.foreign import LAYOUTS, LLAMA3, our_logits, tiny
from tokenizers import AddedToken, Tokenizer, models, processors

import hdlm
from hdlm.interop import llama
from hdlm.theory.layout import next_token_layout

transformers = pytest.importorskip("transformers")

STORIES = Path(__file__).parents[3] / "shared" / "weights" / "stories15m"
needs_stories = pytest.mark.skipif(not STORIES.exists(), reason="the stories15m weights are not beside this checkout")


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


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": True},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}, "num_key_value_heads": 4},
        {"head_dim": 16},
        {"rope_parameters": LLAMA3 | {"rope_theta": 500.0}},
    ],
    ids=str,
)
def test_a_random_model_gives_the_logits_of_transformers(tmp_path, kind, changes):
    if kind == "qwen2" and "head_dim" in changes:
        pytest.skip("a Qwen2 config has no head_dim")
    model = tiny(tmp_path, kind, **({} if kind == "qwen2" else {"head_dim": 8}) | changes)
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
        ({"use_sliding_window": True}, "use_sliding_window = True"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "rope_parameters"),
        ({"rope_parameters": LLAMA3 | {"factor": 0.5}}, "factor must be at least 1"),
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


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("backend", FLOORS)
def test_greedy_text_is_that_of_transformers(tmp_path, kind, backend):
    model = tiny(tmp_path, kind, eos_token_id=None, pad_token_id=0)
    bundle = hdlm.load(tmp_path)
    prompts = [[7, 3, 9, 22], [5, 6]]
    found = bundle.generate(prompts, length=24, temperature=0, backend=backend, stop_at_eos=False)
    for prompt, tokens in zip(prompts, found.tokens, strict=True):
        start = torch.tensor([[bundle.config.bos_id, *prompt]])
        expected = model.generate(start, max_new_tokens=24, do_sample=False, attention_mask=torch.ones_like(start))
        assert tokens == expected[0, 1:].tolist()


def words(count, *, starts=False, ends=False):
    """A tokenizer of `count` words."""
    names = {f"w{number}": number for number in range(count - ends)}
    tokenizer = Tokenizer(models.WordLevel(names, unk_token="w0"))
    if ends:
        tokenizer.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
    if starts:
        tokenizer.post_processor = processors.TemplateProcessing("w1 $A", None, [("w1", 1)])
    return tokenizer


def test_rows_that_no_text_has_are_left_out(tmp_path):
    model = tiny(tmp_path, "qwen2", eos_token_id=3)
    words(44).save(str(tmp_path / "tokenizer.json"))
    bundle = hdlm.load(tmp_path)
    assert (bundle.config.model.vocab_size, bundle.tokenizer.get_vocab_size()) == (44, 44)
    tokens = torch.randint(44, (2, 12))
    tokens[:, 0] = 1
    with torch.no_grad():
        torch.testing.assert_close(our_logits(bundle, tokens), model(tokens).logits[..., :44], rtol=0, atol=1e-4)
    assert hdlm.load(tmp_path, tokenizer=False).config.model.vocab_size == 50
    bundle.save(tmp_path / "saved")
    again = hdlm.load(tmp_path / "saved")
    assert torch.equal(our_logits(again, tokens), our_logits(bundle, tokens))


@pytest.mark.parametrize(("how", "bos"), [({"ends": True}, 49), ({"starts": True, "ends": True}, 1), ({}, 1)])
def test_a_text_begins_after_what_the_tokenizer_writes_before_it_or_ends_the_one_before_with(tmp_path, how, bos):
    """A chat model is named the token that opens a message, which stands before no plain text."""
    tiny(tmp_path, "qwen3")
    words(50, **how).save(str(tmp_path / "tokenizer.json"))
    assert hdlm.load(tmp_path).config.bos_id == bos


def test_a_config_without_any_start_is_refused(tmp_path):
    tiny(tmp_path, "qwen2", bos_token_id=None, eos_token_id=None)
    with pytest.raises(ValueError, match="names neither bos_token_id nor eos_token_id"):
        hdlm.load(tmp_path)


def test_an_encoder_is_refused_by_name(tmp_path):
    config = transformers.BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    transformers.BertModel(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"config.json describes a model of the type 'bert'"):
        hdlm.load(tmp_path)


def test_what_would_feed_mask_to_a_network_without_one_is_refused(tmp_path):
    """Of 64 tokens, whose table has no row to spare."""
    tiny(tmp_path, vocab_size=64)
    bundle = hdlm.load(tmp_path)
    block = hdlm.Block(4, 2)
    asked = (
        lambda: bundle.generate([[3]], length=4, width=2, kind="block"),
        lambda: bundle.generate([[3]], length=4, kind="flat"),
        lambda: bundle.generate([[3]], length=4, sampler="speculative"),
        lambda: bundle.perplexity([[3, 4, 5, 6]], hyperschedule=block),
        lambda: bundle.perplexity([[3, 4, 5, 6]], hyperschedule=block, order="certain"),
    )
    for ask in asked:
        with pytest.raises(ValueError, match="is not accepted: it feeds MASK, and this network has no embedding of it"):
            ask()
    assert bundle.perplexity([[3, 4, 5, 6]]).name == "exact negative log-likelihood"
