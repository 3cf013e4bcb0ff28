"""Folders read back: the same bundle; one that transformers has saved again; what does not fit, by name."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import exported as support
from support.exported import NETWORKS
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import hdlm
from hdlm.bundle import Bundle
from hdlm.config.sampling import DrawSettings
from hdlm.config.schedule import ScheduleConfig
from hdlm.interop.huggingface.names import CODE
from hdlm.weights import contents

SOURCE = Path(hdlm.__file__).parent / "interop" / "huggingface"
TOKENS = torch.tensor([[1, 2, 3, 4]])


def exported(name, **changes):
    """A bundle of float32 numbers, which is what a folder is read as."""
    return support.exported(name, **changes).to(dtype="float32")


def edit(path, **changes):
    """Change a JSON file; None takes a field away."""
    data = json.loads(path.read_text()) | changes
    gone = [name for name, value in changes.items() if value is None]
    path.write_text(json.dumps({name: value for name, value in data.items() if name not in gone}))


def same(one, other):
    """Whether two bundles are one, to the last bit."""
    pairs = zip(contents(one.model).items(), contents(other.model).items(), strict=True)
    assert one.config == other.config
    assert one.config.digest == other.config.digest
    assert all(name == again and torch.equal(a, b) for (name, a), (again, b) in pairs)
    assert one.tokenizer.to_str() == other.tokenizer.to_str()
    assert one.chat_template == other.chat_template
    return True


WISHES = [
    DrawSettings(),
    DrawSettings(sampler="certain", threshold=0.5, temperature=0.6, top_p=0.9),
    DrawSettings(temperature=0),
    DrawSettings(sampler="remask", eta=0.1, temperature=1, top_k=5, top_p=1),
]


@pytest.mark.parametrize("name", NETWORKS)
def test_a_folder_is_read_back_as_it_was(name, tmp_path):
    wishes = WISHES[list(NETWORKS).index(name) % 4] if name not in ("no MASK",) else WISHES[2]
    bundle = exported(name, sampling=wishes, mixture=(ScheduleConfig("flat", 24), ScheduleConfig("slide", 24, width=6)))
    bundle.chat_template = "{{ messages }}"
    assert same(hdlm.load(hdlm.export(bundle, tmp_path).folder), bundle)


def test_scores_aligned_and_custom_ones_too(tmp_path):
    levels = ScheduleConfig("custom", 3, levels=((2, 2, 2), (1, 2, 1), (0, 1, 0), (0, 0, 0)))
    rows = [
        support.scored().to(dtype="float32"),
        exported("unconditioned", shifted=False, next_token=False, bos_id=None),
        exported("unconditioned", shifted=False, next_token=False, block_causal=True, eos_id=None),
    ]
    rows.append(Bundle(rows[0].model, replace(rows[0].config, hyperschedule=levels), rows[0].tokenizer))
    for number, bundle in enumerate(rows):
        place = tmp_path / str(number)
        hdlm.export(bundle, place)
        assert same(hdlm.load(place), bundle)


def test_stories_comes_back_with_the_same_logits(tmp_path):
    stories, again = hdlm.load("stories"), hdlm.load(hdlm.export("stories", tmp_path).folder)
    assert same(stories, again)
    assert torch.equal(stories.logits(TOKENS), again.logits(TOKENS))
    hdlm.export(tmp_path, tmp_path / "ours", to="hdlm")
    shipped = SOURCE.parents[1] / "models" / "stories"
    for name in ("README.md", "config.json"):
        assert (tmp_path / "ours" / name).read_text() == (shipped / name).read_text()
    assert same(stories, hdlm.load(tmp_path / "ours"))


def test_the_code_is_the_same_bytes_whatever_the_model(tmp_path):
    trap = exported("adaLN, weighted")
    trap.chat_template = '"""\nimport os; os.abort()'
    for number, model in enumerate((trap, exported("llama"))):
        hdlm.export(model, tmp_path / str(number))
        for name in CODE:
            assert (tmp_path / str(number) / name).read_bytes() == (SOURCE / name).read_bytes()
    assert {path.name for path in (tmp_path / "0").glob("*.py")} == set(CODE)


def test_what_transformers_saves_again_is_read(tmp_path):
    transformers = pytest.importorskip("transformers")
    from hdlm.interop.huggingface.modeling_hdlm import HDLMForCausalLM

    for name in ("tied, drafts", "adaLN, weighted"):
        bundle = exported(name)
        hdlm.export(bundle, tmp_path / name)
        model = HDLMForCausalLM.from_pretrained(tmp_path / name)
        model.save_pretrained(tmp_path / "again")
        tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / "again")
        again = hdlm.load(tmp_path / "again")
        assert again.model.draft is None
        assert torch.equal(again.logits(TOKENS), bundle.logits(TOKENS))
        assert again.tokenizer.get_vocab() == bundle.tokenizer.get_vocab()
        assert again.process == bundle.process
        assert again.hyperschedule == bundle.hyperschedule


