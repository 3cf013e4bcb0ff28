"""Corpora, tokenizers, packing and the stream, on files made on the spot and on the sets beside the checkout."""

import gzip
import json
import multiprocessing
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support.corpora import token_rows

from hdlm.data import detokenize, packed, shard
from hdlm.data.corpus import open_corpus, split_of
from hdlm.data.packed import load_rows
from hdlm.data.sets import SETS
from hdlm.data.stream import Stream
from hdlm.data.tokenizer import CorpusTokenizer, make_tokenizer

SHARED = Path(__file__).parents[3] / "shared" / "data"
needs_shared = pytest.mark.skipif(not SHARED.exists(), reason="the corpora are not beside this checkout")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HDLM_CACHE", str(tmp_path / "cache"))


def test_stdlib_is_everywhere_and_split_by_file():
    corpus = open_corpus("stdlib")
    sizes = {split: sum(len(text) for text in corpus.documents(split)) for split in ("train", "valid", "test")}
    assert sizes["train"] > 5_000_000
    assert min(sizes["valid"], sizes["test"]) > 50_000
    firsts = {split: next(corpus.documents(split)) for split in sizes}
    assert len(set(firsts.values())) == 3


def test_splits_are_shares_and_never_change():
    counts = dict.fromkeys(("train", "valid", "test"), 0)
    for number in range(10_000):
        counts[split_of(f"file{number}")] += 1
    assert counts["train"] == pytest.approx(9000, abs=200)
    assert counts["valid"] == pytest.approx(500, abs=100)
    assert split_of("os.py") == split_of("os.py")


def write_forms(folder, texts):
    """The same documents in every form that is read."""
    import pyarrow as pa
    from pyarrow import parquet

    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (folder / "a.jsonl").write_text(lines)
    with gzip.open(folder / "a.jsonl.gz", "wt") as file:
        file.write(lines)
    parquet.write_table(pa.table({"text": texts}), folder / "a.parquet")
    return [folder / name for name in ("a.jsonl", "a.jsonl.gz", "a.parquet")]


def test_every_form_gives_the_same_documents(tmp_path):
    texts = [f"document {number}\nof two lines" for number in range(60)]
    found = []
    for path in write_forms(tmp_path, texts):
        corpus = open_corpus(str(path))
        splits = [list(corpus.documents(split)) for split in ("train", "valid", "test")]
        assert sorted(text for split in splits for text in split) == sorted(texts)
        found.append([len(split) for split in splits])
    assert all(sum(sizes) == 60 and sizes[0] > 40 for sizes in found)


