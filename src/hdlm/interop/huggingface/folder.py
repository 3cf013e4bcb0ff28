"""A folder that transformers loads: written from a bundle, and read back as one.

config.json, generation_config.json, model.safetensors, tokenizer.json, tokenizer_config.json, chat_template.jinja,
README.md and the two files of CODE, which are the same bytes in every folder: nothing of a model becomes code.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from hdlm import weights
from hdlm.bundle import Bundle
from hdlm.files import files_written_aside
from hdlm.folders import is_there
from hdlm.interop.huggingface.card import card
from hdlm.interop.huggingface.names import CODE, bundle_config, config_json, generation_json, parameters
from hdlm.interop.huggingface.tokenizer import CONFIG, read_back, tokenizer_files
from hdlm.interop.parts import CHAT_TEMPLATE, build_network, folder_chat

_GENERATION = "generation_config.json"
FILES = ("config.json", _GENERATION, "model.safetensors", "tokenizer.json", CONFIG, CHAT_TEMPLATE, "README.md", *CODE)


def save(bundle: Bundle, folder: Path, *, notes: str = "") -> None:
    """Write the folder, `notes` ending its card: all files of an old one are there, or all of this one."""
    dtype = str(bundle.model.embedding.dtype).removeprefix("torch.")
    texts = {"README.md": card(bundle) + notes}
    objects = {
        "config.json": config_json(bundle.config, dtype=dtype),
        _GENERATION: generation_json(bundle.config),
    }
    if bundle.tokenizer is not None:
        texts["tokenizer.json"], objects[CONFIG] = tokenizer_files(bundle.tokenizer, bundle.config)
        objects["config.json"]["tokenizer_class"] = objects[CONFIG]["tokenizer_class"]  # pipelines look for it there
    if bundle.chat_template is not None:
        texts[CHAT_TEMPLATE] = bundle.chat_template
    texts |= {name: json.dumps(said, indent=2, allow_nan=False) + "\n" for name, said in objects.items()}
    stale = [name for name in FILES if name not in (*texts, *CODE, "model.safetensors")]
    with files_written_aside(folder, without=[*stale, "model.safetensors.index.json"]) as aside:
        tensors = {name: tensor.cpu().contiguous() for name, tensor in parameters(bundle.model).items()}
        save_file(tensors, aside / "model.safetensors", metadata={"format": "pt"})
        for name, text in texts.items():
            (aside / name).write_text(text, encoding="utf-8")
        for name in CODE:
            shutil.copyfile(Path(__file__).parent / name, aside / name)


def load_bundle(folder: str | Path, *, tokenizer: bool = True) -> Bundle:
    """Such a folder as a bundle; one that transformers has saved again is read as well.

    What does not fit any more is refused by name. A draft head, which transformers leaves behind, may be gone: it
    serves speculation alone.
    """
    folder = Path(folder)
    said, drawn = folder / "config.json", folder / _GENERATION
    data, generation = weights.read_json(said), weights.read_json(drawn) if is_there(drawn) else {}
    try:
        config = bundle_config(data, generation)
    except ValueError as error:
        raise ValueError(f"{said}: {error}") from None
    tensors = weights.read_folder(folder)
    if config.model.draft_width and not any(name.startswith("draft.") for name in tensors):
        config = replace(config, model=replace(config.model, draft_width=0))
    if config.model.tied:
        tensors = _untied(tensors, folder)
    model = build_network(config.model, tensors, source=folder, targets=parameters)
    found = read_back(folder, config.model.vocab_size) if tokenizer else None
    return Bundle(model, config, found, chat_template=folder_chat(folder))


def _untied(tensors: dict[str, torch.Tensor], folder: Path) -> dict[str, torch.Tensor]:
    """Without the head, which some write although it is the embedding, and which must then be the same."""
    head, embedding = tensors.get("head.weight"), tensors.get("embedding.weight")
    if head is not None and embedding is not None and not torch.equal(head, embedding):
        raise ValueError(f"{folder} has a head.weight that is not its embedding.weight: tie_word_embeddings says it is")
    return {name: tensor for name, tensor in tensors.items() if name != "head.weight"}
