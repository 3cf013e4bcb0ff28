"""`hdlm export` on the command line."""

import json

import pytest
import torch
from support.runs import text_folder, tiny_recipe

import hdlm
from hdlm.cli.main import main
from hdlm.train.loop import train


@pytest.fixture(autouse=True)
def _no_token(monkeypatch):
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def test_a_folder_goes_out_and_comes_back(folder, tmp_path, capsys):
    out, ours = str(tmp_path / "out"), str(tmp_path / "ours")
    assert main(["export", folder, "--out", out]) == 0
    assert capsys.readouterr().out == f"wrote {out}\n"
    assert main(["export", out, "--to", "hdlm", "--out", ours, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"to": "hdlm", "out": ours, "pushed": None}
    assert hdlm.load(out).config == hdlm.load(ours).config == hdlm.load(folder).config
    assert main(["sample", out, "--prompt", "abc", "--length", "4", "--seed", "1"]) == 0
    said = capsys.readouterr().out
    assert main(["sample", folder, "--prompt", "abc", "--length", "4", "--seed", "1"]) == 0
    assert capsys.readouterr().out == said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "hdlm: --out is missing: say which folder to write, or --push owner/name"),
        (["--out", "out", "--to", "gguf"], "argument --to: invalid choice: 'gguf'"),
        (["--push", "me/letters"], "hdlm: to push a model needs a token of the hub that may write, in $HF_TOKEN"),
        (["--out", "out", "--private"], "hdlm: private = True is not accepted without push"),
        (["--out", "."], "hdlm: . is not accepted: it holds other files"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(words, message, folder, tmp_path, capsys, monkeypatch):
    (tmp_path / "notes.txt").write_text("mine")
    monkeypatch.chdir(tmp_path)
    assert main(["export", folder, *words]) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert (said.err.count("\n"), said.out) == (1, "")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_an_export_that_was_not_pushed_is_there_all_the_same(folder, tmp_path, capsys, monkeypatch):
    """Nobody listens at the address, which is this machine's own."""
    pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.hf_api.constants.ENDPOINT", "http://127.0.0.1:9")
    out = str(tmp_path / "out")
    assert main(["export", folder, "--out", out, "--push", "me/letters"]) == 1
    said = capsys.readouterr()
    assert said.out == f"wrote {out}\n"
    assert said.err.startswith("hdlm: me/letters could not be pushed: ")
    assert "refused" in said.err  # by this machine: nothing was sent anywhere else
    assert "hf_secret" not in said.err
    assert hdlm.load(out).config == hdlm.load(folder).config


def test_a_run_that_is_not_finished_gives_its_last_checkpoint(tmp_path, capsys):
    run, out = tmp_path / "run", str(tmp_path / "out")
    train(tiny_recipe(text_folder(tmp_path / "text"), steps=4), run, quiet=True)
    finished = hdlm.load(run)
    for path in (path for path in run.iterdir() if path.is_file()):
        path.unlink()
    assert main(["export", str(run), "--to", "hdlm", "--out", out]) == 0
    said = capsys.readouterr()
    assert said.out == f"wrote {out}\n"
    assert "is not finished: this is its last checkpoint" in said.err
    found = hdlm.load(out)
    assert found.config == finished.config
    assert all(map(torch.equal, found.model.parameters(), finished.model.parameters()))