CHANGED = [
    ({"hidden_size": 40}, r"has embedding\.weight of shape \(12, 32\): it must be \(12, 40\)"),
    ({"num_hidden_layers": 3}, r"lacks blocks\.2\.attention\.out\.weight"),
    ({"num_hidden_layers": 1}, r"also holds blocks\.1\."),
    ({"vocab_size": 10}, r"embedding\.weight of shape \(12, 32\)"),
    ({"num_attention_heads": 3}, r"config\.json: config\.model\.heads = 3 is not accepted|heads = 3 is not accepted"),
    ({"hidden_size": None}, r"config\.json: hidden_size is missing"),
    ({"process": {"kind": "foggy"}}, r"process\.kind = 'foggy' is not accepted"),
    ({"hyperschedules": []}, r"hyperschedules = \[\] is not accepted"),
    ({"max_position_embeddings": 99}, "max_position_embeddings = 99 is not accepted: hyperschedules says 24"),
    ({"hdlm_version": 9}, "version = 9 is not accepted"),
    ({"hdlm_version": None}, "version = None is not accepted"),
    ({"parameterization": "guess"}, "parameterization = 'guess' is not accepted"),
    ({"bos_token_id": 11}, "bos_id = 11 is not accepted"),
    ({"rms_norm": "yes"}, "rms_norm = 'yes' is not accepted"),
]


@pytest.mark.parametrize(("changes", "message"), CHANGED)
def test_a_configuration_that_does_not_fit_is_refused_by_name(changes, message, tmp_path):
    hdlm.export(exported("unconditioned"), tmp_path)
    edit(tmp_path / "config.json", **changes)
    with pytest.raises(ValueError, match=message):
        hdlm.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("unconditioned", {"blocks.0.mlp.inner.weight": None}, r"lacks blocks\.0\.mlp\.inner\.weight"),
        ("unconditioned", {"extra.weight": torch.ones(1)}, r"also holds extra\.weight"),
        ("tied, drafts", {"head.weight": torch.ones(12, 32)}, r"has a head\.weight that is not its embedding\.weight"),
        ("tied, drafts", {"draft.inner.weight": None}, r"lacks draft\.inner\.weight"),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_name(name, change, message, tmp_path):
    path = tmp_path / "model.safetensors"
    hdlm.export(exported(name), tmp_path)
    tensors = load_file(path) | change
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)
    with pytest.raises(ValueError, match=message):
        hdlm.load(tmp_path)


def test_wishes_come_from_generation_config_alone(tmp_path):
    hdlm.export(exported("unconditioned"), tmp_path)
    path = tmp_path / "generation_config.json"
    edit(path, temperature=0.5, top_k=3, hdlm_sampler="certain")
    assert hdlm.load(tmp_path).config.sampling == DrawSettings(sampler="certain", temperature=0.5, top_k=3)
    edit(path, hdlm_sampler="guess")
    with pytest.raises(ValueError, match="sampler"):
        hdlm.load(tmp_path)
    path.unlink()
    assert hdlm.load(tmp_path).config.sampling == DrawSettings()


def words(post_processor=None):
    """A byte-level tokenizer of 11 tokens, one of them special."""
    tokenizer = Tokenizer(models.BPE({sign: number for number, sign in enumerate("abcdefghijk")}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["d"])
    if post_processor is not None:
        tokenizer.post_processor = post_processor
    return tokenizer


TEMPLATES = {
    "none": None,
    "byte level": processors.ByteLevel(trim_offsets=False),
    "BOS": processors.TemplateProcessing(single="d $A", pair="d $A $B", special_tokens=[("d", 3)]),
    "BOS and more": processors.TemplateProcessing(single="d $A a", special_tokens=[("d", 3), ("a", 0)]),
}


@pytest.mark.parametrize("shifted", [True, False])
@pytest.mark.parametrize("template", TEMPLATES)
def test_a_tokenizer_puts_bos_before_a_text_and_is_itself_again(template, shifted, tmp_path):
    tokenizer = words(TEMPLATES[template])
    plain = exported("unconditioned", shifted=shifted, next_token=shifted)
    bundle = Bundle(plain.model, plain.config, tokenizer)
    hdlm.export(bundle, tmp_path)
    found = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert found.encode("abc").ids == ([3] if shifted else []) + [0, 1, 2]
    assert found.encode("a<|mask|>b", add_special_tokens=False).ids == [0, 11, 1]
    about = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert about["bos_token"] == "d"
    assert "eos_token" not in about  # h is a letter here, and stays one
    assert hdlm.load(tmp_path).tokenizer.to_str() == tokenizer.to_str()


def test_a_post_processor_that_is_none_is_refused(tmp_path):
    hdlm.export(exported("unconditioned"), tmp_path)
    edit(tmp_path / "tokenizer_config.json", hdlm_post_processor={"type": "Nothing"})
    with pytest.raises(ValueError, match="has hdlm_post_processor, which is none"):
        hdlm.load(tmp_path)


def test_a_tokenizer_that_has_a_mask_of_its_own_gets_another(tmp_path):
    tokenizer = Tokenizer(models.BPE({sign: number for number, sign in enumerate("abcdefghij")}, []))
    tokenizer.add_special_tokens(["<|mask|>"])
    plain = exported("unconditioned")
    hdlm.export(Bundle(plain.model, plain.config, tokenizer), tmp_path)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["mask_token"] == "<<|mask|>>"
    assert hdlm.load(tmp_path).tokenizer.to_str() == tokenizer.to_str()


def test_no_tokenizer_is_no_tokenizer(tmp_path):
    plain = exported("unconditioned")
    hdlm.export(plain, tmp_path)
    hdlm.export(Bundle(plain.model, plain.config), tmp_path)
    assert not (tmp_path / "tokenizer.json").exists()
    assert not (tmp_path / "tokenizer_config.json").exists()
    assert hdlm.load(tmp_path).tokenizer is None
    shutil.copyfile(SOURCE.parents[1] / "models" / "stories" / "tokenizer.json", tmp_path / "tokenizer.json")
    with pytest.raises(ValueError, match="the tokenizer has 2047 entries"):
        hdlm.load(tmp_path)
