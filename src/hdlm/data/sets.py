"""The sets that have a name: which files each is below $HDLM_DATA, and which set of the hub where it is not there.

Knows where text lies and how it is spelled; `corpus.py` reads it.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hdlm.data import detokenize, readers
from hdlm.data.hub import HubSet
from hdlm.folders import SHIPPED, data_root

TRAIN, VALID, TEST = "train", "valid", "test"
SPLITS = (TRAIN, VALID, TEST)
_ALL = {TRAIN: "train", VALID: "validation", TEST: "test"}
_WHOLE = {TRAIN: "train[-.]*", VALID: "valid[-.]*", TEST: "test[-.]*"}
_CONVERTED = "refs/convert/parquet"  # where the hub keeps its conversion of a set that comes with code


def _as_they_are(texts: Iterable[str]) -> Iterator[str]:
    return iter(texts)


@dataclass(frozen=True)
class NamedSet:
    """The files of a set by split, as patterns, in the folder of its name below $HDLM_DATA, or `shipped` in here.

    `about`: what it is, and how to have it where it is not here. `lines`: a document a line; `columns`: AG News' CSV.
    `clean`: of a document's text; `joined`: of the hub's rows, where they are not documents. `tail`: so many documents
    of the training text are held out. `cut`: one text whose splits end after so many characters.
    """

    about: str
    files: dict[str, str] = field(default_factory=lambda: _WHOLE)
    hub: HubSet | None = None
    shipped: bool = False
    lines: bool = False
    columns: bool = False
    clean: Callable[[str], str] = str
    joined: Callable[[Iterable[str]], Iterator[str]] = _as_they_are
    tail: int = 0
    cut: tuple[int, ...] = ()

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that it has."""
        if self.tail:
            return TRAIN, VALID
        return SPLITS if set(self.files) == {TRAIN} else tuple(self.files)

    @property
    def held_out(self) -> str:
        """The split that an evaluation reads."""
        return TEST if TEST in self.splits else VALID


def one_text(rows: Iterable[str]) -> Iterator[str]:
    """WikiText's rows, each a line that may have lost its blanks, as the one text that its files are."""
    yield "".join(row or " \n" for row in rows)


def articles(rows: Iterable[str]) -> Iterator[str]:
    """WikiText's rows as articles: each begins with a heading of the first level."""
    article: list[str] = []
    for row in rows:
        if re.fullmatch(r" = [^=].*[^=] = \n", row) and any(line.strip() for line in article):
            yield "".join(article)
            article = []
        article.append(row or " \n")
    if article:
        yield "".join(article)


def _papers(config: str) -> HubSet:
    return HubSet("armanc/scientific_papers", _ALL, config, _CONVERTED, "article", converted=True)


SETS = {
    "text8-prefix": NamedSet(
        "the first 74% of text8, a split of our own", {TRAIN: "train.txt.xz", VALID: "valid.txt", TEST: "test.txt"}
    ),
    "wiki": NamedSet("English Wikipedia of 2006", {TRAIN: "train.txt.xz", VALID: "valid.txt", TEST: "test.txt"}),
    "hotpot-wiki": NamedSet("Wikipedia paragraphs of 2017", {TRAIN: "train.txt.xz"}),
    "novels": NamedSet("99 English novels, 1840 to 1920", {TRAIN: "eltec-eng.txt.tar.xz"}),
    "ptb": NamedSet(
        "Penn Treebank in Mikolov's form",
        {split: f"ptb.{split}.txt" for split in SPLITS},
        HubSet("ptb-text-only/ptb_text_only", _ALL, "penn_treebank", _CONVERTED, "sentence", converted=True),
        lines=True,
        clean=detokenize.ptb,
    ),
    "wikitext": NamedSet(
        "WikiText-2, raw",
        {TRAIN: "train.raw.xz", VALID: "valid.raw", TEST: "test.raw"},
        HubSet("Salesforce/wikitext", _ALL, "wikitext-2-raw-v1"),
        clean=detokenize.wikitext,
        joined=one_text,
    ),
    "wikitext103": NamedSet(
        "WikiText-103, raw, an article a document",
        hub=HubSet("Salesforce/wikitext", _ALL, "wikitext-103-raw-v1"),
        clean=detokenize.wikitext,
        joined=articles,
    ),
    "lm1b": NamedSet(
        "One Billion Word, held-out sections", {VALID: "valid.txt", TEST: "test.txt"}, lines=True, clean=detokenize.lm1b
    ),
    "lm1b-full": NamedSet(
        "One Billion Word, all of it; its test set is the validation set too",
        {TRAIN: "train[-.]*", VALID: "test[-.]*", TEST: "test[-.]*"},
        HubSet(
            "billion-word-benchmark/lm1b",
            {TRAIN: "train", VALID: "test", TEST: "test"},
            "plain_text",
            _CONVERTED,
            converted=True,
            rows={TRAIN: 30_301_028, VALID: 306_688, TEST: 306_688},
        ),
        lines=True,
        clean=detokenize.lm1b,
    ),
    "owt": NamedSet(
        "OpenWebText; its last 100,000 documents are held out",
        {TRAIN: "train[-.]*"},
        HubSet(
            "Skylion007/openwebtext",
            {TRAIN: "train"},
            "plain_text",
            "79d93d786212f7344586290adb811d4ae6a1762c",
            rows={TRAIN: 8_013_769},
        ),
        tail=100_000,
    ),
    "text8": NamedSet(
        "text8, all of it, split 90M / 5M / 5M characters",
        {TRAIN: "text8.txt*"},
        HubSet("afmck/text8", _ALL),
        cut=(90_000_000, 95_000_000, 100_000_000),
    ),
    "stories-test": NamedSet(
        "the held-out stories of the shipped model", {TEST: "stories-test.jsonl.xz"}, shipped=True
    ),
    "lambada": NamedSet(
        "LAMBADA, 5,153 passages as used for GPT-2",
        {TEST: "test.jsonl"},
        HubSet("EleutherAI/lambada_openai", {TEST: "test"}, "default"),
        clean=detokenize.lambada,
    ),
    "ag_news": NamedSet(
        "AG News, title and body",
        {TRAIN: "train.csv", TEST: "test.csv"},
        HubSet("fancyzhx/ag_news", {TRAIN: "train", TEST: "test"}),
        columns=True,
    ),
    "pubmed": NamedSet("5,000 MEDLINE abstracts, a substitute for pubmed-papers", {TEST: "test.jsonl.xz"}),
    "arxiv": NamedSet("300 papers, a substitute for arxiv-papers", {TEST: "test.jsonl.xz"}),
    "pubmed-papers": NamedSet("PubMed papers of scientific_papers", hub=_papers("pubmed")),
    "arxiv-papers": NamedSet("arXiv papers of scientific_papers", hub=_papers("arxiv")),
}


def folder_of(name: str) -> Path:
    """Where the files of a set are looked for."""
    return SHIPPED if SETS[name].shipped else data_root() / name


def files_of(name: str, split: str) -> list[Path]:
    """The files of a split that are here, in the order of their names; several where a set is in parts."""
    pattern = SETS[name].files.get(TRAIN if split not in SETS[name].files else split)
    if pattern is None:
        return []
    return sorted(path for path in folder_of(name).glob(pattern) if path.is_file() and readers.is_readable(path))
