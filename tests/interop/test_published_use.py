"""Published checkpoints at work: sampled, filled, scored and refused, from Python and from the command line."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support.floors import FLOORS
from tokenizers import Tokenizer, models

import hdlm
from hdlm.cli.main import main
from hdlm.interop import published

PARITY = Path(__file__).parents[3] / "shared" / "parity"
NAMES = ["hdlm-epsilon", "hdlm-gamma", "mdlm", "sedd-absorb", "sedd-uniform"]
LENGTH = 12
ROWS = [[1, 2, 3, 0, 4], [4, 3, 2, 1, 0]]

# A network as wide as its text, with the settings of the published one: flat, and "block-causal" all the same.
FLAT = {
    "model_type": "epsilon_hybrid",
    "type": "aligned",
    "training": {"epsilon": 0.01},
    "tokenizer": {"tokens": 5, "model": "tiny"},
    "annealing": {"type": "block", "width": 1024, "tau": 1024, "attention": {"context_type": "block_causal"}},
    "model": {"hidden_size": 8, "n_blocks": 1, "n_heads": 2, "length": LENGTH},
}


def tiny(folder):
    """A checkpoint of 5 tokens and MASK in the published layout."""
    shapes = {
        "vocab_embed.embedding": (6, 8),
        "blocks.0.norm1.weight": (8,),
        "blocks.0.attn_qkv.weight": (24, 8),
        "blocks.0.attn_out.weight": (8, 8),
        "blocks.0.norm2.weight": (8,),
        "blocks.0.mlp.0.weight": (32, 8),
        "blocks.0.mlp.0.bias": (32,),
        "blocks.0.mlp.2.weight": (8, 32),
        "blocks.0.mlp.2.bias": (8,),
        "output_layer.norm_final.weight": (8,),
        "output_layer.linear.weight": (6, 8),
        "output_layer.linear.bias": (6,),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(FLAT))
    save_file({name: torch.randn(shape) for name, shape in shapes.items()}, folder / "model.safetensors")
    return folder


@pytest.fixture(params=["made here", *NAMES])
def folder(request, tmp_path):
    if request.param == "made here":
        return tiny(tmp_path / "tiny")
    if not PARITY.exists():
        pytest.skip("the parity tensors are not beside this checkout")
    return PARITY / request.param


@pytest.fixture
def matrix(tmp_path):
    """Token rows, the second of which ends early."""
    rows = np.array(ROWS)
    rows[1, 3:] = -1
    np.save(tmp_path / "rows.npy", rows)
    return tmp_path / "rows.npy"


def test_it_writes_continues_and_fills(folder):
    bundle = hdlm.load(folder)
    size = bundle.config.model.vocab_size
    for backend in FLOORS:
        [row] = bundle.generate(seed=1, backend=backend).tokens
        assert len(row) == LENGTH
        assert set(row) <= set(range(size)), "no MASK is left"
        assert bundle.generate([[1, 2, 3]], seed=1, backend=backend).tokens[0][:3] == [1, 2, 3]
        [filled] = bundle.infill([1, None, None, 4], seed=1, backend=backend).tokens
        assert (filled[0], filled[3], len(filled)) == (1, 4, 4)
    frames = list(bundle.stream(seed=1))
    assert frames[-1].tokens.tolist() == bundle.generate(seed=1).tokens


def test_the_likeliest_text_of_one_step_is_that_of_the_published_network(folder):
    bundle, network = hdlm.load(folder), published.load_network(folder)
    if not bundle.process.starts_masked:
        pytest.skip("this process starts from chance")
    blank = torch.full((1, LENGTH), bundle.process.mask_id)
    sigma = bundle.process.noise.sigma(torch.ones(1)) if network.model.sigma is not None else None
    with torch.no_grad():
        best = network.outputs(blank, sigma=sigma)[0, :, : bundle.process.vocab_size].argmax(-1)
    flat = hdlm.Flat(LENGTH, LENGTH)
    assert bundle.generate(hyperschedule=flat, temperature=0, sampler="original", seed=1).tokens == [best.tolist()]


def test_it_is_scored_by_token_rows(folder, matrix):
    bundle = hdlm.load(folder)
    found = bundle.perplexity(matrix, samples=2)
    assert found.tokens == 8
    assert found.counts == {}
    assert found.value == bundle.perplexity([ROWS[0], ROWS[1][:3]], samples=2).value
    with pytest.raises(ValueError, match=r"no tokenizer: (it scores token rows|give token ids)"):
        bundle.perplexity("abc")


def test_every_command_answers_or_refuses_in_one_line(folder, matrix, tmp_path, capsys):
    asked = {"--device": "cpu", "--seed": "1"}
    words = [word for pair in asked.items() for word in pair]
    assert main(["sample", str(folder), *words]) == 0
    shown = capsys.readouterr().out.split()
    assert shown == [str(token) for token in hdlm.load(folder).generate(seed=1).tokens[0]]
    assert main(["evaluate", str(folder), "--data", str(matrix), "--samples", "2", "--json", *words]) == 0
    bound, drawn = json.loads(capsys.readouterr().out)["cells"]
    assert (bound["result"]["tokens"], drawn["result"]["samples"]) == (8, 2)
    assert main(["evaluate", str(folder), "--data", str(matrix), "--metrics", "bound", *words]) == 0
    assert "rows.npy" in capsys.readouterr().out
    for refused in (
        ["sample", str(folder), "--prompt", "abc"],
        ["evaluate", str(folder), "--data", str(tmp_path / "text.txt")],
        ["demo", "--model", str(folder), "--out", str(tmp_path / "demo")],
    ):
        (tmp_path / "text.txt").write_text("abc")
        assert main(refused) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert "tokenizer" in said


def test_a_flat_network_is_not_bound_to_blocks(tmp_path):
    bundle = hdlm.load(tiny(tmp_path))
    assert repr(bundle.hyperschedule) == "Flat(length=12, rate=1)"
    assert not bundle.config.block_causal
    with pytest.warns(UserWarning, match="outside what this network was trained on"):
        assert len(bundle.generate(length=4, kind="block", width=2, seed=1).tokens[0]) == 4


@pytest.mark.parametrize("variable", ["HDLM_DATA", "HDLM_CACHE"])
def test_a_named_tokenizer_is_found_where_data_lies(tmp_path, monkeypatch, variable):
    monkeypatch.delenv("HDLM_DATA", raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    path = (tmp_path if variable == "HDLM_DATA" else tmp_path / "data") / "tokenizers" / "tiny" / "tokenizer.json"
    path.parent.mkdir(parents=True)
    Tokenizer(models.WordLevel({word: i for i, word in enumerate("abcde")}, unk_token="a")).save(str(path))
    bundle = hdlm.load(tiny(tmp_path / "model"))
    assert bundle.tokenizer.encode("c").ids == [2]
    assert hdlm.load(tmp_path / "model", tokenizer=False).tokenizer is None


@pytest.mark.parametrize("name", ["../secret", "/secret", 5, None])
def test_a_config_names_no_tokenizer_outside_of_the_data(tmp_path, monkeypatch, name):
    monkeypatch.setenv("HDLM_DATA", str(tmp_path / "data"))
    place = tmp_path / "data" / "secret"
    place.mkdir(parents=True)
    Tokenizer(models.WordLevel({word: i for i, word in enumerate("abcde")})).save(str(place / "tokenizer.json"))
    folder = tiny(tmp_path / "model")
    named = f"{place}" if name == "/secret" else name
    (folder / "config.json").write_text(json.dumps(FLAT | {"tokenizer": {"tokens": 5, "model": named}}))
    assert hdlm.load(folder).tokenizer is None
