"""A folder of tokens: what is read of it is what was written, and what is not is refused by its name."""

import json
import shutil

import numpy as np
import pytest
import torch
from support.prepared import make

from hdlm.data.corpus import open_corpus
from hdlm.data.packed import load_rows
from hdlm.data.places import is_prepared
from hdlm.data.prepared import read_prepared, verify
from hdlm.data.sequence import Sequence
from hdlm.data.shard import CHUNK, Shard, works, write_shard
from hdlm.data.tokenizer import make_tokenizer


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        return make(tmp_path_factory.mktemp("made"), patch)


@pytest.fixture
def copy(made, tmp_path):
    """One to be damaged."""
    return shutil.copytree(made.folder, tmp_path / "tokens")


def expected(made, split):
    """The documents of a split encoded one by one, EOS after each."""
    tokenizer = make_tokenizer("bytes", [])
    documents = open_corpus(made.source.name).documents(split)
    return [token for text in documents for token in (*tokenizer.tokenizer.encode(text).ids, tokenizer.eos_id)]


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_shards_are_the_documents_one_after_the_other(made, split):
    assert made.sequence(split).all().tolist() == expected(made, split)
    assert len(made.splits["train"]) > 5
    assert made.total(split, "documents") == len(list(open_corpus(made.source.name).documents(split)))
    assert made.total(split, "text_bytes") == sum(map(len, open_corpus(made.source.name).documents(split)))


def test_rows_of_prepared_data_are_those_of_its_text(made, tmp_path, monkeypatch):
    """The same rows, so the same run: in one shard of the cache, or in many."""
    monkeypatch.setenv("HDLM_CACHE", str(tmp_path / "cache"))
    rows, text = (load_rows(data, "train", make_tokenizer("bytes", []), 7) for data in (made, made.source.name))
    assert len(list((tmp_path / "cache" / "tokens").glob("*/train-*.bin"))) == 1
    numbers = torch.tensor([[0, 3], [len(rows) - 1, 40]])
    assert torch.equal(rows.take(numbers), text.take(numbers))
    assert np.array_equal(rows.tokens, text.tokens)
    assert (len(rows), rows.content, rows.documents, rows.text_bytes) == (
        len(text),
        text.content,
        text.documents,
        text.text_bytes,
    )
    with pytest.raises(IndexError, match=f"row {len(rows)} of {len(rows)}"):
        rows.tokens[torch.tensor([len(rows)]).numpy()]


def test_a_sequence_is_read_over_any_ends_of_shards(tmp_path):
    tokens, shards = np.arange(23, dtype=np.uint16), []
    for number, (start, end) in enumerate(((0, 1), (1, 1), (1, 9), (9, 23))):
        (tmp_path / f"{number}.bin").write_bytes(tokens[start:end].tobytes())
        shards.append(Shard(f"{number}.bin", end - start, 0, 0, 0, digest_of(tmp_path / f"{number}.bin")))
    sequence = Sequence(tmp_path, shards, np.dtype("<u2"))
    for start in range(24):
        for size in range(24 - start):
            found = np.empty(size, np.uint16)
            sequence.read(start, found)
            assert np.array_equal(found, tokens[start : start + size])
    assert sequence.wrapped(5).shape == (4, 5)
    assert sequence.wrapped(5)[1:3].tolist() == tokens[5:15].reshape(2, 5).tolist()
    assert len(Sequence(tmp_path, [], np.dtype("<u2")).wrapped(5)) == 0


def digest_of(path):
    import hashlib

    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_where_a_shard_ends_follows_from_the_text(monkeypatch):
    from hdlm.data import shard

    monkeypatch.setattr(shard, "SHARD", 10)
    monkeypatch.setattr(shard, "CHUNK", 8)
    documents = [("train", "abcdef"), ("valid", "x"), ("train", "hi"), ("train", "kl mnopqrs"), ("train", "")]
    found = [(work.file, work.chunks) for work in works(documents)]
    assert found == [
        ("train-00000.bin", [("abcdef", True), ("hi", True)]),
        ("train-00001.bin", [("kl ", False), ("mnopqrs", True)]),
        ("train-00002.bin", [("", True)]),
        ("valid-00000.bin", [("x", True)]),
    ]
    kept = [(work.file, work.chunks) for work in works(documents, {"train-00001.bin"})]
    assert kept == [found[0], ("train-00001.bin", None), *found[2:]]
    assert CHUNK == 100_000  # another number would be other tokens


def test_a_shard_tells_what_it_adds(tmp_path, monkeypatch):
    from hdlm.data import shard

    monkeypatch.setattr(shard, "_BATCH", 4)
    told, tokenizer = [], make_tokenizer("bytes", [])
    chunks = [("ab", False), ("cd", True), ("ü\ufffd", True)]
    made = write_shard(tmp_path / "a.bin", chunks, tokenizer, np.dtype("<u2"), tell=lambda *more: told.append(more))
    assert told == [(5, 1, 5), (6, 1, 3)]
    assert (made.file, made.tokens, made.documents, made.text_bytes, made.replaced) == ("a.bin", 11, 2, 9, 1)
    assert made.sha256 == digest_of(tmp_path / "a.bin")


