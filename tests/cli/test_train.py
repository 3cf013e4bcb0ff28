"""`hdlm train` and `hdlm plan` as a person meets them; what training does is tested where training is."""

import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from hdlm.cli.main import main
from hdlm.config import recipes
from hdlm.train import loop


@pytest.mark.parametrize(
    ("words", "name", "where"),
    [
        (["laptop", "--steps", "3"], "train", "runs/laptop"),
        (["--out", "x", "--backend", "reference"], "train", "x"),
        (["--resume", "auto", "--out", "x"], "train", "x"),
        (["--resume", "x", "--backend", "fast", "--device", "cpu"], "resume", "x"),
    ],
)
def test_flags_reach_the_run(words, name, where, monkeypatch, capsys):
    calls = []

    def run(*arguments, **settings):
        calls.append((arguments, settings))
        return SimpleNamespace(folder=Path(where), step=3, bound=None, finished=True)

    monkeypatch.setattr(loop, name, run)
    assert main(["train", *words, "--json"]) == 0
    [(arguments, settings)] = calls
    asked = dict(itertools.pairwise(words))
    device, backend = asked.get("--device"), asked.get("--backend")
    going_on = {"go_on": asked.get("--resume") == "auto"} if name == "train" else {}
    assert settings == {"device": device, "backend": backend, "wandb": False, "quiet": True} | going_on
    assert arguments[-1] == Path(where)
    assert name == "resume" or arguments[0].steps == int(asked.get("--steps", recipes.get("laptop").steps))
    assert json.loads(capsys.readouterr().out)["step"] == 3


def test_the_shipped_models_recipe_has_a_price(capsys):
    assert main(["plan", "stories", "--model.layers", "12"]) == 0
    assert "vocabulary 2,047" in capsys.readouterr().out
