"""Byte-level BPE by its tokens, its merges, and the name of how it cuts text into words.

GGUF files name the cut and have the rest in them; folders of Qwen's kind that come without a tokenizer.json have it in
vocab.json, merges.txt and their configuration.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from hdlm import weights
from hdlm.data.tokenizer import MAX_ID, MAX_TOKENIZER
from hdlm.errors import first_line
from hdlm.folders import is_there, regular_file
from hdlm.theory import numbers


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
CUTS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "gpt-2": _gpt2,
    "smollm": _single_digits,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
}
_COMPOSED = ("qwen2", "deepseek-r1-qwen")  # text is brought to Unicode's composed form first
WHOLE_FIRST = ("llama-bpe", "llama3", "llama-v3")  # a word that is a token is that token, whatever merges say


def byte_level(
    vocabulary: Mapping[str, int],
    merges: Iterable[str],
    cut: str | None,
    *,
    special: Iterable[str],
    whole: Iterable[str],
    source: Path,
) -> Tokenizer:
    """A tokenizer of ids by token and of merges, each two tokens with a blank between them.

    `special`: tokens that are no text, such as the end of one; `whole`: text that is one token wherever it stands.
    """
    if cut is None or cut not in CUTS:
        raise ValueError(f"{source} cuts text as {numbers.shown(cut)}: it must be one of {', '.join(CUTS)}")
    pairs = [tuple(merge.split(" ")) for merge in merges]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError(f"{source} is not accepted: a merge of its tokenizer is no pair of tokens")
    how: dict[str, Any] = {"vocab": dict(vocabulary), "merges": pairs, "ignore_merges": cut in WHOLE_FIRST}
    try:
        tokenizer = Tokenizer(models.BPE(**how))
    except Exception as error:
        raise ValueError(f"{source} is not accepted: its tokenizer cannot be built: {first_line(error)}") from None
    tokenizer.pre_tokenizer, tokenizer.decoder = CUTS[cut](), decoders.ByteLevel()
    if cut in _COMPOSED:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_special_tokens([AddedToken(mark, normalized=False, special=True) for mark in special if mark])
    tokenizer.add_tokens([AddedToken(mark, normalized=False) for mark in whole if mark])
    return tokenizer


def qwen_tokenizer(folder: Path) -> Tokenizer | None:
    """The tokenizer of a folder of Qwen's kind that has it in several files; None where they are not there."""
    words, rules, beside = (folder / name for name in ("vocab.json", "merges.txt", "tokenizer_config.json"))
    if not (is_there(words) and is_there(rules)):
        return None
    try:
        lines = regular_file(rules, largest=MAX_TOKENIZER).read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"{rules} is not accepted: it is no text in UTF-8") from None
    vocabulary = weights.read_json(words)
    for token, number in vocabulary.items():
        numbers.integer(f"{words}: {numbers.shown(token)}", number, low=0, high=MAX_ID)
    listed = weights.read_json(beside).get("added_tokens_decoder", {}) if is_there(beside) else {}
    added = _added(listed, beside)
    tokenizer = byte_level(
        vocabulary,
        [line for line in lines if line and not line.startswith("#version")],
        "qwen2",
        special=[],
        whole=[],
        source=folder,
    )
    for number, mark in sorted(added.items()):
        (tokenizer.add_special_tokens if mark.special else tokenizer.add_tokens)([mark])
        if tokenizer.token_to_id(mark.content) != number:
            raise ValueError(f"{beside} gives {numbers.shown(mark.content)} the id {number}, which is not the next one")
    return tokenizer


def _added(listed: Any, source: Path) -> dict[int, AddedToken]:
    """Tokens that a configuration adds, by their ids."""
    found = {}
    for number, one in numbers.instance(f"{source}: added_tokens_decoder", listed, dict).items():
        content = one.get("content") if isinstance(one, dict) else None
        if not str(number).isdecimal() or not isinstance(content, str) or not content:
            raise ValueError(f"{source} is not accepted: added_tokens_decoder must have a content by each id")
        found[int(number)] = AddedToken(content, normalized=False, special=one.get("special") is True)
    return found