def test_all_of_it_is_verified(made):
    told = []
    assert verify(made, lambda *what: told.append(what)) == 2 * sum(
        made.total(split, "tokens") for split in made.splits
    )
    assert told[0][1:] == (0, told[-1][2])
    assert told[-1][1] == told[-1][2]


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "flipped": (
        lambda folder: flip(folder / "train-00002.bin"),
        r"train-00002\.bin is damaged or another one: its SHA",
    ),
    "cut off": (
        lambda folder: (folder / "train-00002.bin").write_bytes(b"ab"),
        r"train-00002\.bin is damaged or another one: it has 2 bytes, and index\.json says",
    ),
    "missing": (
        lambda folder: (folder / "train-00002.bin").unlink(),
        r"train-00002\.bin is missing: index\.json names",
    ),
    "foreign": (
        lambda folder: (folder / "train-00099.bin").write_bytes(b"ab"),
        r"train-00099\.bin is foreign: index\.json knows no such shard",
    ),
    "swapped": (
        lambda folder: shutil.copy(folder / "train-00001.bin", folder / "train-00002.bin"),
        r"train-00002\.bin is damaged or another one",
    ),
    "another tokenizer": (
        lambda folder: (folder / "tokenizer.json").write_text(make_tokenizer("chars", []).tokenizer.to_str()),
        r"tokenizer\.json is damaged or another one",
    ),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), r"tokenizer\.json is missing"),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_damage_is_named_and_nothing_is_overwritten(how, copy):
    do, message = DAMAGE[how]
    do(copy)
    before = {path.name: path.read_bytes() for path in copy.iterdir()}
    with pytest.raises(ValueError, match=message) as caught:
        verify(read_prepared(copy))
    assert str(copy) in str(caught.value)
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before


@pytest.mark.parametrize("how", ["flipped", "cut off", "missing", "swapped"])
def test_rows_of_a_damaged_shard_are_not_learned_from(how, copy):
    do, message = DAMAGE[how]
    do(copy)
    made = read_prepared(copy)
    with pytest.raises(ValueError, match=message):
        load_rows(made, "train", None, 8)


def change(index, path, value):
    *parents, last = path
    for name in parents:
        index = index[name]
    index[last] = value


FIRST = ("splits", "train", 0)
WRONG = {
    "format": (("format",), "other", "it must have the format 'hdlm tokens', version 1"),
    "version": (("version",), 2, "it must have the format 'hdlm tokens', version 1"),
    "a file elsewhere": ((*FIRST, "file"), "../train-00000.bin", "is no name of a shard"),
    "a file of another kind": ((*FIRST, "file"), "index.json", "is no name of a shard"),
    "a negative count": ((*FIRST, "tokens"), -1, "a count of 'train-00000.bin' is none"),
    "a count in words": ((*FIRST, "documents"), "7", "a count of 'train-00000.bin' is none"),
    "a digest that is none": ((*FIRST, "sha256"), 7, "a name or a digest is no string"),
    "a field too many": ((*FIRST, "more"), 7, "is damaged or no index"),
    "shards that are none": (("splits", "train"), [7], "is damaged or no index"),
    "splits that are none": (("splits",), 7, "is damaged or no index"),
    "another type": (("dtype",), "O", "dtype = 'O'"),
    "content without a split": (("source", "content"), {"train": "x"}, "content"),
    "content that is none": (("source", "content"), 7, "is damaged or no index"),
}


@pytest.mark.parametrize("how", WRONG)
def test_an_index_that_is_none_is_refused(how, copy):
    path, value, message = WRONG[how]
    index = json.loads((copy / "index.json").read_text())
    change(index, path, value)
    (copy / "index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=message) as caught:
        read_prepared(copy)
    assert "index.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_no_prepared_data_is_told_apart(made, copy, tmp_path):
    assert is_prepared(str(made.folder))
    assert is_prepared("s3://bucket/tokens")
    assert not is_prepared(str(tmp_path / "nowhere"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "index.json").write_text('{"name": "a web page"}')
    assert not is_prepared(str(tmp_path / "other"))
    for folder, message in ((tmp_path / "other", "version 1"), (tmp_path, "index.json is missing")):
        with pytest.raises(ValueError, match=message):
            read_prepared(folder)
    (copy / "index.json").write_text((copy / "index.json").read_text()[:200])
    assert is_prepared(str(copy))
    with pytest.raises(ValueError, match=r"index\.json is not JSON"):
        read_prepared(copy)


def test_tokens_are_no_text(made):
    with pytest.raises(ValueError, match="it is prepared tokens, and text is needed here"):
        open_corpus(str(made.folder))
    with pytest.raises(ValueError, match="has no split 'dev': it has train, valid, test"):
        load_rows(made, "dev", None, 8)
    with pytest.raises(ValueError, match=r"split 'valid' has \d+ tokens: at least one context of 100,000 is needed"):
        load_rows(made, "valid", None, 100_000)
