"""What the help and the documentation say of samplers and mixtures is what there is."""

import re
from contextlib import suppress
from pathlib import Path

import pytest

from hdlm.cli.main import main
from hdlm.config.build import RULES, SCHEDULES

DOCS = Path(__file__).parents[2] / "docs"


def help_of(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with suppress(SystemExit):
        main([command, "--help"])
    return capsys.readouterr().out


@pytest.mark.parametrize("command", ["sample", "evaluate", "train", "plan", "export"])
def test_help_fits_on_a_screen(command, capsys, monkeypatch):
    assert len(help_of(command, capsys, monkeypatch).splitlines()) <= 30


def test_every_sampler_is_named(capsys, monkeypatch):
    said = " ".join(help_of("sample", capsys, monkeypatch).split())
    assert f"--sampler S {', '.join(RULES)} (the model's)" in said
    page = (DOCS / "sampling.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| `([a-z-]+)`", page, re.MULTILINE)
    assert set(table) - {"--sampler"} == set(RULES)


def test_every_way_and_the_words_of_a_mixture_are_named(capsys, monkeypatch):
    said = help_of("sample", capsys, monkeypatch)
    assert all(flag in said for flag in ("--block W", "--slide W", "--flat", "--ar", "--custom FILE"))
    assert "KIND[:WIDTH][:SHARE]" in help_of("train", capsys, monkeypatch)
    page = (DOCS / "recipes.md").read_text(encoding="utf-8")
    assert "--schedules block:16:6,flat:2" in page
    assert all(f"`{kind}" in page for kind in (*SCHEDULES, "custom:FILE"))
