"""The tokenizer that a GGUF file describes: byte-level BPE. Other kinds are refused by name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, processors

from hdlm.interop.byte_level import WHOLE_FIRST, byte_level
from hdlm.theory import numbers

_CONTROL, _USER_DEFINED = 3, 4  # kinds of tokens that are found in a text as they are; the first are special


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
    tokens, merges = (_texts(metadata, name, source) for name in ("tokens", "merges"))
    vocabulary = {token: number for number, token in enumerate(tokens)}
    if len(vocabulary) < len(tokens):
        twice = next(token for number, token in enumerate(tokens) if vocabulary[token] != number)
        raise ValueError(f"{source} is not accepted: it has the token {numbers.shown(twice)} twice")
    kinds = metadata.get("tokenizer.ggml.token_type", [])
    if not isinstance(kinds, list) or (kinds and len(kinds) != len(tokens)):
        raise ValueError(f"{source} is not accepted: tokenizer.ggml.token_type must have an entry for each token")
    special, whole = (
        [token for token, one in zip(tokens, kinds, strict=False) if one == wanted]
        for wanted in (_CONTROL, _USER_DEFINED)
    )
    tokenizer = byte_level(vocabulary, merges, cut, special=special, whole=whole, source=source)
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    # Where the file does not say, BOS stands before a text as in Llama 3.
    first = metadata.get("tokenizer.ggml.add_bos_token", cut in WHOLE_FIRST)
    if first and isinstance(bos, int) and 0 <= bos < len(tokens):
        mark = {"id": "bos", "ids": [bos], "tokens": [tokens[bos]]}
        tokenizer.post_processor = processors.TemplateProcessing(single="bos $A", special_tokens=[mark])
    return tokenizer


def _texts(metadata: Mapping[str, Any], name: str, source: Path) -> list[str]:
    found = metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(found, list) or not found or not isinstance(found[0], str):
        raise ValueError(f"{source} is not accepted: tokenizer.ggml.{name} must be a list of texts")
    return found
