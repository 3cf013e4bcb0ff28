"""Prepared data at URLs: fetched once, read from the cache, and refused by its URL where something is wrong."""

import builtins
import json

import numpy as np
import pytest
from support.prepared import make

from hdlm.cli.main import main
from hdlm.data.packed import load_rows
from hdlm.data.prepared import verify
from hdlm.data.remote import open_prepared

fsspec = pytest.importorskip("fsspec")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HDLM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def made(tmp_path, monkeypatch):
    return make(tmp_path, monkeypatch)


@pytest.fixture
def url(made):
    """The same in fsspec's memory."""
    system = fsspec.filesystem("memory")
    system.put(str(made.folder), "/bucket/tokens", recursive=True)
    yield "memory://bucket/tokens"
    system.rm("/bucket", recursive=True)


def test_files_are_fetched_once_and_read_from_the_cache(url, made, cache):
    told = []
    found = open_prepared(url, lambda *what: told.append(what))
    assert found.folder.is_relative_to(cache / "prepared")
    assert found.splits == made.splits
    assert [what for what, _, _ in told] == [f"fetching {name}" for name in ("tokenizer.json", *shards_of(made))]
    assert told[1][1:] == (0, sum(made.total(split, "tokens") for split in made.splits) * 2)
    assert verify(found) == told[1][2]
    assert np.array_equal(load_rows(found, "train", None, 8).tokens, load_rows(made, "train", None, 8).tokens)
    told.clear()
    assert open_prepared(url, lambda *what: told.append(what)).folder == found.folder
    assert told == []


def shards_of(made):
    return [shard.file for shards in made.splits.values() for shard in shards]


def test_a_local_url_is_one_too(made):
    assert open_prepared(f"file://{made.folder}/").splits == made.splits


def test_an_interrupted_copy_goes_on(url, made, monkeypatch):
    from hdlm.data import remote

    class PowerCutError(Exception):
        pass

    def crash(what, done, total):
        if what == "fetching train-00002.bin":
            raise PowerCutError

    with pytest.raises(PowerCutError):
        open_prepared(url, crash)
    copied, real = [], remote._copy
    monkeypatch.setattr(remote, "_copy", lambda *how: copied.append(how[3].name) or real(*how))
    open_prepared(url)
    assert copied == [name for name in shards_of(made) if name not in ("train-00000.bin", "train-00001.bin")]
    copied.clear()
    (open_prepared(url).folder / "train-00001.bin").write_bytes(b"cut")
    verify(open_prepared(url))
    assert copied == ["train-00001.bin"]


def test_what_was_prepared_anew_is_fetched_anew(url, made, tmp_path, monkeypatch):
    first = open_prepared(url)
    (tmp_path / "text.jsonl").write_text(json.dumps({"text": "other words " * 300}) + "\n")
    other = make(tmp_path, monkeypatch, name="other")
    system = fsspec.filesystem("memory")
    system.rm("/bucket/tokens", recursive=True)
    system.put(str(other.folder), "/bucket/tokens", recursive=True)
    second = open_prepared(url)
    assert second.folder != first.folder
    assert second.splits == other.splits != first.splits


def test_what_is_wrong_is_named_by_its_url(url, cache):
    system = fsspec.filesystem("memory")
    system.pipe_file("/bucket/tokens/train-00001.bin", b"wrong")
    with pytest.raises(ValueError, match=rf"^{url}/train-00001\.bin is damaged or another one"):
        open_prepared(url)
    assert not list(cache.rglob("train-00001.bin"))
    assert not list(cache.rglob(".aside-*"))
    system.rm("/bucket/tokens/train-00001.bin")
    with pytest.raises(ValueError, match=rf"^{url}/train-00001\.bin could not be had"):
        open_prepared(url)
    with pytest.raises(ValueError, match=r"^memory://nowhere/index\.json could not be had"):
        open_prepared("memory://nowhere")
    with pytest.raises(ValueError, match="data = 'nothing://x' is not accepted: Protocol not known"):
        open_prepared("nothing://x")


def test_without_fsspec_a_url_says_what_it_needs(monkeypatch):
    real = builtins.__import__

    def importing(name, *rest):
        if name == "fsspec":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", importing)
    with pytest.raises(ValueError, match=r"data = 's3://b/t' is a URL and needs: pip install 'hdlm\[remote\]'"):
        open_prepared("s3://b/t")


def test_the_command_line_takes_urls(url, capsys):
    assert main(["data", "verify", url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["whole"] is True
    assert main(["data", "inspect", "memory://nowhere"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
