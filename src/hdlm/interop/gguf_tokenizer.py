"""The tokenizer that a GGUF file describes: byte-level BPE by its tokens, its merges, and the name of how text is cut.

A file lists what a tokenizer knows and names how it cuts text into words; the cuts are here. Kinds that are no
byte-level BPE are refused by name.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from hdlm.errors import first_line
from hdlm.theory import numbers

_CONTROL, _USER_DEFINED = 3, 4  # kinds of tokens that are found in a text as they are; the first are special


def _words(digits: str) -> pre_tokenizers.PreTokenizer:
    """A contraction's ending; a word with the sign before it; digits; signs; blanks, of which a word takes the last."""
    parts = [
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        digits,
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
    split = pre_tokenizers.Split(Regex("|".join(parts)), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _gpt2(*before: pre_tokenizers.PreTokenizer) -> pre_tokenizers.PreTokenizer:
    """GPT-2's words, after another cut where there is one."""
    return pre_tokenizers.Sequence([*before, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])


def _single_digits() -> pre_tokenizers.PreTokenizer:
    return _gpt2(pre_tokenizers.Digits(individual_digits=True))


_LLAMA3, _QWEN2 = partial(_words, r"\p{N}{1,3}"), partial(_words, r"\p{N}")
# How text is cut, by the file's name for it.
_CUTS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "gpt-2": _gpt2,
    "smollm": _single_digits,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
}
_COMPOSED = ("qwen2", "deepseek-r1-qwen")  # text is brought to Unicode's composed form first
_WHOLE_FIRST = ("llama-bpe", "llama3", "llama-v3")  # a word that is a token is that token, whatever merges say
_BOS_FIRST = _WHOLE_FIRST  # BOS stands before a text, where the file does not say


def make_tokenizer(metadata: Mapping[str, Any], source: Path) -> Tokenizer | None:
    """The tokenizer of a file with this metadata; None where the file has none."""
    kind, cut = (metadata.get(f"tokenizer.ggml.{name}") for name in ("model", "pre"))
    if kind in (None, "no_vocab"):
        return None
    if kind != "gpt2":
        raise ValueError(
            f"{source} has a tokenizer of the kind {numbers.shown(kind)}: byte-level BPE is read (gpt2), and without "
            "one, as hdlm.load(..., tokenizer=False), the model reads token ids"
        )
    if cut not in _CUTS:
        known = ", ".join(_CUTS)
        raise ValueError(f"{source} cuts text as {numbers.shown(cut)}: it must be one of {known}")
    tokens, merges = (_texts(metadata, name, source) for name in ("tokens", "merges"))
    vocabulary = {token: number for number, token in enumerate(tokens)}
    if len(vocabulary) < len(tokens):
        twice = next(token for number, token in enumerate(tokens) if vocabulary[token] != number)
        raise ValueError(f"{source} is not accepted: it has the token {numbers.shown(twice)} twice")
    pairs = [tuple(merge.split(" ")) for merge in merges]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError(f"{source} is not accepted: a merge of its tokenizer is no pair of tokens")
    try:
        tokenizer = Tokenizer(models.BPE(vocabulary, pairs, ignore_merges=cut in _WHOLE_FIRST))  # pyright: ignore[reportArgumentType]
    except Exception as error:
        raise ValueError(f"{source} is not accepted: its tokenizer cannot be built: {first_line(error)}") from None
    tokenizer.pre_tokenizer, tokenizer.decoder = _CUTS[cut](), decoders.ByteLevel()
    if cut in _COMPOSED:
        tokenizer.normalizer = normalizers.NFC()
    _add_marks(tokenizer, tokens, metadata, source)
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    first = metadata.get("tokenizer.ggml.add_bos_token", cut in _BOS_FIRST)
    if first and isinstance(bos, int) and 0 <= bos < len(tokens):
        mark = {"id": "bos", "ids": [bos], "tokens": [tokens[bos]]}
        tokenizer.post_processor = processors.TemplateProcessing(single="bos $A", special_tokens=[mark])
    return tokenizer


def _texts(metadata: Mapping[str, Any], name: str, source: Path) -> list[str]:
    found = metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(found, list) or not found or not isinstance(found[0], str):
        raise ValueError(f"{source} is not accepted: tokenizer.ggml.{name} must be a list of texts")
    return found


def _add_marks(tokenizer: Tokenizer, tokens: list[str], metadata: Mapping[str, Any], source: Path) -> None:
    """Make of tokens that are no text, such as the end of one, what is found whole wherever it stands."""
    kinds = metadata.get("tokenizer.ggml.token_type", [])
    if not isinstance(kinds, list) or (kinds and len(kinds) != len(tokens)):
        raise ValueError(f"{source} is not accepted: tokenizer.ggml.token_type must have an entry for each token")
    for kind, add in ((_CONTROL, tokenizer.add_special_tokens), (_USER_DEFINED, tokenizer.add_tokens)):
        marks = [token for token, one in zip(tokens, kinds, strict=False) if one == kind and token]
        add([AddedToken(mark, normalized=False, special=kind == _CONTROL) for mark in marks])
