"""GGUF files as bundles: Llama, Qwen2 and Qwen3 models, unpacked to floats, with their tokenizer and chat template.

What the file says is put into the words of the layouts of Hugging Face and goes through `llama.py`. The numbers are
those that the file was rounded to; nothing computes in its packed form.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hdlm.bundle import Bundle
from hdlm.config.model import DenoiserConfig
from hdlm.interop import llama
from hdlm.interop.gguf_file import GGUF, read_header
from hdlm.interop.gguf_tokenizer import make_tokenizer
from hdlm.interop.parts import LONGEST_TEMPLATE, check_tensors
from hdlm.nn.attention import stretched
from hdlm.theory import numbers

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_EMBEDDING, _EPS = "token_embd.weight", "attention.layer_norm_rms_epsilon"
_STRETCH = "rope_freqs.weight"  # by how much each rotary wave is slower
# What else a file may say of its network, and the values at which that changes nothing.
_WITHOUT = {
    "attention.causal": (True,),
    "attention.sliding_window": (0,),
    "expert_count": (0,),
    "rope.scaling.type": ("none",),
    "logit_scale": (0, 1),
    "embedding_scale": (0, 1),
    "residual_scale": (0, 1),
    "attention.scale": (0,),
}
_USUAL_STRETCH = (1.0, 4.0, 8192.0)  # that of all Llama 3; a file has only what comes out, see `_scaling`


def load_bundle(path: str | Path, *, tokenizer: bool = True) -> Bundle:
    """A model out of a GGUF file; its tensors are compared with what it says of itself before any is unpacked."""
    file = read_header(path)
    data = _config(file)
    found = make_tokenizer(file.metadata, file.path) if tokenizer else None
    config = llama.architecture(data, file.path)
    outline = {_renamed(name): tensor for name, tensor in file.outline().items() if name != _STRETCH}
    check_tensors(config, llama.without_copies(outline, config), source=file.path, targets=llama.targets)
    config = replace(config, rope_scaling=_scaling(file, config))
    tensors = {_renamed(name): file.tensor(name) for name in file.places if name != _STRETCH}
    if data["model_type"] == "llama":
        tensors |= _in_halves(tensors, config)
    return llama.decoder(data, config, tensors, found, _chat(file), source=file.path)


def _config(file: GGUF) -> dict[str, Any]:
    """What the file says of its network, as a config.json would."""
    kind = file.metadata.get("general.architecture")
    if kind not in llama.LAYOUTS:
        known = ", ".join(llama.LAYOUTS)
        raise ValueError(f"{file.path} is of the architecture {numbers.shown(kind)}: it must be one of {known}")
    if _EMBEDDING not in file.places:
        raise ValueError(f"{file.path} lacks {_EMBEDDING}")
    start = f"{kind}."
    said = {key.removeprefix(start): value for key, value in file.metadata.items() if key.startswith(start)}
    for name in ("block_count", "embedding_length", "feed_forward_length", "attention.head_count", _EPS):
        if name not in said:
            raise ValueError(f"{file.path} lacks {start}{name}, which such a file says")
    heads, width = (
        numbers.integer(f"{start}{name}", said[name], low=1) for name in ("attention.head_count", "embedding_length")
    )
    size = said.get("attention.key_length", width // heads)
    harmless = _WITHOUT | {"attention.value_length": (size,), "rope.dimension_count": (size,)}
    for name, values in harmless.items():
        if name in said and said[name] not in values:
            wrong = f"{start}{name} = {numbers.shown(said[name])}"
            raise ValueError(f"{file.path} sets {wrong}, which this transformer does not compute")
    return {
        "model_type": kind,
        "vocab_size": file.places[_EMBEDDING].shape[0],
        "num_hidden_layers": said["block_count"],
        "hidden_size": width,
        "intermediate_size": said["feed_forward_length"],
        "num_attention_heads": heads,
        "num_key_value_heads": said.get("attention.head_count_kv"),
        "head_dim": size,
        "max_position_embeddings": said.get("context_length"),
        "rms_norm_eps": said[_EPS],
        "rope_theta": said.get("rope.freq_base"),
        "tie_word_embeddings": "output.weight" not in file.places,
        "bos_token_id": file.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": file.metadata.get("tokenizer.ggml.eos_token_id"),
    }


def _renamed(name: str) -> str:
    """The name of a tensor in the layouts of Hugging Face; as it is where there is none."""
    stem, _, kind = name.rpartition(".")
    if stem in _TOP:
        return f"{_TOP[stem]}.{kind}"
    block, _, part = stem.partition(".")[2].partition(".")
    return f"model.layers.{block}.{_BLOCK[part]}.{kind}" if stem.startswith("blk.") and part in _BLOCK else name


def _in_halves(tensors: Mapping[str, Tensor], config: DenoiserConfig) -> dict[str, Tensor]:
    """Llama's queries and keys, in whose rows the two halves of a head take turns there, half by half as here."""
    half = config.head_size // 2
    return {
        name: tensor.unflatten(0, (-1, half, 2)).transpose(1, 2).flatten(0, 2)
        for name, tensor in tensors.items()
        if ".self_attn.q_proj." in name or ".self_attn.k_proj." in name
    }


def _scaling(file: GGUF, config: DenoiserConfig) -> tuple[float, ...]:
    """How rotary waves are stretched, of a file that says by how much each one is."""
    if _STRETCH not in file.places:
        return ()
    slower = file.tensor(_STRETCH).double()
    factor = slower.max().item()
    if factor == slower.min().item() == 1:
        return ()
    half = config.head_size // 2
    waves = config.rope_base ** -(torch.arange(half, dtype=torch.float64) / half)
    scaling = (factor, *_USUAL_STRETCH)
    if len(slower) != half or not torch.allclose(slower, waves / stretched(waves, scaling), rtol=1e-4, atol=0):
        raise ValueError(f"{file.path} has {_STRETCH} other than Llama 3's, which this transformer does not compute")
    return scaling


def _chat(file: GGUF) -> str | None:
    """The chat template that the file carries."""
    found = file.metadata.get("tokenizer.chat_template")
    if found is not None and (not isinstance(found, str) or len(found) > LONGEST_TEMPLATE):
        raise ValueError(f"{file.path} is not accepted: tokenizer.chat_template is no text, or too long")
    return found
