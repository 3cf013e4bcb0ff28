"""Where the fast floor is chosen, and that nothing needs it."""

import importlib.util

import pytest
from support.bundles import bundle

import hdlm
from hdlm import backend


@pytest.fixture
def without_fast(monkeypatch):
    """As if the folder had been deleted."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "hdlm.fast" else find(name))
    monkeypatch.setattr(importlib, "import_module", lambda name: pytest.fail(f"{name} is asked for"))


def test_the_fast_floor_is_chosen_where_there_is_one():
    assert backend.choose("reference") == "reference"
    assert backend.choose(None) == ("fast" if importlib.util.find_spec("hdlm.fast") else "reference")
    with pytest.raises(ValueError, match="backend = 'quick' is not accepted: it must be one of fast, reference"):
        backend.choose("quick")


def test_without_the_fast_floor_the_same_is_written(without_fast):
    model, how = bundle(), {"num_samples": 2, "length": 12, "seed": 0}
    assert backend.choose(None) == "reference"
    assert model.generate("ab", **how).tokens == model.generate("ab", backend="reference", **how).tokens
    with pytest.raises(ValueError, match=r"backend = 'fast' is not accepted: hdlm\.fast is not installed"):
        model.generate("ab", backend="fast", **how)


def test_training_refuses_another_floor_before_it_begins(tmp_path):
    with pytest.raises(ValueError, match="backend = 'quick' is not accepted"):
        hdlm.train(hdlm.recipes.get("laptop"), tmp_path / "run", backend="quick")
    assert not (tmp_path / "run").exists()
