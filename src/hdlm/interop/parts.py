"""The parts of a bundle out of the files of a folder, of whatever layout: its network and its tokenizer.

A folder may be damaged or somebody's trap: a network is built only when the tensors are those that its config asks for.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from hdlm import weights
from hdlm.config.model import DenoiserConfig
from hdlm.data.tokenizer import read_tokenizer
from hdlm.folders import is_there, regular_file
from hdlm.nn.transformer import Denoiser

CHAT_TEMPLATE = "chat_template.jinja"
END_OF_TEXT = "<|endoftext|>"
LONGEST_TEMPLATE = 2**18  # bytes


def build_network(
    config: DenoiserConfig,
    tensors: Mapping[str, Tensor],
    *,
    source: Path,
    targets: Callable[[Denoiser], dict[str, Tensor]] = weights.contents,
) -> Denoiser:
    """A network filled with a file's tensors, which are refused before anything of the size asked for is built.

    `targets`: a network's parameters by the names of the file.
    """
    check_tensors(config, tensors, source=source, targets=targets)
    model = Denoiser(config).eval()
    weights.fill(model, tensors, source=source, targets=targets(model))
    return model


def check_tensors(
    config: DenoiserConfig,
    tensors: Mapping[str, Tensor],
    *,
    source: Path,
    targets: Callable[[Denoiser], dict[str, Tensor]] = weights.contents,
) -> None:
    """Refuse tensors that are not those of a network of this config; they may be on the meta device."""
    enough = min(config.layers, len(tensors) + 1)  # more layers than tensors: one is missing, whatever else
    with torch.device("meta"):
        outline = Denoiser(replace(config, layers=enough))
    weights.compare(targets(outline), tensors, source=source)


def first_token(tokenizer: Tokenizer | None, named: int | None) -> int | None:
    """The token that a shifted network reads before a text: BOS as it is `named`, or what ends the text before.

    Chat models are named the token that opens a message, with which no plain text begins: where the tokenizer does not
    write it by itself and has a token that ends a text, texts were told apart by that one.
    """
    if tokenizer is None:
        return named
    try:
        written = tokenizer.encode("a").ids[:1] == [named]
    except Exception:  # a tokenizer that cannot even read this says nothing of the start
        written = True
    end = None if written else tokenizer.token_to_id(END_OF_TEXT)
    return named if end is None else end


def folder_tokenizer(folder: Path) -> Tokenizer | None:
    """The tokenizer of a model folder, where it has one."""
    path = folder / "tokenizer.json"
    return read_tokenizer(path) if is_there(path) else None


def folder_chat(folder: Path) -> str | None:
    """The chat template of a model folder: a file of its own, or an entry of the tokenizer's configuration."""
    path, beside = folder / CHAT_TEMPLATE, folder / "tokenizer_config.json"
    if is_there(path):
        try:
            return regular_file(path, largest=LONGEST_TEMPLATE).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"{path} is not accepted: it is no text in UTF-8") from None
    found = weights.read_json(beside).get("chat_template") if is_there(beside) else None
    if isinstance(found, list):  # several by name, of which one is for conversations
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default")
    if found is not None and not isinstance(found, str):
        raise ValueError(f"{beside} sets chat_template to {type(found).__name__}: it must be a text")
    return found
