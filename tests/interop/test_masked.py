"""LLaDA, Dream and SDAR: the logits of the published code at random weights, and their use as bundles."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.floors import FLOORS
from support.foreign import tiny
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

import hdlm
from hdlm.interop.byte_level import qwen_tokenizer
from hdlm.interop.masked import without_token
from hdlm.theory.layout import inference_layout

PARITY = Path(__file__).parent / "parity"
MASK, ROWS = 50, 64  # of the parity folders and of the tiny SDAR


def ours_of(tokens):
    """Their token ids as ours: those above the mask one lower, the mask last."""
    return torch.where(tokens == MASK, ROWS - 1, tokens - (tokens > MASK).long())


def view(bundle, tokens, start=0):
    """What our network says of each slot of a window from `start` on, where all before is settled."""
    ours, masked = ours_of(tokens), ours_of(tokens) == ROWS - 1
    shift, block = int(bundle.config.shifted), 4 if bundle.config.block_causal else None
    noisy, t = ours[:, shift:], masked[:, shift:].float()
    layout = inference_layout(start, noisy.shape[1], shifted=bundle.config.shifted, block=block)
    clean = noisy.clamp(max=ROWS - 2)
    with torch.no_grad():
        return bundle.model(layout.fill(clean, noisy, t, bundle.process, bos_id=1))


@pytest.mark.parametrize(("name", "shifted", "start"), [("dream", True, 1), ("llada", False, None)])
def test_logits_are_those_of_the_published_code(name, shifted, start):
    """For every slot, those that hold the mask and those that do not; the mask's own column is not there."""
    bundle, recorded = hdlm.load(PARITY / name), load_file(PARITY / name / "outputs.safetensors")
    assert (bundle.config.shifted, bundle.config.bos_id, bundle.config.eos_id) == (shifted, start, 3)
    assert (bundle.hyperschedule.name, bundle.config.context) == ("flat", 64)
    assert bundle.process.mask_id == bundle.config.model.vocab_size == ROWS - 1
    expected = recorded["logits"][..., [column for column in range(ROWS) if column != MASK]]
    torch.testing.assert_close(view(bundle, recorded["tokens"]), expected, rtol=0, atol=1e-4)


def sdar(folder, **changes):
    """A Qwen3 under SDAR's name."""
    model = tiny(folder, "qwen3", vocab_size=ROWS, head_dim=8)
    config = json.loads((folder / "config.json").read_text()) | {"model_type": "sdar", "mask_token_id": MASK}
    (folder / "config.json").write_text(json.dumps(config | changes))
    return model


def test_sdar_is_a_qwen_whose_tokens_see_their_block(tmp_path):
    pytest.importorskip("transformers")
    model = sdar(tmp_path)
    bundle = hdlm.load(tmp_path)
    assert (bundle.hyperschedule.name, bundle.config.block_causal) == ("block 4", True)
    assert not bundle.config.shifted
    tokens = torch.randint(MASK, (2, 12))
    tokens[:, 8:] = torch.tensor([MASK, 7, MASK, MASK])
    block = torch.arange(12) // 4
    seen = block.unsqueeze(0) <= block.unsqueeze(1)
    with torch.no_grad():
        bias = torch.where(seen, 0.0, torch.finfo(torch.float32).min).expand(2, 1, 12, 12)
        expected = model(tokens, attention_mask=bias).logits
    found = view(bundle, tokens, start=8)
    assert found.shape == (2, 12, ROWS - 1)
    kept = [column for column in range(ROWS) if column != MASK]
    torch.testing.assert_close(found, expected[..., kept], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["dream", "llada", "sdar"])
def test_it_writes_is_scored_and_saved(tmp_path, name):
    folder = PARITY / name
    if name == "sdar":
        folder = tmp_path / "sdar"
        sdar(folder, block_size=4)
    bundle = hdlm.load(folder)
    for sampler in (None, "certain"):
        how = {"length": 12, "seed": 1, "sampler": sampler}
        found = [bundle.generate([[1, 2, 3], [4, 5, 6, 7, 8]], backend=b, **how) for b in FLOORS]
        assert all(one.tokens == found[0].tokens for one in found)
        assert all(token < ROWS - 1 for row in found[0].tokens for token in row)
    bound = bundle.perplexity([[1, 5, 6, 7, 8, 9, 10, 11]], samples=8)
    assert bound.name == "masked bound"
    assert bound.value > 1
    bundle.save(tmp_path / "saved")
    again = hdlm.load(tmp_path / "saved")
    assert again.generate([[1, 2]], length=8, seed=2).tokens == bundle.generate([[1, 2]], length=8, seed=2).tokens


