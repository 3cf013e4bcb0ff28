"""Tokenizers by a word: bytes, chars, a BPE trained on the spot, a tokenizer.json, or a hub name.

Each is a `tokenizers.Tokenizer`, so that a model folder holds it as one JSON file. One token ends a document and,
for shifted models, also stands before the first. Knows no corpus beyond the texts that it is given.
"""

import string
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from hdlm.data.corpus import data_root

EOS = "<|eos|>"
# Names under which known tokenizers keep their end and start of text.
_ENDS = (EOS, "<|endoftext|>", "</s>", "<eos>", "<|end_of_text|>", "[SEP]")
_STARTS = ("<s>", "<bos>", "<|begin_of_text|>", "[CLS]")


@dataclass(frozen=True)
class Text:
    """A tokenizer and the ids that a model needs of it; `alphabet` where it knows only some characters."""

    tokenizer: Tokenizer
    bos_id: int
    eos_id: int
    alphabet: frozenset[str] | None = None

    @property
    def vocab_size(self) -> int:
        """Number of tokens, special ones included."""
        return self.tokenizer.get_vocab_size()


def make_tokenizer(word: str, texts: Iterable[str]) -> Text:
    """`bytes`, `chars` (a-z and space), `bpe-SIZE` trained on `texts`, a path, or a name."""
    if word == "bytes":
        return _finish(_bytes())
    if word == "chars":
        return replace(_finish(_characters()), alphabet=frozenset(" " + string.ascii_lowercase))
    if word.startswith("bpe-"):
        return _finish(_train_bpe(word, texts))
    return _finish(_load(word))


def _bytes() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({sign: i for i, sign in enumerate(alphabet)}, []))
    return _byte_level(tokenizer, use_regex=False)


def _characters() -> Tokenizer:
    signs = {sign: i for i, sign in enumerate(" " + string.ascii_lowercase)}
    tokenizer = Tokenizer(models.BPE(signs, []))
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


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
    """A tokenizer.json by path, by the name of a folder under $HDLM_DATA/tokenizers, or from the hub."""
    path = Path(word).expanduser()
    known = data_root() / "tokenizers" / word / "tokenizer.json"
    for candidate in (path / "tokenizer.json" if path.is_dir() else path, known):
        if candidate.is_file():
            try:
                return Tokenizer.from_file(str(candidate))
            except Exception as error:
                raise ValueError(f"{candidate} is no tokenizer: {error}") from None
    try:
        return Tokenizer.from_pretrained(word)
    except Exception as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(
            f"tokenizer = {word!r} is not accepted: it must be bytes, chars, bpe-SIZE, a tokenizer.json or a hub name "
            f"(from the hub: {first})"
        ) from None


def _finish(tokenizer: Tokenizer) -> Text:
    """Find the tokens that end and start a text; one that ends it is added where there is none."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if _first(tokenizer, _ENDS) is None:
        tokenizer.add_special_tokens([EOS])
    eos = _first(tokenizer, _ENDS)
    assert eos is not None
    bos = _first(tokenizer, _STARTS)
    return Text(tokenizer, bos_id=eos if bos is None else bos, eos_id=eos)


def _first(tokenizer: Tokenizer, names: tuple[str, ...]) -> int | None:
    """The id of the first of these tokens that there is."""
    found = (tokenizer.token_to_id(name) for name in names)
    return next((i for i in found if i is not None), None)
