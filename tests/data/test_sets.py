"""Named sets: files in $HDLM_DATA first, else the hub's, read by the real library from files of the same form."""

import builtins
import csv
import json

import pytest

from hdlm.data import hub, sets
from hdlm.data.corpus import open_corpus
from hdlm.data.hub import HubSet
from hdlm.data.listed import sets as listed
from hdlm.data.meter import Meter
from hdlm.data.sets import SETS, NamedSet, articles, one_text


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("HDLM_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "hf"))
    return tmp_path / "data"


def table(path, **columns):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table(columns), path)


def put(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def add(monkeypatch, name, named):
    monkeypatch.setitem(SETS, name, named)


def texts(name, split):
    return list(open_corpus(name).documents(split))


@pytest.fixture
def the_hub(tmp_path, monkeypatch):
    """A folder that stands for the hub's files."""
    pytest.importorskip("datasets")
    monkeypatch.setattr(hub, "_FILES", f"{tmp_path}/hub/")
    return tmp_path / "hub"


@pytest.mark.filterwarnings("ignore")
def test_sets_that_come_with_code_are_read_from_the_hubs_conversion(the_hub):
    """By their own column and split names."""
    place = the_hub / "ptb-text-only" / "ptb_text_only@refs%2Fconvert%2Fparquet" / "penn_treebank"
    for split, count in (("train", 3), ("validation", 2), ("test", 1)):
        table(place / split / "0000.parquet", sentence=[f"the {split} 's line {i}" for i in range(count)])
    assert texts("ptb", "valid") == ["the validation's line 0", "the validation's line 1"]
    assert len(texts("ptb", "train")) == 3
    papers = the_hub / "armanc" / "scientific_papers@refs%2Fconvert%2Fparquet" / "pubmed" / "test"
    table(papers / "0000.parquet", article=["one paper"], abstract=["short"], section_names=["a"])
    table(papers / "0001.parquet", article=["another"], abstract=["short"], section_names=["b"])
    assert texts("pubmed-papers", "test") == ["one paper", "another"]


@pytest.mark.filterwarnings("ignore")
def test_plain_sets_are_asked_for_by_name_and_streamed(the_hub, tmp_path, monkeypatch):
    """A folder stands for a set of the hub: the library reads both alike."""
    here = str(tmp_path / "plain")
    for split in ("train", "test"):
        table(tmp_path / "plain" / f"{split}.parquet", text=[f"{split} {i}" for i in range(4)], label=[0] * 4)
    add(monkeypatch, "plain", NamedSet("", hub=HubSet(here, {"train": "train", "test": "test"}, rows={"train": 4})))
    assert texts("plain", "train") == [f"train {i}" for i in range(4)]
    meter = Meter()
    parts = open_corpus("plain").parts(("train",), meter)
    assert [(next(parts), meter.share)[1] for _ in range(4)] == [0, 0.25, 0.5, 0.75]
    assert list(HubSet(here, {"train": "train"}).texts("train", "plain", start=3)) == ["train 3"]


def test_what_is_asked_of_the_library(monkeypatch):
    """No code of the hub's runs: not even the flag for it is known here."""
    asked = []

    class Fake:
        @staticmethod
        def load_dataset(**how):
            asked.append(how)
            raise RuntimeError("no network\nat all")

    monkeypatch.setitem(__import__("sys").modules, "datasets", Fake)
    for name in ("owt", "lm1b-full"):
        with pytest.raises(ValueError, match=f"data = '{name}' could not be had from the hub: no network$"):
            texts(name, "valid")
    revision = "79d93d786212f7344586290adb811d4ae6a1762c"
    place = "hf://datasets/billion-word-benchmark/lm1b@refs%2Fconvert%2Fparquet/plain_text/test/*.parquet"
    assert asked == [
        {
            "path": "Skylion007/openwebtext",
            "name": "plain_text",
            "revision": revision,
            "split": "train",
            "streaming": True,
        },
        {"path": "parquet", "data_files": {"test": place}, "split": "test", "streaming": True},
    ]


def test_without_the_library_a_set_says_what_it_needs(monkeypatch):
    real = builtins.__import__

    def importing(name, *rest):
        if name == "datasets":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", importing)
    with pytest.raises(ValueError, match=r"comes from the hub and needs: pip install 'hdlm\[datasets\]'"):
        texts("owt", "train")


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_files_here_go_before_the_hub_and_the_last_documents_are_held_out(form, root, monkeypatch):
    documents = [f"document {i}" for i in range(7)]
    for number, part in enumerate((documents[:3], documents[3:])):
        path = root / "owt" / f"train-{number:05d}-of-00002.{form}"
        if form == "parquet":
            table(path, text=part)
        else:
            put(path, "".join(json.dumps({"text": text}) + "\n" for text in part))
    add(monkeypatch, "owt", NamedSet(SETS["owt"].about, SETS["owt"].files, SETS["owt"].hub, tail=2))
    assert (texts("owt", "train"), texts("owt", "valid")) == (documents[:5], documents[5:])
    both = list(open_corpus("owt").parts(("train", "valid"), Meter()))
    assert both == [(("train" if i < 5 else "valid"), text) for i, text in enumerate(documents)]
    with pytest.raises(ValueError, match="has no split 'test': it has train, valid"):
        texts("owt", "test")
    before = open_corpus("owt").fingerprint("train")
    put(root / "owt" / f"train-00001-of-00002.{form}", "changed")
    assert open_corpus("owt").fingerprint("train") != before


def test_text8_is_cut_at_its_standard_places(root, monkeypatch):
    assert SETS["text8"].cut == (90_000_000, 95_000_000, 100_000_000)
    add(monkeypatch, "text8", NamedSet("", {"train": "text8.txt*"}, cut=(9, 11, 13)))
    put(root / "text8" / "text8.txt", "abcdefghijklm\n")
    assert [texts("text8", split) for split in ("train", "valid", "test")] == [["abcdefghi"], ["jk"], ["lm"]]
    put(root / "text8" / "text8.txt", "abcdefghijkl")
    with pytest.raises(ValueError, match="data = 'text8' is not accepted: it has 12 characters, and must have 13"):
        texts("text8", "train")


@pytest.mark.parametrize("rows", [{"train": "abcdefghi", "validation": "jk", "test": "lm"}, {"train": "abcdefghijklm"}])
@pytest.mark.filterwarnings("ignore")
def test_text8_of_the_hub_may_come_in_one_piece_or_in_three(rows, the_hub, monkeypatch):
    for split, text in rows.items():
        table(the_hub / f"somebody/text8@main/None/{split}/0.parquet", text=[text])
    theirs = {"train": "train", "valid": "validation", "test": "test"}
    where = HubSet("somebody/text8", theirs, converted=True)
    add(monkeypatch, "text8", NamedSet("", {"train": "text8.txt*"}, where, cut=(9, 11, 13)))
    assert [texts("text8", split) for split in ("train", "valid", "test")] == [["abcdefghi"], ["jk"], ["lm"]]


def test_wikitexts_rows_are_its_file_and_its_articles():
    rows = ["", " = One = \n", "", " Some words . \n", " = = Part = = \n", "", " = Two = \n", " More . \n"]
    whole = " \n = One = \n \n Some words . \n = = Part = = \n \n = Two = \n More . \n"
    assert list(one_text(rows)) == [whole]
    assert list(articles(rows)) == [whole[: whole.index(" = Two")], whole[whole.index(" = Two") :]]
    assert list(articles([])) == []


def test_ag_news_has_its_training_text_too(root):
    (root / "ag_news").mkdir(parents=True)
    with (root / "ag_news" / "train.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["1", "Title", "Body"]])
    assert texts("ag_news", "train") == ["Title\nBody"]


def test_a_missing_set_says_where_it_belongs(root):
    with pytest.raises(ValueError, match=f"data = 'novels' is not at {root}/novels/.*: set HDLM_DATA"):
        texts("novels", "train")


def test_every_set_says_where_it_is_or_how_to_have_it(root):
    put(root / "lambada" / "test.jsonl", '{"text": "x"}\n')
    found = {each["name"]: each for each in listed()}
    assert set(found) == {"stdlib", *SETS}
    assert (found["lambada"]["state"], found["lambada"]["place"]) == ("here", str(root / "lambada"))
    assert found["novels"]["state"] == "missing"
    assert found["novels"]["place"] == "put $HDLM_DATA/novels/eltec-eng.txt.tar.xz there"
    assert found["owt"]["state"] == "hub"
    assert found["owt"]["place"].startswith("Skylion007/openwebtext@79d93d78")
    assert found["owt"]["place"].endswith("or put $HDLM_DATA/owt/train-* there")
    assert found["stories-test"]["state"] == "here"


def test_splits_of_every_set_are_among_the_three():
    for name, named in SETS.items():
        assert set(named.splits) <= set(sets.SPLITS), name
        assert named.held_out in named.splits, name
        assert named.hub is None or set(named.hub.splits) <= set(sets.SPLITS), name
