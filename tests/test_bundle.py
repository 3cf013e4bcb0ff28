"""Model folders: what is saved comes back, and what is broken is refused in one clear line."""

import json
import pickle

import pytest
import torch
from tokenizers import Tokenizer, models

import hdlm
from hdlm.config.bundle import BundleConfig
from hdlm.config.model import preset
from hdlm.config.process import NoiseConfig, ProcessConfig
from hdlm.config.schedule import ScheduleConfig
from hdlm.nn.transformer import Denoiser
from hdlm.weights import contents

WORDS = [f"w{i}" for i in range(20)]


def tokenizer(size=20):
    return Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS[:size])}, unk_token="w0"))


def bundle(*, entries=20, **changes):
    model = Denoiser(preset("tiny", 20, **changes))
    torch.manual_seed(2)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    config = BundleConfig(
        model=model.config,
        process=ProcessConfig("gamma", NoiseConfig("loglinear", {"eps": 0.01}), gamma=0.02),
        hyperschedule=ScheduleConfig("block", 32, width=8, rate=2.0),
        shifted=True,
        bos_id=3,
        eos_id=4,
    )
    return hdlm.Bundle(model, config, tokenizer(entries) if entries else None)


@pytest.mark.parametrize("changes", [{}, {"tied": True}, {"tied": True, "mask_output": True, "conditioned": False}])
def test_saved_and_loaded_is_the_same(tmp_path, changes):
    original = bundle(**changes)
    assert original.save(tmp_path / "model") == tmp_path / "model"
    loaded = hdlm.load(tmp_path / "model")
    assert loaded.config == original.config
    assert loaded.process == hdlm.GammaHybrid(20, 0.02, hdlm.LogLinear(0.01))
    assert loaded.hyperschedule == hdlm.Block(32, 8, 2)
    assert loaded.tokenizer.encode("w5").ids == [5]
    for name, tensor in contents(original.model).items():
        assert torch.equal(tensor, contents(loaded.model)[name])
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert names == {"model.safetensors", "config.json", "tokenizer.json", "README.md"}
    assert "20, shifted" in (tmp_path / "model" / "README.md").read_text()


def test_saving_without_a_tokenizer_leaves_none_behind(tmp_path):
    original = bundle()
    original.save(tmp_path)
    hdlm.Bundle(original.model, original.config).save(tmp_path)
    assert hdlm.load(tmp_path).tokenizer is None


def test_a_network_that_cannot_read_mask_is_refused():
    model = Denoiser(preset("tiny", 20, mask_embedding=False))
    schedule = ScheduleConfig("flat", 8)
    with pytest.raises(ValueError, match="feeds MASK, and this network has no embedding of it"):
        hdlm.Bundle(model, BundleConfig(model.config, ProcessConfig("absorbing"), schedule, shifted=False))


def test_saving_again_keeps_what_lies_beside(tmp_path):
    original = bundle()
    original.save(tmp_path)
    (tmp_path / "trainer").mkdir()
    original.save(tmp_path)
    assert (tmp_path / "trainer").exists()


def test_precision_is_chosen_at_load(tmp_path):
    bundle().save(tmp_path)
    assert hdlm.load(tmp_path, dtype=torch.float64).model.embedding.dtype == torch.float64
    with pytest.raises(ValueError, match="bfloat16 is not accepted on the CPU"):
        hdlm.load(tmp_path, dtype=torch.bfloat16)


def edit(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def only_pickle(folder):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({}))


