"""A network whose outputs are not finite is an error by name, whatever it is asked and however it is run."""

import dataclasses
import math

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.bundles import SAMPLERS, bundle, score_bundle
from support.floors import FLOORS
from support.runs import text_folder, tiny_recipe

import hdlm
from hdlm.cli.main import main
from hdlm.errors import NotFiniteError
from hdlm.interop import llama
from hdlm.sampling import generate as generation
from hdlm.train import loop
from hdlm.train.state import checkpoints
from hdlm.weights import contents

INNER = "blocks.1.mlp.inner.weight"


def spoiled(model, name=INNER, value=math.nan, *, whole=False):
    """A bundle with one number, or a whole weight, changed."""
    weight = contents(model.model)[name]
    weight[...] = value if whole else torch.where(torch.arange(weight.numel()).view_as(weight) == 40, value, weight)
    return model


def overflowing(model):
    """Finite weights, outputs that are not."""
    return spoiled(model, value=3e38 if model.model.embedding.dtype == torch.float32 else 1e308, whole=True)


CASES = [(process, sampler) for process, samplers in SAMPLERS.items() for sampler in samplers]


@pytest.mark.parametrize("backend", FLOORS)
@pytest.mark.parametrize(("process", "sampler"), CASES)
def test_every_rule_notices(process, sampler, backend):
    model = spoiled(bundle(process=process))
    with pytest.raises(ValueError, match=rf"outputs are not finite numbers: {INNER} holds nan"):
        model.generate(length=6, seed=1, sampler=sampler, backend=backend)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("backend", FLOORS)
@pytest.mark.parametrize(
    "make",
    [
        lambda: bundle(process="absorbing"),
        lambda: bundle("quench"),
        lambda: bundle(process="epsilon", shifted=False),
        lambda: score_bundle(hdlm.config.process.ProcessConfig("gamma", gamma=0.2, noise=LOGLINEAR)),
    ],
    ids=["masked", "autoregressive", "epsilon", "scores"],
)
def test_one_token_of_the_vocabulary_is_enough(make, backend, value):
    """A row or two of the head: the others would still be numbers. Of two infinities one makes its output rise to
    infinity, whatever the features' sign; falling alone it would be a token that cannot be.
    """
    model = make()
    head = contents(model.model)["head.weight"]
    head[2, 5], head[7, 5] = value, -value
    with pytest.raises(ValueError, match=r"head\.weight holds (nan|-inf)"):
        model.generate(length=6, seed=1, backend=backend)


LOGLINEAR = hdlm.config.process.NoiseConfig("loglinear")


def test_a_run_that_nobody_watches_is_asked_once(monkeypatch):
    """The answer is waited for at the end of each batch, never at a step."""
    asked, real = [], generation.check_finite
    monkeypatch.setattr(generation, "check_finite", lambda *of: asked.append(1) or real(*of))
    model = bundle(process="absorbing")
    for backend in FLOORS:
        model.generate(num_samples=3, length=8, batch_size=2, seed=1, backend=backend)
    assert len(asked) == 2 * len(FLOORS)


@pytest.mark.parametrize("spoil", [spoiled, overflowing])
def test_whoever_asks_is_told(spoil):
    flat, shifted = spoil(bundle("flat", shifted=False)), spoil(bundle())
    asked = {
        "generate": lambda: shifted.generate(length=4, seed=1),
        "continue": lambda: shifted.generate("abc", length=4, seed=1),
        "stream": lambda: list(shifted.stream(length=4, seed=1)),
        "infill": lambda: flat.infill("ab[[gap:2]]c"),
        "perplexity": lambda: shifted.perplexity("abcdef"),
        "another": lambda: shifted.perplexity("abcdef", hyperschedule=hdlm.Quench(6)),
        "logits": lambda: shifted.logits(torch.tensor([[1, 2]])),
    }
    blame = f": {INNER} holds nan" if spoil is spoiled else ", though its weights are: they overflow float64"
    for name, ask in asked.items():
        with pytest.raises(ValueError) as caught:  # noqa: PT011, the words are compared below
            ask()
        assert str(caught.value) == f"the network's outputs are not finite numbers{blame}", name


def test_a_draw_that_masks_nothing_hides_nothing():
    """One token, one draw: mostly it is shown, and its loss is 0 whatever the network says."""
    model = spoiled(bundle("flat", process="absorbing", shifted=False))
    for seed in range(6):
        with pytest.raises(ValueError, match="not finite"):
            model.perplexity("a", samples=1, seed=seed)


def test_a_token_of_no_probability_is_not_an_error():
    """Outputs may say that a token cannot be, where a reading makes them so: that is a law."""
    model = bundle("flat", process="absorbing", shifted=False)
    head = contents(model.model)["head.weight"]
    head[3] = 0
    head[4] = -1e300 * contents(model.model)["head.norm.weight"]
    assert len(model.generate(length=6, seed=1).tokens[0]) == 6


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_damaged_weights_are_refused_when_loaded(tmp_path, value):
    bundle(dtype=torch.float32).save(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    tensors[INNER][3, 4] = value
    save_file(tensors, path)
    with pytest.raises(ValueError, match=rf"model\.safetensors is damaged: {INNER} holds {value}"):
        hdlm.load(tmp_path)


def test_weights_that_this_precision_cannot_hold_are_refused(tmp_path):
    bundle().save(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["embedding"][0, 0] = 1e300
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="embedding holds inf"):
        hdlm.load(tmp_path)


def test_half_precision_nan_is_found(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=10, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    tensors = {name: tensor.bfloat16() for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    tensors["model.norm.weight"][3] = math.nan
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"model\.norm\.weight holds nan"):
        llama.load_denoiser(tmp_path)


def test_commands_end_with_one_line(tmp_path, capsys):
    model = overflowing(bundle(dtype=torch.float32))
    model.config = dataclasses.replace(model.config)
    folder = str(model.save(tmp_path / "model"))
    (tmp_path / "text.txt").write_text("abcdef")
    for words in (
        ["sample", folder, "--length", "4", "--device", "cpu"],
        ["evaluate", folder, "--data", str(tmp_path / "text.txt"), "--metrics", "bound", "--device", "cpu"],
        ["evaluate", folder, "--metrics", "entropy", "--samples", "2", "--length", "4", "--device", "cpu"],
    ):
        assert main(words) == 2
        said = capsys.readouterr()
        assert "outputs are not finite numbers, though its weights are: they overflow float32" in said.err
        assert "nan" not in said.out


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_training_that_diverges_says_when_and_keeps_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv("HDLM_CACHE", str(tmp_path / "cache"))
    recipe = tiny_recipe(text_folder(tmp_path / "text"), save_every=1, eval_every=2)
    monkeypatch.setattr(loop, "estimate", lambda bundle, *rest, **how: (_ for _ in ()).throw(bundle.not_finite()))
    with pytest.raises(NotFiniteError, match=r"training has diverged by step 2: the network's outputs .*step-00000001"):
        hdlm.train(recipe, tmp_path / "run", quiet=True)
    assert checkpoints(tmp_path / "run")
