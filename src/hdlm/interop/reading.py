"""Who reads which model: folders of our own, of other people's layouts, and GGUF files, told apart by what they say."""

from pathlib import Path
from typing import Any

from hdlm import weights
from hdlm.bundle import Bundle
from hdlm.config.bundle import FORMAT, BundleConfig
from hdlm.files import finish_writing
from hdlm.folders import GGUF_SUFFIX, unreadable
from hdlm.interop import gguf, llama, masked, published
from hdlm.interop.huggingface import folder as huggingface
from hdlm.interop.huggingface.names import MODEL_TYPE
from hdlm.interop.parts import build_network, folder_chat, folder_tokenizer


def read_bundle(place: Path, *, tokenizer: bool = True) -> Bundle:
    """The bundle of a folder or a GGUF file (see `folders.model_place`)."""
    if place.suffix == GGUF_SUFFIX and not place.is_dir():
        return gguf.load_bundle(place, tokenizer=tokenizer)
    try:
        finish_writing(place)
    except OSError as error:
        raise unreadable(place, error) from None
    data = weights.read_json(place / "config.json")
    if data.get("format") == FORMAT:
        return _load_own(place, BundleConfig.from_json(data), tokenizer=tokenizer)
    return _reader(data.get("model_type"), place).load_bundle(place, tokenizer=tokenizer)


def _reader(kind: Any, place: Path) -> Any:
    """The module that reads models of a `model_type`."""
    if not isinstance(kind, str):
        return published
    if kind in masked.REFUSED:
        raise ValueError(f"{place} is of the type {kind!r}, which is not accepted: {masked.REFUSED[kind]}")
    if kind == MODEL_TYPE:
        return huggingface
    return llama if kind in llama.LAYOUTS else masked if kind in masked.KINDS else published


def _load_own(folder: Path, config: BundleConfig, *, tokenizer: bool) -> Bundle:
    """A folder that `Bundle.save` wrote; its files must be those of one save."""
    tensors = weights.read_folder(folder)
    model = build_network(config.model, tensors, source=folder / "model.safetensors")
    bundle = Bundle(model, config, folder_tokenizer(folder) if tokenizer else None, chat_template=folder_chat(folder))
    for path in weights.safetensors_files(folder):
        if weights.read_metadata(path).get("config") not in (None, config.digest):
            raise ValueError(f"{folder} holds the weights of one save and the config.json of another")
    return bundle