def truncate(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def reuse_an_id(folder):
    """One of two tokens with one id could not be written as text, and its own would vanish from what is."""
    path = folder / "tokenizer.json"
    data = json.loads(path.read_text())
    data["model"]["vocab"][next(word for word, number in data["model"]["vocab"].items() if number == 3)] = 0
    path.write_text(json.dumps(data))


BROKEN = {
    "pickle": (only_pickle, "pytorch_model.bin is a pickle, which is not loaded here"),
    "config of another save": (
        lambda folder: edit(folder, process={"kind": "absorbing"}),
        "weights of one save and the config.json of another",
    ),
    "words for booleans": (lambda folder: edit(folder, shifted="false"), "shifted = 'false' is not accepted"),
    "no kind": (lambda folder: edit(folder, process={"kind": []}), r"process\.kind = \[\] is not accepted"),
    "zero heads": (
        lambda folder: edit(folder, model={"vocab_size": 20, "layers": 2, "width": 64, "heads": 4, "kv_heads": 0}),
        "kv_heads = 0 is not accepted",
    ),
    "other vocabulary": (
        lambda folder: edit(folder, model={"vocab_size": 30, "layers": 2, "width": 64, "heads": 4}),
        r"embedding of shape \(21, 64\): it must be \(31, 64\)",
    ),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "holds no weights"),
    "truncated": (truncate, r"model\.safetensors is truncated"),
    "empty weights": (lambda folder: (folder / "model.safetensors").write_bytes(b""), "truncated or no safetensors"),
    "not JSON": (lambda folder: (folder / "config.json").write_text("{"), r"config\.json is not JSON"),
    "no config": (lambda folder: (folder / "config.json").unlink(), r"config\.json does not exist"),
    "newer version": (
        lambda folder: edit(folder, version=3),
        "version = 3 is not accepted: this hdlm reads",
    ),
    "scores of version 1": (lambda folder: edit(folder, version=1, parameterization="score"), "train such a network"),
    "epsilon of version 1": (
        lambda folder: edit(folder, version=1, process={"kind": "epsilon", "epsilon": 0.1}),
        "version = 1 is not accepted",
    ),
    "unknown field": (lambda folder: edit(folder, colour="red"), "unknown field 'colour'"),
    "unknown process": (lambda folder: edit(folder, process={"kind": "smoke"}), "process.kind = 'smoke'.*absorbing"),
    "gamma missing": (
        lambda folder: edit(folder, process={"kind": "gamma"}),
        r"process\.gamma = None is not accepted: the kind 'gamma' needs one",
    ),
    "BOS out of range": (lambda folder: edit(folder, bos_id=20), r"bos_id = 20 .*0\.\.19"),
    "no BOS": (lambda folder: edit(folder, bos_id=None), "a shifted model starts from BOS"),
    "other tokenizer": (lambda folder: tokenizer(7).save(str(folder / "tokenizer.json")), "7 entries.* needs 20"),
    "an id twice": (reuse_an_id, r"no token with the id 3: each of 0\.\.19 needs one"),
    "broken tokenizer": (lambda folder: (folder / "tokenizer.json").write_text("{}"), "is no tokenizer"),
    "other sizes": (
        lambda folder: edit(folder, model={"vocab_size": 20, "layers": 3, "width": 64, "heads": 4}),
        "lacks",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_folder_is_one_clear_line(case, tmp_path):
    bundle().save(tmp_path)
    damage, message = BROKEN[case]
    damage(tmp_path)
    with pytest.raises(ValueError, match=message) as caught:
        hdlm.load(tmp_path)
    assert len(str(caught.value).splitlines()) == 1


def test_a_failed_save_leaves_the_old_model(tmp_path, monkeypatch):
    original = bundle()
    original.save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full_disk(tensors, path, metadata):
        path.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr("hdlm.bundle.save_file", full_disk)
    with pytest.raises(OSError, match="disk full"):
        original.save(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_other_peoples_folders_are_not_written_into(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match="holds other files and no model"):
        bundle().save(tmp_path)
    with pytest.raises(ValueError, match="it is a file"):
        bundle().save(tmp_path / "thesis.tex")


@pytest.mark.parametrize("name", ["nowhere", "./a/b", "/no/where", "a/b/c"])
def test_a_folder_that_is_not_there(name):
    with pytest.raises(ValueError, match="does not exist"):
        hdlm.load(name)


@pytest.mark.parametrize("name", [None, 5, b"stories", []])
def test_what_is_no_name_is_refused(name):
    with pytest.raises(ValueError, match=r"name = .* is not accepted: it must be a str or a Path"):
        hdlm.load(name)
    with pytest.raises(ValueError, match=r"path = .* is not accepted: it must be a str or a Path"):
        bundle().save(name)


def test_presets():
    sizes = {name: Denoiser(preset(name, 1000, conditioned=False)).num_parameters for name in ("tiny", "mini")}
    assert 8e6 < sizes["mini"] < 13e6
    assert sizes["tiny"] < 1e6
    small = preset("small", 50_257)
    assert (small.layers, small.width, small.heads) == (12, 768, 12)
    with pytest.raises(
        ValueError, match="preset = 'huge' is not accepted: it must be one of tiny, mini, small, medium"
    ):
        preset("huge", 10)


def test_a_model_of_the_package_is_found_by_name(tmp_path, monkeypatch):
    from hdlm import bundle as module

    bundle().save(tmp_path / "models" / "tiny")
    monkeypatch.setattr(hdlm.folders, "SHIPPED", tmp_path / "models")
    monkeypatch.chdir(tmp_path)
    assert module.shipped_models() == ["tiny"]
    assert hdlm.load("tiny").model.num_parameters > 0
    (tmp_path / "tiny").mkdir()  # a folder of that name that is no model changes nothing
    assert hdlm.load("tiny").model.num_parameters > 0
    with pytest.raises(ValueError, match=r"it must be tiny, a model folder, a GGUF file, .* or owner/model on the hub"):
        hdlm.load("large")


@pytest.mark.parametrize("notes", [False, None, "\ud800"])
def test_notes_are_text_or_nothing_is_written(notes, tmp_path):
    with pytest.raises(ValueError, match=r"notes = .* is not accepted"):
        bundle().save(tmp_path / "model", notes=notes)
    assert list(tmp_path.iterdir()) == []
