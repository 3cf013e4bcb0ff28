"""Tokenizers by a word: bytes, chars, a BPE trained on the spot, a tokenizer.json, or a hub name.

Each is a `tokenizers.Tokenizer`, so that a model folder holds it as one JSON file. One token ends a document and,
for shifted models, also stands before the first. Knows no corpus beyond the texts that it is given.
"""

import json
import string
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from hdlm.data.places import path_of
from hdlm.errors import first_line
from hdlm.folders import SHIPPED, data_root, regular_file

EOS = "<|eos|>"
MAX_TOKENIZER = 2**26  # bytes of a file
MAX_ID = 2**24  # to write a tokenizer, all ids below its largest are walked through
# Names under which known tokenizers keep their end and start of text.
_ENDS = (EOS, "<|endoftext|>", "</s>", "<eos>", "<|end_of_text|>", "[SEP]")
_CHARACTERS = " " + string.ascii_lowercase
_STARTS = ("<s>", "<bos>", "<|begin_of_text|>", "[CLS]")


@dataclass(frozen=True)
class CorpusTokenizer:
    """A tokenizer and the ids that a model needs of it."""

    tokenizer: Tokenizer
    bos_id: int
    eos_id: int

    @cached_property
    def alphabet(self) -> frozenset[str] | None:
        """The characters that it knows, where its tokens are single ones and it would pass over all others."""
        found = json.loads(self.tokenizer.to_str())
        model, before = found["model"], (found["normalizer"], found["pre_tokenizer"])
        single = model["type"] == "BPE" and not model["merges"] and not model["byte_fallback"]
        passes_over = model.get("unk_token") is None and before == (None, None)
        return frozenset(model["vocab"]) if single and passes_over else None

    def is_same(self, other: "CorpusTokenizer") -> bool:
        """Whether another one reads every text as this one does, and ends it alike."""
        return self.eos_id == other.eos_id and self.tokenizer.to_str() == other.tokenizer.to_str()

    @property
    def vocab_size(self) -> int:
        """Number of tokens, special ones included."""
        return self.tokenizer.get_vocab_size()


def locate_tokenizer(word: str) -> str:
    """A word as it is, or a path made absolute, so that it means the same from everywhere."""
    if word in ("bytes", "chars") or word.startswith("bpe-"):
        return word
    path = path_of(word)
    return str(path.absolute()) if path.is_file() or (path / "tokenizer.json").is_file() else word


def make_tokenizer(word: str, texts: Iterable[str]) -> CorpusTokenizer:
    """`bytes`, `chars` (a-z and space), `bpe-SIZE` trained on `texts`, a path, or a name."""
    if word == "bytes":
        return _finish(_byte_level(_one_a_character(sorted(pre_tokenizers.ByteLevel.alphabet())), use_regex=False))
    if word == "chars":
        tokenizer = _one_a_character(_CHARACTERS)
        tokenizer.decoder = decoders.Fuse()
        return _finish(tokenizer)
    if word.startswith("bpe-"):
        return _finish(_train_bpe(word, texts))
    return _finish(_load(word))


def _one_a_character(alphabet: Iterable[str]) -> Tokenizer:
    return Tokenizer(models.BPE({character: i for i, character in enumerate(alphabet)}, []))


def _train_bpe(word: str, texts: Iterable[str]) -> Tokenizer:
    size = word.removeprefix("bpe-")
    if not size.isdigit() or not 300 <= int(size) <= 200_000:
        raise ValueError(f"tokenizer = {word!r} is not accepted: the size of bpe-SIZE must be in 300..200000")
    tokenizer = _byte_level(Tokenizer(models.BPE()), use_regex=True)
    trainer = trainers.BpeTrainer(
        vocab_size=int(size),
        special_tokens=[EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _byte_level(tokenizer: Tokenizer, *, use_regex: bool) -> Tokenizer:
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _load(word: str) -> Tokenizer:
    """A tokenizer.json by path, or from the hub."""
    path = find_tokenizer(word)
    if path is not None:
        return read_tokenizer(path)
    if word.endswith(".json") or word.count("/") > 1 or word.startswith((".", "/", "~")):
        raise ValueError(f"tokenizer = {word!r} is not accepted: there is no such file")
    try:
        return Tokenizer.from_pretrained(word)
    except Exception as error:
        raise ValueError(
            f"tokenizer = {word!r} is not accepted: it must be bytes, chars, bpe-SIZE, a tokenizer.json or a hub name "
            f"(from the hub: {first_line(error)})"
        ) from None


def read_tokenizer(path: str | Path) -> Tokenizer:
    """A tokenizer from a tokenizer.json, of bounded size and with ids that a table can have."""
    path = regular_file(path, largest=MAX_TOKENIZER)
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:
        raise ValueError(f"{path} is no tokenizer: {first_line(error)}") from None
    largest = max(tokenizer.get_vocab().values(), default=0)
    if largest > MAX_ID:
        raise ValueError(f"{path} is not accepted: it has the token id {largest:,}, and at most {MAX_ID:,} is read")
    return tokenizer


def find_tokenizer(word: str) -> Path | None:
    """A tokenizer.json by its path or folder, by its place among this package's models, or by a name in $HDLM_DATA."""
    path = path_of(word)
    known = data_root() / "tokenizers" / word / "tokenizer.json"
    places = (path / "tokenizer.json" if path.is_dir() else path, SHIPPED / word, known)
    return next((place for place in places if place.is_file()), None)


def _finish(tokenizer: Tokenizer) -> CorpusTokenizer:
    """Find the tokens that end and start a text; one that ends it is added where there is none."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if not _ids(tokenizer, _ENDS):
        tokenizer.add_special_tokens([EOS])
    ends, starts = _ids(tokenizer, _ENDS), _ids(tokenizer, _STARTS)
    return CorpusTokenizer(tokenizer, bos_id=(starts or ends)[0], eos_id=ends[0])


def _ids(tokenizer: Tokenizer, names: tuple[str, ...]) -> list[int]:
    """The ids of those of these tokens that there are."""
    return [found for name in names if (found := tokenizer.token_to_id(name)) is not None]
