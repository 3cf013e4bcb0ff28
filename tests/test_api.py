"""The public surface: what `hdlm` exports, signatures that spell everything out, and what a bundle says of itself."""

import dataclasses
import inspect
import typing

import pytest
import torch
from support.bundles import bundle

import hdlm
from hdlm.config.sampling import DrawSettings

EXPORTED = """Absorbing AdaptiveCorrection Autoregressive Block Bound Bundle Certain Comparison Confidence Cosine Custom
Denoiser DenoiserConfig EpsilonHybrid Euler Flat Frame GammaHybrid Geometric Hyperschedule Linear LogLinear Original
Posterior Process Quench Remask Rule Samples Slide TauLeaping Uniform compare load recipes train""".split()  # noqa: SIM905, read as a list


def test_every_name_is_there_and_listed():
    assert set(EXPORTED) <= set(dir(hdlm))
    for name in EXPORTED:
        assert callable(getattr(hdlm, name)) or name == "recipes"
    assert hdlm.recipes.get("laptop").name == "laptop"
    with pytest.raises(AttributeError, match="no attribute 'diffuse'"):
        _ = hdlm.diffuse


def test_train_is_a_function_and_a_package(tmp_path):
    import hdlm.train.loop as loop

    (tmp_path / "mine").write_text("x")
    with pytest.raises(ValueError, match="the folder is not empty"):
        hdlm.train(hdlm.recipes.get("laptop"), tmp_path)
    assert hdlm.train.loop is loop


@pytest.mark.parametrize("method", ["generate", "stream", "infill"])
def test_every_setting_of_a_draw_is_a_typed_keyword(method):
    parameters = inspect.signature(getattr(hdlm.Bundle, method)).parameters
    assert not any(p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in parameters.values())
    assert all(p.annotation is not inspect.Parameter.empty for name, p in parameters.items() if name != "self")
    settings = {field.name: field.default for field in dataclasses.fields(DrawSettings)}
    # Gaps are filled to their end, and not by autoregression.
    left_out = {"stop_at_eos", "draft", "ahead"} if method == "infill" else set()
    assert {name: parameters[name].default for name in settings if name not in left_out} == {
        name: value for name, value in settings.items() if name not in left_out
    }


def test_a_hyperschedule_means_the_same_everywhere():
    for method in ("generate", "stream", "perplexity"):
        hints = typing.get_type_hints(getattr(hdlm.Bundle, method), localns={"Rule": hdlm.Rule, "Bound": hdlm.Bound})
        assert hints["hyperschedule"] == hdlm.Hyperschedule | None
    model = bundle("flat", process="absorbing")
    exact, bound = (model.perplexity("abc", hyperschedule=s) for s in (hdlm.Quench(9), hdlm.Block(9, 2)))
    assert exact.name == "exact negative log-likelihood"
    assert (bound.name, bound.schedule) == ("masked bound", "block 2")
    with pytest.raises(ValueError, match="hyperschedule = 'block' is not accepted: it must be a Hyperschedule"):
        model.perplexity("abc", hyperschedule="block")


def test_a_bundle_tells_what_it_is_in_a_line_and_moves():
    model = bundle()
    assert repr(model).count("\n") == 0
    assert len(repr(model)) < 200
    assert "parameters, shifted, GammaHybrid(11" in repr(model)
    assert model.device == torch.device("cpu")
    assert model.to(dtype=torch.float32) is model
    assert model.model.embedding.dtype == torch.float32
    for device, words in (("tpu", "must be cpu or cuda"), ("cuda", "there is no CUDA here")):
        if device == "tpu" or not torch.cuda.is_available():
            with pytest.raises(ValueError, match=words):
                model.to(device)
    with pytest.raises(ValueError, match=r"dtype = float16 is not accepted on the CPU"):
        model.to("cpu", torch.float16)


def test_a_network_that_is_given_token_ids_says_what_it_reads():
    model = bundle()
    with pytest.raises(TypeError, match=r"reads Slots, not Tensor: bundle\.logits\(token_ids\)"):
        model.model(torch.tensor([[1, 2]]))
    assert model.logits(torch.tensor([[1, 2]])).shape == (1, 2, 11)
    with pytest.raises(ValueError, match="this network is aligned"):
        bundle(shifted=False).logits(torch.tensor([[1, 2]]))


@pytest.mark.parametrize("setting", [{"stop_at_eos": "no"}, {"cache": 1}, {"batch_size": 0}, {"backend": "quick"}])
def test_settings_are_checked_before_anything_is_drawn(setting):
    with pytest.raises(ValueError, match=next(iter(setting))):
        bundle().generate(**setting)