def test_a_few_files_all_have_every_split(tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text("some words here\n" * 200)
    corpus = open_corpus(str(tmp_path))
    assert [len(list(corpus.documents(split))) for split in ("train", "valid", "test")] == [3, 3, 3]


def test_long_documents_are_encoded_in_chunks(tmp_path, monkeypatch):
    path = tmp_path / "long.txt"
    path.write_text("one two three four " * 500)
    text = make_tokenizer("bytes", [])
    whole = load_rows(str(path), "train", text, 16)
    monkeypatch.setenv("HDLM_CACHE", str(tmp_path / "other"))
    monkeypatch.setattr(shard, "CHUNK", 100)
    assert np.array_equal(load_rows(str(path), "train", text, 16).tokens, whole.tokens)


def test_one_text_file_is_cut_by_length(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text("".join(f"line {number}\n" for number in range(1000)))
    parts = [next(open_corpus(str(path)).documents(split)) for split in ("train", "valid", "test")]
    assert "".join(parts) == path.read_text()
    assert len(parts[0]) == pytest.approx(0.9 * len(path.read_text()), rel=0.02)
    assert all(part.endswith("\n") for part in parts)


@pytest.mark.parametrize("word", ["bytes", "bpe-400"])
def test_tokenizers_lose_nothing(word):
    text = "Naïve café — 你好\n\tdef f(x): return x**2 🙂"
    made = make_tokenizer(word, [text, "hello world"] * 50)
    ids = made.tokenizer.encode(text, add_special_tokens=False).ids
    assert made.tokenizer.decode(ids) == text
    assert max(ids) < made.vocab_size
    assert made.eos_id not in ids


def test_characters_are_text8s():
    made = make_tokenizer("chars", [])
    assert made.vocab_size == 28
    assert made.tokenizer.decode(made.tokenizer.encode("the quick fox").ids) == "the quick fox"


@needs_shared
def test_known_tokenizers_by_name(monkeypatch):
    monkeypatch.setenv("HDLM_DATA", str(SHARED))
    gpt2, bert = make_tokenizer("gpt2", []), make_tokenizer("bert-base-uncased", [])
    assert (gpt2.vocab_size, gpt2.eos_id) == (50_257, 50_256)
    assert (bert.vocab_size, bert.bos_id, bert.eos_id) == (30_522, 101, 102)


def small_corpus(folder, count=40):
    folder.mkdir(exist_ok=True)
    for number in range(count):
        (folder / f"{number}.txt").write_text(f"text number {number} " * 5)
    return str(folder)


def test_rows_are_documents_joined_by_eos_and_wrapped(tmp_path):
    data, text = small_corpus(tmp_path / "text"), make_tokenizer("bytes", [])
    rows = load_rows(data, "train", text, 32)
    flat = rows.take(torch.arange(len(rows))).flatten().tolist()
    expected = []
    for document in open_corpus(data).documents("train"):
        expected += [*text.tokenizer.encode(document).ids, text.eos_id]
    assert flat == expected[: len(flat)]
    assert len(expected) - len(flat) < 32


def test_tokens_are_made_once_per_content(tmp_path, monkeypatch):
    data, text = small_corpus(tmp_path / "text"), make_tokenizer("bytes", [])
    first = load_rows(data, "train", text, 32)
    monkeypatch.setattr(packed, "_make", None)  # any attempt to tokenise again fails
    assert np.array_equal(load_rows(data, "train", text, 32).tokens, first.tokens)
    monkeypatch.undo()
    monkeypatch.setenv("HDLM_CACHE", str(tmp_path / "cache"))
    for path in (tmp_path / "text").iterdir():
        path.write_text("changed " * 20)
    assert not np.array_equal(load_rows(data, "train", text, 32).tokens[:5], first.tokens[:5])


def test_a_crash_half_way_leaves_nothing(tmp_path, monkeypatch):
    data, text = small_corpus(tmp_path / "text"), make_tokenizer("bytes", [])

    def crash(words):
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        load_rows(data, "train", text, 32, tell=crash)
    assert list((tmp_path / "cache" / "tokens").iterdir()) == []
    assert len(load_rows(data, "train", text, 32)) > 0


def test_two_processes_at_once_agree(tmp_path):
    data = small_corpus(tmp_path / "text", 300)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        one, other = pool.map(token_rows, [data, data])
    assert one == other
    assert len(list((tmp_path / "cache" / "tokens").iterdir())) == 1


def test_a_matrix_of_rows_is_taken_as_it_is(tmp_path):
    tokens = np.arange(600, dtype=np.uint16).reshape(60, 10)
    np.save(tmp_path / "rows.npy", tokens)
    save_file({"tokens": torch.from_numpy(tokens.astype(np.int32))}, tmp_path / "rows.safetensors")
    for name in ("rows.npy", "rows.safetensors"):
        splits = [load_rows(str(tmp_path / name), split, None, 10).tokens for split in ("train", "valid", "test")]
        assert len(splits[0]) > 40
        assert np.array_equal(np.sort(np.concatenate(splits), axis=0), tokens)


def test_rows_of_a_matrix_may_end_early(tmp_path):
    tokens = np.arange(600, dtype=np.int32).reshape(60, 10)
    tokens[::2, 7:] = -1
    np.save(tmp_path / "signed.npy", tokens)
    np.save(tmp_path / "unsigned.npy", tokens.astype(np.uint16))
    found = [load_rows(str(tmp_path / f"{name}.npy"), "train", None, 10) for name in ("signed", "unsigned")]
    rows = [rows.take(torch.arange(len(rows))) for rows in found]
    assert torch.equal(rows[0], rows[1])
    assert (rows[0] == -1).any()
    tokens[3] = -1
    np.save(tmp_path / "empty.npy", tokens)
    with pytest.raises(ValueError, match="empty row"):
        load_rows(str(tmp_path / "empty.npy"), "train", None, 10)
    tokens[3] = [1, -1, *range(8)]
    np.save(tmp_path / "hole.npy", tokens)
    with pytest.raises(ValueError, match="goes on after its end"):
        load_rows(str(tmp_path / "hole.npy"), "train", None, 10)


class _Largest(CorpusTokenizer):
    """A text whose last token is the largest number of two bytes."""

    vocab_size = 2**16


def test_no_token_is_taken_for_the_end_of_a_row(tmp_path):
    text = make_tokenizer("bytes", [])
    data = small_corpus(tmp_path / "text", 30)
    largest = _Largest(text.tokenizer, bos_id=2**16 - 1, eos_id=2**16 - 1)
    rows = load_rows(data, "train", largest, 10)
    found = rows.take(torch.arange(len(rows)))
    assert (found == 2**16 - 1).any()
    assert (found >= 0).all()
    np.save(tmp_path / "narrow.npy", np.zeros((60, 10), dtype=np.uint8))
    with pytest.raises(ValueError, match="mark for a row's end need more"):
        load_rows(str(tmp_path / "narrow.npy"), "train", text, 10)


def test_the_stream_is_a_permutation_an_epoch_and_has_no_memory():
    stream = Stream(10, seed=3)
    epochs = [stream.rows_of(torch.arange(start, start + 10)) for start in (0, 10, 20)]
    for epoch in epochs:
        assert sorted(epoch.tolist()) == list(range(10))
    assert not torch.equal(epochs[0], epochs[1])
    again = Stream(10, seed=3).rows_of(torch.tensor([25, 3, 17]))
    assert again.tolist() == [epochs[2][5], epochs[0][3], epochs[1][7]]
    assert not torch.equal(Stream(10, seed=4).rows_of(torch.arange(10)), epochs[0])


def test_detokenisers():
    assert detokenize.wikitext("the 1 @,@ 000 @-@ year war , it 's said ( once ) .") == (
        "the 1,000-year war, it's said (once)."
    )
    assert detokenize.ptb("the company 's stock does n't move") == "the company's stock doesn't move"
    assert detokenize.lm1b('He said , " It \'s 5 % . "') == 'He said, "It\'s 5%."'
    assert detokenize.lambada("“So,” he said") == '"So," he said'


HERE = [
    "text8-prefix",
    "wiki",
    "hotpot-wiki",
    "novels",
    "ptb",
    "wikitext",
    "lm1b",
    "lambada",
    "ag_news",
    "pubmed",
    "arxiv",
]


@needs_shared
@pytest.mark.parametrize("name", [*HERE, "stories-test"])
def test_the_named_sets_are_read(name, monkeypatch):
    monkeypatch.setenv("HDLM_DATA", str(SHARED))
    split = "test" if "test" in SETS[name].files else "train"
    document = next(open_corpus(name).documents(split))
    assert len(document) > 20
    assert "@-@" not in document


BAD = {
    "unknown name": (lambda folder: open_corpus("nowhere"), "data = 'nowhere' is not accepted.*stdlib"),
    "empty folder": (lambda folder: open_corpus(str(folder)), "the folder holds no text"),
    "unreadable kind": (
        lambda folder: next(open_corpus(write(folder, "a.exe", "x")).documents("train")),
        "text is read from",
    ),
    "no text key": (
        lambda folder: list(open_corpus(write(folder, "a.jsonl", '{"body": 1}\n')).documents("train")),
        'line 1: it must be a JSON object with the key "text"',
    ),
    "corpus shorter than a context": (
        lambda folder: load_rows(write(folder, "a.txt", "short"), "train", make_tokenizer("bytes", []), 128),
        "at least one context of 128 is needed",
    ),
    "empty file": (
        lambda folder: load_rows(write(folder, "a.txt", ""), "train", make_tokenizer("bytes", []), 128),
        "has 0 tokens",
    ),
    "text foreign to a character model": (
        lambda folder: load_rows(write(folder, "a.txt", "ÜÄÖ" * 100), "train", make_tokenizer("chars", []), 8),
        "the text holds 'Ä': this tokenizer knows only",
    ),
    "damaged archive": (
        lambda folder: list(open_corpus(write(folder, "a.txt.xz", "no xz")).documents("train")),
        "is damaged",
    ),
    "table without text": (
        lambda folder: list(open_corpus(write(folder, "a.csv", "a,b\n1,2\n")).documents("train")),
        'no "text"',
    ),
    "null text": (
        lambda folder: list(open_corpus(write(folder, "a.jsonl", '{"text": null}\n')).documents("train")),
        "line 1",
    ),
    "matrix of floats": (
        lambda folder: load_rows(save(folder, np.zeros((2, 4))), "train", None, 4),
        r"float64: it must be integers \[rows, 4 or more\]",
    ),
    "matrix too narrow": (lambda folder: load_rows(save(folder, np.zeros((2, 4), int)), "train", None, 5), "5 or more"),
    "bad tokenizer size": (lambda folder: make_tokenizer("bpe-3", []), r"300\.\.200000"),
    "split that a set lacks": (lambda folder: list(open_corpus("lambada").documents("train")), "has no split 'train'"),
}


def write(folder, name, text):
    (folder / name).write_text(text)
    return str(folder / name)


def save(folder, matrix):
    np.save(folder / "m.npy", matrix)
    return str(folder / "m.npy")


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_line(case, tmp_path):
    make, message = BAD[case]
    with pytest.raises(ValueError, match=message) as caught:
        make(tmp_path)
    assert "\n" not in str(caught.value)
