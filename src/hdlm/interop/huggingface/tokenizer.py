"""A tokenizer as transformers has it, and back: with MASK as a token, BOS before a text, and special tokens by name.

A network reads MASK under the id after its last token, which no tokenizer of ours has; and a shifted one starts from
BOS, which hdlm puts there by itself and transformers leaves to the tokenizer.
"""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from hdlm import weights
from hdlm.config.bundle import BundleConfig
from hdlm.errors import first_line
from hdlm.folders import is_there
from hdlm.interop.huggingface.names import mask_id
from hdlm.interop.parts import folder_tokenizer

CONFIG = "tokenizer_config.json"
_MASK = "<|mask|>"
_REPLACED = "hdlm_post_processor"  # in tokenizer_config.json: what stood where BOS is now put before a text


def tokenizer_files(tokenizer: Tokenizer, config: BundleConfig) -> tuple[str, dict[str, Any]]:
    """tokenizer.json as text, and tokenizer_config.json, of a network's tokenizer."""
    data, masked = json.loads(tokenizer.to_str()), mask_id(config)
    about: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    about["model_input_names"] = ["input_ids", "attention_mask"]
    about |= {"model_max_length": config.context + config.shifted, "padding_side": "left"}
    special = {token: one.content for token, one in tokenizer.get_added_tokens_decoder().items() if one.special}
    for name, token in (("bos_token", config.bos_id), ("eos_token", config.eos_id), ("pad_token", config.eos_id)):
        if token in special:  # a letter that serves as one is left a letter
            about[name] = special[token]
    if masked is not None:
        name = _MASK
        while tokenizer.token_to_id(name) is not None:
            name = f"<{name}>"
        data["added_tokens"].append({"id": masked, "content": name, "special": True} | _PLAIN)
        about["mask_token"] = name
    begins = [config.bos_id] if config.shifted else []
    if (adds := tokenizer.encode("").ids) != begins:
        about[_REPLACED] = own = data["post_processor"]
        bos = None if config.bos_id is None else _before(tokenizer.id_to_token(config.bos_id) or "", config.bos_id)
        both = {"type": "Sequence", "processors": [own, bos]}
        data["post_processor"] = None if not begins else both if own is not None and not adds else bos
    return json.dumps(data, ensure_ascii=False, indent=2, allow_nan=False), about


_PLAIN = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


def _before(token: str, number: int) -> dict[str, Any]:
    """The post-processor that puts one token before a text, as tokenizer.json has it."""
    special, first, second = ({"SpecialToken": {"id": token, "type_id": 0}}, *_SEQUENCES)
    return {
        "type": "TemplateProcessing",
        "single": [special, first],
        "pair": [special, first, second],
        "special_tokens": {token: {"id": token, "ids": [number], "tokens": [token]}},
    }


_SEQUENCES = ({"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}})


def read_back(folder: Path, vocab_size: int) -> Tokenizer | None:
    """The tokenizer of such a folder as it was before: without MASK, and with its own post-processor."""
    found = folder_tokenizer(folder)
    if found is None:
        return None
    data = json.loads(found.to_str())
    data["added_tokens"] = [one for one in data["added_tokens"] if one["id"] != vocab_size]
    about = weights.read_json(folder / CONFIG) if is_there(folder / CONFIG) else {}
    if _REPLACED in about:
        data["post_processor"] = about[_REPLACED]
    try:
        return Tokenizer.from_str(json.dumps(data, allow_nan=False))
    except Exception as error:
        raise ValueError(f"{folder / CONFIG} has {_REPLACED}, which is none: {first_line(error)}") from None
