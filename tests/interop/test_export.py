"""`hdlm.export`: where a model may be written, what its card goes on to say, and the hub, which a stand-in plays."""

import json
from pathlib import Path

import pytest
from support.exported import exported

import hdlm
from hdlm.errors import UnwrittenError
from hdlm.interop.huggingface.folder import FILES

RESULTS = Path(__file__).parents[2] / "docs" / "results.md"
TOKEN = "hf_secretsecretsecret"


@pytest.fixture(autouse=True)
def _no_token(monkeypatch):
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def test_the_card_shows_use_and_keeps_what_was_measured(tmp_path):
    hdlm.export("stories", tmp_path)
    card, measured = (tmp_path / "README.md").read_text(), RESULTS.read_text(encoding="utf-8")
    assert card.startswith("---\nlibrary_name: transformers\npipeline_tag: text-generation\n")
    assert 'generate(**inputs, max_new_tokens=32, hdlm_schedule="block:16")' in card
    bounds = [line.split(" | ")[1] for line in card.splitlines() if line.startswith(("| AR", "| block", "| slide"))]
    assert len(bounds) == 4
    assert all(bound in measured for bound in bounds)


def test_the_card_of_others_is_kept_without_its_metadata(tmp_path):
    bundle = exported("unconditioned")
    bundle.save(tmp_path / "model")
    (tmp_path / "model" / "README.md").write_text("---\nlicense: mit\n---\n\n# Mine\n\nLoss 1.25.\n")
    hdlm.export(tmp_path / "model", tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert card.endswith("\n## The card that it came with\n\n# Mine\n\nLoss 1.25.\n")
    assert "license" not in card
    hdlm.export(bundle, tmp_path / "out")
    assert "Mine" not in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize(
    ("name", "changes", "shown", "hidden"),
    [
        ("no MASK", {}, "one token after the other", "hdlm_schedule"),
        (
            "unconditioned",
            {"shifted": False, "next_token": False},
            'hdlm_schedule="block:4"',
            "one token after the other",
        ),
        ("adaLN, weighted", {}, 'hdlm_schedule="block:4", hdlm_sampler="certain"', "posterior"),
    ],
)
def test_the_card_shows_what_the_network_can_do(name, changes, shown, hidden, tmp_path):
    hdlm.export(exported(name, **changes), tmp_path)
    card = (tmp_path / "README.md").read_text()
    assert shown in card
    assert hidden not in card


def test_an_older_export_is_replaced_and_nothing_else(tmp_path):
    bundle, out = exported("unconditioned"), tmp_path / "out"
    bundle.chat_template = "{{ messages }}"
    assert hdlm.export(bundle, out).folder == out
    bundle.chat_template = None
    hdlm.export(bundle, out)
    assert {path.name for path in out.iterdir()} == set(FILES) - {"chat_template.jinja"}
    bundle.save(tmp_path / "ours")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "blocked" / "README.md").mkdir(parents=True)
    (tmp_path / "blocked" / "config.json").write_text((out / "config.json").read_text())
    for name in ("ours", "other"):
        with pytest.raises(ValueError, match="holds other files and no model of the layout huggingface"):
            hdlm.export(bundle, tmp_path / name)
    with pytest.raises(ValueError, match="holds other files and no model of the layout hdlm"):
        hdlm.export(bundle, out, to="hdlm")
    with pytest.raises(ValueError, match="it is a file, and a folder is to be written"):
        hdlm.export(bundle, tmp_path / "file")
    with pytest.raises(ValueError, match="it is a folder, and a file is to be written"):
        hdlm.export(bundle, tmp_path / "blocked")
    assert (tmp_path / "other" / "notes.txt").read_text() == "mine"


def test_what_makes_no_sense_is_refused_before_work_begins(tmp_path):
    for said, message in (
        ({"to": "onnx"}, "to = 'onnx' is not accepted"),
        ({"private": True}, "private = True is not accepted without push"),
        ({"push": "a/b"}, r"a token of the hub that may write, in \$HF_TOKEN: there is none"),
        ({"push": "a"}, "push = 'a' is not accepted: it must be owner/name"),
        ({"push": "a/../b"}, "push = 'a/../b' is not accepted"),
    ):
        with pytest.raises(ValueError, match=message):
            hdlm.export("stories", tmp_path / "out", **said)
    with pytest.raises(ValueError, match="out = None is not accepted without push"):
        hdlm.export("stories")
    assert not (tmp_path / "out").exists()


def test_a_part_that_the_file_does_not_compute_is_refused_by_name(tmp_path, monkeypatch):
    from hdlm.interop.huggingface import names

    monkeypatch.delitem(names._MODEL, "head_width")
    with pytest.raises(ValueError, match="head_width = 12 is not accepted: the network for transformers has no such"):
        hdlm.export(exported("wide heads, head for MASK"), tmp_path / "out")
    assert not (tmp_path / "out" / "config.json").exists()


class Hub:
    """A stand-in for `huggingface_hub.HfApi` that remembers what it was asked."""

    asked: list = []  # noqa: RUF012, of the class, since it is made anew for every call
    error = None

    def __init__(self, token):
        self.asked.append(("token", token))

    def create_repo(self, **how):
        self.asked.append(("create", how))
        if self.error is not None:
            raise self.error
        return f"https://hub.example/{how['repo_id']}"

    def upload_folder(self, **how):
        held = {path.name for path in Path(how["folder_path"]).iterdir()}
        self.asked.append(("upload", how["repo_id"], held, how["allow_patterns"]))


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    monkeypatch.setattr(Hub, "asked", [])
    return Hub


def test_a_model_is_pushed_with_the_token_of_the_environment(hub, tmp_path):
    bundle = exported("unconditioned")
    done = hdlm.export(bundle, tmp_path / "out", push="me/letters", private=True)
    assert (done.folder, done.address) == (tmp_path / "out", "https://hub.example/me/letters")
    token, create, upload = hub.asked
    assert token == ("token", TOKEN)
    assert create[1] == {"repo_id": "me/letters", "private": True, "exist_ok": True}
    assert upload[:2] == ("upload", "me/letters")
    assert upload[2] <= set(upload[3])
    assert {"config.json", "model.safetensors", "modeling_hdlm.py", "README.md"} <= upload[2]
    done = hdlm.export(bundle, push="me/letters")
    assert (done.folder, done.address) == (None, "https://hub.example/me/letters")
    assert hub.asked[4][1]["private"] is None
    assert {"config.json", "model.safetensors"} <= hub.asked[5][2]


def test_what_could_not_be_pushed_is_told_in_a_line_without_the_token(hub, tmp_path, monkeypatch):
    monkeypatch.setattr(Hub, "error", ConnectionError(f"no route for Bearer {TOKEN}\nand more"))
    with pytest.raises(UnwrittenError) as caught:
        hdlm.export(exported("unconditioned"), tmp_path / "out", push="me/letters")
    assert str(caught.value) == "me/letters could not be pushed: no route for Bearer ***"
    assert caught.value.result.folder == tmp_path / "out"
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == "hdlm"