def words(count, mask):
    """A tokenizer of words, the mask among those that were added at its end."""
    tokenizer = Tokenizer(models.WordLevel({f"w{number}": number for number in range(mask - 2)}, unk_token="w0"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.WhitespaceSplit(), decoders.Fuse()
    marks = ["<|end|>", "<|start|>", "<|mask|>", *(f"<|more{number}|>" for number in range(count - mask - 1))]
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in marks])
    tokenizer.post_processor = processors.TemplateProcessing("$A <|more0|>", None, [("<|more0|>", mask + 1)])
    return tokenizer


def test_ids_above_the_mask_are_one_lower_in_the_tokenizer_too(tmp_path):
    shutil.copytree(PARITY / "llada", tmp_path / "model")
    theirs = words(60, MASK)
    theirs.save(str(tmp_path / "model" / "tokenizer.json"))
    config = json.loads((tmp_path / "model" / "config.json").read_text()) | {"eos_token_id": 52}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    (tmp_path / "model" / "chat_template.jinja").write_text("{{ messages[0].content }}")
    bundle = hdlm.load(tmp_path / "model")
    assert (bundle.config.model.vocab_size, bundle.tokenizer.get_vocab_size()) == (59, 59)
    assert bundle.tokenizer.token_to_id("<|mask|>") is None
    assert bundle.tokenizer.id_to_token(bundle.config.eos_id) == "<|more1|>"
    text = "w3 <|start|> w7 <|more5|>"
    assert bundle.tokenizer.encode(text).ids == [i - (i > MASK) for i in theirs.encode(text).ids]
    assert bundle.chat_template is not None
    tokens = torch.tensor([[3, MASK, 55]])
    expected = hdlm.load(PARITY / "llada")
    ours, columns = torch.tensor([[3, 59, 54]]), [*range(59)]
    layout = inference_layout(0, 3, shifted=False)
    with torch.no_grad():
        found = bundle.model(layout.fill(ours.clamp(max=58), ours, (ours == 59).float(), bundle.process))
    torch.testing.assert_close(found, view(expected, tokens)[..., columns])
    assert hdlm.load(tmp_path / "model", tokenizer=False).config == bundle.config


def test_a_mask_that_is_the_last_token_leaves_all_ids_as_they_are():
    tokenizer = words(MASK + 2, MASK)
    tokenizer = without_token(tokenizer, MASK + 1, source=Path("x"))
    assert tokenizer.get_vocab_size() == MASK + 1
    assert tokenizer.token_to_id("<|mask|>") == MASK


def test_a_folder_of_qwens_kind_has_its_tokenizer_in_several_files(tmp_path):
    folder = tmp_path / "dream"
    shutil.copytree(PARITY / "dream", folder)
    alphabet = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHI"
    vocabulary = {sign: number for number, sign in enumerate([*alphabet, "ab", "abc"])}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("#version: 0.2\na b\nab c\n")
    added = {"47": "<|endoftext|>", "48": "<|beginoftext|>", "49": "<think>", str(MASK): "<|mask|>"}
    listed = {number: {"content": mark, "special": mark.startswith("<|")} for number, mark in added.items()}
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": listed}))
    bundle = hdlm.load(folder)
    assert (bundle.config.model.vocab_size, bundle.config.bos_id) == (50, 48)
    assert bundle.tokenizer.encode("<think>").tokens == ["<think>"]
    assert bundle.tokenizer.decode(bundle.tokenizer.encode("12<|endoftext|>").ids) == "12"
    assert isinstance(bundle.generate("12", length=4, seed=1).text[0], str)
    listed["52"] = {"content": "<|far|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": listed}))
    with pytest.raises(ValueError, match=r"gives '<\|far\|>' the id 52, which is not the next one"):
        qwen_tokenizer(folder)


REFUSED = {
    "another block": ("llada", {"block_type": "sequential"}, "block_type = 'sequential', which this transformer"),
    "no rotary waves": ("llada", {"rope": None}, "rope = None, which this transformer"),
    "norms of queries": ("llada", {"attention_layer_norm": True}, "attention_layer_norm = True"),
    "biases": ("llada", {"include_bias": True}, "include_bias = True"),
    "no width": ("llada", {"d_model": None}, "lacks hidden_size"),
    "a mask beyond the rows": ("llada", {"mask_token_id": None}, "mask_token_id = 126336 is not accepted"),
    "sliding windows": ("dream", {"use_sliding_window": True}, "use_sliding_window = True"),
    "more layers": ("dream", {"num_hidden_layers": 3}, r"lacks model\.layers\.2"),
    "Fast-dLLM": ("dream", {"model_type": "Fast_dLLM_Qwen"}, "'Fast_dLLM_Qwen', which is not accepted: its shifted"),
    "experts": ("dream", {"model_type": "sdar_moe"}, "it has experts, which this transformer does not compute"),
}


@pytest.mark.parametrize(("name", "changes", "message"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused_by_name(tmp_path, name, changes, message):
    shutil.copytree(PARITY / name, tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text()) | changes
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message) as caught:
        hdlm.load(tmp_path / "model")
    assert "\n" not in str(caught.value)
