"""Published checkpoints: the parity tensors, and what is refused. The layouts are also made on the spot."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import hdlm
from hdlm.interop import published

PARITY = Path(__file__).parents[3] / "shared" / "parity"
FOLDERS = ["hdlm-epsilon", "hdlm-gamma", "mdlm", "sedd-absorb", "sedd-uniform"]
needs_parity = pytest.mark.skipif(not PARITY.exists(), reason="the parity tensors are not beside this checkout")


@needs_parity
@pytest.mark.parametrize("name", FOLDERS)
def test_outputs_are_those_of_the_published_network(name):
    network = published.load_network(PARITY / name)
    io = load_file(PARITY / name / "io.safetensors")
    compared = 0
    for suffix, forbidden in (("", None), ("_masked", io.get("forbidden"))):
        expected = io.get(f"logits{suffix}", io.get(f"log_score{suffix}"))
        if expected is None:
            continue
        with torch.no_grad():
            out = network.outputs(io["tokens"], io.get("positions"), io.get("sigma"), forbidden)
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-4)
        compared += 1
    assert compared == (2 if "forbidden" in io else 1)


@needs_parity
@pytest.mark.parametrize("name", FOLDERS)
def test_load_knows_what_the_model_is(name):
    bundle = hdlm.load(PARITY / name)
    kind, parameterization = {
        "hdlm-epsilon": (hdlm.EpsilonHybrid, "hdce"),
        "hdlm-gamma": (hdlm.GammaHybrid, "sedd-scaled"),
        "mdlm": (hdlm.Absorbing, "clean"),
        "sedd-absorb": (hdlm.Absorbing, "sedd-scaled"),
        "sedd-uniform": (hdlm.Uniform, "sedd-plain"),
    }[name]
    assert type(bundle.process) is kind
    assert bundle.config.parameterization == parameterization
    assert bundle.process.vocab_size == 30
    assert bundle.hyperschedule.length == 12
    if name == "hdlm-gamma":
        assert bundle.process.gamma == 0.01


CONFIG = {
    "model_type": "epsilon_hybrid",
    "type": "shifted",
    "training": {"epsilon": 0.01},
    "annealing": {"type": "block", "width": 4},
    "model": {"hidden_size": 8, "n_blocks": 1, "n_heads": 2, "length": 16},
}


def tensors(states=6, width=8):
    """A tiny checkpoint in the published names."""
    shapes = {
        "vocab_embed.embedding": (states, width),
        "blocks.0.norm1.weight": (width,),
        "blocks.0.attn_qkv.weight": (3 * width, width),
        "blocks.0.attn_out.weight": (width, width),
        "blocks.0.norm2.weight": (width,),
        "blocks.0.mlp.0.weight": (4 * width, width),
        "blocks.0.mlp.0.bias": (4 * width,),
        "blocks.0.mlp.2.weight": (width, 4 * width),
        "blocks.0.mlp.2.bias": (width,),
        "output_layer.norm_final.weight": (width,),
        "output_layer.linear.weight": (states, width),
        "output_layer.linear.bias": (states,),
        "rotary_emb.inv_freq": (2,),
    }
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def write(folder, data, *, config=CONFIG, file="model.safetensors"):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if file.endswith(".safetensors"):
        save_file(data, folder / file)
    else:
        torch.save(data, folder / file)
    return folder


def test_every_container_gives_the_same_network(tmp_path):
    data = tensors()
    tokens = torch.randint(6, (2, 16))
    plain = published.load_network(write(tmp_path / "a", data)).outputs(tokens)
    wrapped = {f"backbone.{name}": tensor for name, tensor in data.items()}
    folders = [
        write(tmp_path / "b", wrapped),
        write(tmp_path / "c", data, file="pytorch_model.bin"),
        write(tmp_path / "d", {"step": torch.tensor(3), "ema": {"shadow_params": []}, "model": data}, file="c.pth"),
    ]
    for folder in folders:
        assert torch.equal(published.load_network(folder).outputs(tokens), plain)


def test_half_precision_weights_are_upcast(tmp_path):
    data = {name: tensor.bfloat16() for name, tensor in tensors().items()}
    bundle = hdlm.load(write(tmp_path / "a", data))
    assert {parameter.dtype for parameter in bundle.model.parameters()} == {torch.float32}
    assert bundle.config.shifted
    assert repr(bundle.hyperschedule) == "Block(length=16, width=4, rate=1)"


def test_a_hub_name_is_fetched_and_loaded(tmp_path, monkeypatch):
    folder, asked = write(tmp_path / "a", tensors()), []

    def download(name, allow_patterns):
        asked.append((name, allow_patterns))
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    bundle = hdlm.load("hdlm-group/hdlm-base-epsilon-0.01")
    assert isinstance(bundle.process, hdlm.EpsilonHybrid)
    assert asked[0][0] == "hdlm-group/hdlm-base-epsilon-0.01"
    assert {"*.safetensors", "*merges.txt"} <= set(asked[0][1])


def test_an_unreachable_hub_is_one_clear_line(monkeypatch):
    def download(name, allow_patterns):
        raise OSError("no route to host\nmany more lines")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    with pytest.raises(
        ValueError, match="nobody/nothing is no folder here and could not be had from the hub: no route"
    ):
        hdlm.load("nobody/nothing")


class Malicious:
    def __reduce__(self):
        return (print, ("unpickled!",))


def test_a_pickle_with_code_in_it_is_refused(tmp_path, capsys):
    folder = write(tmp_path / "a", {"model": Malicious()}, file="pytorch_model.bin")
    with pytest.raises(ValueError, match="not accepted by torch's safe loader"):
        published.load_network(folder)
    assert "unpickled" not in capsys.readouterr().out


def changed(**changes):
    data = tensors()
    for name, tensor in changes.items():
        name = name.replace("__", ".")
        if tensor is None:
            del data[name]
        else:
            data[name] = tensor
    return data


WRONG = {
    "missing": (changed(blocks__0__attn_out__weight=None), "lacks blocks.0.attn_out.weight"),
    "missing bias": (changed(output_layer__linear__bias=None), "lacks output_layer.linear.bias"),
    "short head": (
        changed(output_layer__linear__weight=torch.zeros(4, 8)),
        r"output_layer.linear.weight of shape \(4, 8\)",
    ),
    "missing embedding": (changed(vocab_embed__embedding=None), "lacks vocab_embed.embedding"),
    "extra": (changed(blocks__0__attn_out__bias=torch.zeros(8)), "also holds blocks.0.attn_out.bias"),
    "misshaped": (changed(blocks__0__norm1__weight=torch.zeros(9)), r"norm1.weight of shape \(9,\): it must be \(8,\)"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_tensors_are_refused_by_name(case, tmp_path):
    data, message = WRONG[case]
    with pytest.raises(ValueError, match=message):
        published.load_network(write(tmp_path / "a", data))


def test_a_missing_layer_is_refused(tmp_path):
    config = CONFIG | {"model": CONFIG["model"] | {"n_blocks": 2}}
    with pytest.raises(ValueError, match=r"lacks blocks\.1\.attn_out\.weight.* more tensors"):
        published.load_network(write(tmp_path / "a", tensors(), config=config))


@pytest.mark.parametrize(
    ("annealing", "expected"),
    [
        ({"type": "block", "width": 4, "tau": 8}, "Block(length=16, width=4, rate=0.5)"),
        ({"type": "simple", "width": 4}, "Slide(length=16, width=4, rate=1)"),
        ({"type": "block", "width": 16, "tau": 32}, "Flat(length=16, rate=0.5)"),
    ],
)
def test_the_schedule_is_that_of_the_checkpoint(tmp_path, annealing, expected):
    bundle = hdlm.load(write(tmp_path / "a", tensors(), config=CONFIG | {"annealing": annealing}))
    assert repr(bundle.hyperschedule) == expected


def test_an_unknown_schedule_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"annealing\.type = 'spiral'"):
        hdlm.load(write(tmp_path / "a", tensors(), config=CONFIG | {"annealing": {"type": "spiral", "width": 4}}))


def test_trainer_files_beside_the_weights_are_left_alone(tmp_path):
    folder = write(tmp_path / "a", tensors(), file="pytorch_model.bin")
    torch.save({"state": {}}, folder / "optimizer.pt")
    published.load_network(folder)


@needs_parity
def test_a_timeless_network_does_not_see_the_noise(tmp_path):
    shutil.copytree(PARITY / "mdlm", tmp_path / "mdlm")
    path = tmp_path / "mdlm" / "config.json"
    path.chmod(0o644)
    (tmp_path / "mdlm").chmod(0o755)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"time_conditioning": False}))
    network, tokens = published.load_network(tmp_path / "mdlm"), torch.zeros(1, 4, dtype=torch.long)
    one, other = (network.outputs(tokens, sigma=torch.tensor([sigma])) for sigma in (0.0, 3.0))
    assert torch.equal(one, other)


def test_tokens_out_of_range_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"id 6: ids must be in 0\.\.5"):
        published.load_network(write(tmp_path / "a", tensors())).outputs(torch.full((1, 4), 6))


def test_an_unknown_model_is_refused(tmp_path):
    folder = write(tmp_path / "a", tensors(), config={"model_type": "bert", "n_heads": 2})
    with pytest.raises(ValueError, match=r"describes a model of the type .bert.: it must be of hdlm"):
        hdlm.load(folder)
    with pytest.raises(ValueError, match=r"lacks model\.n_blocks"):
        hdlm.load(write(tmp_path / "b", tensors(), config={"model_type": "mdlm"}))


@needs_parity
def test_conditioned_networks_ask_for_their_noise(tmp_path):
    shutil.copytree(PARITY / "mdlm", tmp_path / "mdlm")
    network = published.load_network(tmp_path / "mdlm")
    with pytest.raises(ValueError, match="sigma = None is not accepted"):
        network.outputs(torch.zeros(1, 4, dtype=torch.long))
