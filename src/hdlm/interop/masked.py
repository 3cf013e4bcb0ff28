"""Masked diffusion models of other people in our denoiser: LLaDA, Dream and SDAR.

All three are Llamas or Qwens that were taught to fill in a mask, told apart by which side they predict from and by what
a text's settled part sees. Their mask is one of their tokens; here it is the one after the last, so that its row of
the embedding goes there, it has none in the head (it is never predicted), and ids above it are one lower. Rows that no
text has are left out.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from hdlm import weights
from hdlm.bundle import Bundle
from hdlm.config.bundle import BundleConfig
from hdlm.config.model import DenoiserConfig
from hdlm.config.process import ProcessConfig
from hdlm.config.schedule import ScheduleConfig
from hdlm.errors import first_line
from hdlm.interop import llama
from hdlm.interop.byte_level import qwen_tokenizer
from hdlm.interop.parts import build_network, check_tensors, folder_chat, folder_tokenizer
from hdlm.theory import numbers

_START = "<|beginoftext|>"  # before a text of Dream
_LLADA_TOP = {"wte": "model.embed_tokens", "ln_f": "model.norm", "ff_out": "lm_head"}
_LLADA_BLOCK = {
    "attn_norm": "input_layernorm",
    "ff_norm": "post_attention_layernorm",
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj",
    "ff_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
    "ff_out": "mlp.down_proj",
}
# What a LLaDA config must say for its block to be a Llama's; what it may leave out has None among its values.
_LLADA_STYLE = {
    "block_type": ("llama",),
    "layer_norm_type": ("rms",),
    "activation_type": ("silu",),
    "rope": (True,),
    "alibi": (None, False),
    "block_group_size": (None, 1),
    "multi_query_attention": (None, False),
    "include_bias": (None, False),
    "bias_for_layer_norm": (None, False),
    "attention_layer_norm": (None, False),
    "layer_norm_with_affine": (None, True),
    "input_emb_norm": (None, False),
    "scale_logits": (None, False),
}


@dataclass(frozen=True)
class Kind:
    """One kind of these models: how its network is described, and how it is used.

    `network`: the config.json in Llama's words and the fields of `DenoiserConfig` besides. `mask_id`, `context`: where
    a config says neither; `most`: a context that is said is cut to what was trained. `block`: the width of its blocks
    where it writes by blocks and does not say.
    """

    network: Callable[[Mapping[str, Any], Path], tuple[dict[str, Any], dict[str, bool]]]
    mask_id: int
    shifted: bool
    context: int
    most: int | None = None
    block: int | None = None


def _llada(data: Mapping[str, Any], source: Path) -> tuple[dict[str, Any], dict[str, bool]]:
    for name, accepted in _LLADA_STYLE.items():
        if data.get(name) not in accepted:
            raise ValueError(
                f"{source} sets {name} = {numbers.shown(data.get(name))}, which this transformer does not compute"
            )
    renamed = {
        "num_hidden_layers": "n_layers",
        "hidden_size": "d_model",
        "num_attention_heads": "n_heads",
        "num_key_value_heads": "n_kv_heads",
        "intermediate_size": "mlp_hidden_size",
        "max_position_embeddings": "max_sequence_length",
        "rms_norm_eps": "rms_norm_eps",
        "rope_theta": "rope_theta",
        "tie_word_embeddings": "weight_tying",
    }
    found = {name: data[theirs] for name, theirs in renamed.items() if data.get(theirs) is not None}
    rows = data.get("embedding_size")
    size = rows if rows is not None else data.get("vocab_size")
    return found | {"vocab_size": size}, {"qkv_bias": data.get("include_qkv_bias") is True}


def _dream(data: Mapping[str, Any], source: Path) -> tuple[dict[str, Any], dict[str, bool]]:
    return dict(data), {"qkv_bias": True}


def _sdar(data: Mapping[str, Any], source: Path) -> tuple[dict[str, Any], dict[str, bool]]:
    return {"head_dim": 128} | dict(data), {"qk_norm": True}


# By `model_type`. Dream does not say that it was trained on 2,048 tokens.
KINDS = {
    "llada": Kind(_llada, mask_id=126_336, shifted=False, context=4096),
    "Dream": Kind(_dream, mask_id=151_666, shifted=True, context=2048, most=2048),
    "sdar": Kind(_sdar, mask_id=151_669, shifted=False, context=32_768, block=4),
}
# Kinds that are known and do not fit, and why.
REFUSED = {
    "Fast_dLLM_Qwen": "its shifted windows look at settled tokens that see the whole of their block, which no layout "
    "here does",
    "sdar_moe": "it has experts, which this transformer does not compute",
    "llada_moe": "it has experts, which this transformer does not compute",
}


def load_bundle(folder: str | Path, *, tokenizer: bool = True) -> Bundle:
    """A folder of one of these kinds as a bundle: absorbing noise, and the hyperschedule that it was trained for."""
    folder = Path(folder)
    source = folder / "config.json"
    data = weights.read_json(source)
    kind = KINDS[data["model_type"]]
    said, style = kind.network(data, source)
    whole = llama.architecture(said, source, **style)
    found = folder_tokenizer(folder) or qwen_tokenizer(folder)
    mask = data.get("mask_token_id")
    mask = numbers.integer("mask_token_id", kind.mask_id if mask is None else mask, low=0, high=whole.vocab_size - 1)
    rows = _rows(whole, found, mask)
    tensors = {_renamed(name): tensor for name, tensor in weights.read_folder(folder).items()}
    tensors = llama.without_copies(tensors, whole)
    check_tensors(whole, tensors, source=folder, targets=llama.targets)
    config = replace(whole, vocab_size=len(rows) - 1, mask_embedding=True)
    if not whole.tied:
        tensors[llama.HEAD] = tensors[llama.HEAD][rows[:-1]]
    tensors[llama.EMBEDDING] = tensors[llama.EMBEDDING][rows]
    model = build_network(config, tensors, source=folder, targets=llama.targets)
    found = None if found is None else without_token(found, mask, source=folder)
    use = _use(kind, {**data, **said}, config, found, mask)
    return Bundle(model, use, found if tokenizer else None, chat_template=folder_chat(folder))


def _rows(config: DenoiserConfig, tokenizer: Tokenizer | None, mask: int) -> Tensor:
    """The rows of their vocabulary in our order: what a text may hold, and the mask."""
    size = config.vocab_size if tokenizer is None else min(tokenizer.get_vocab_size(), config.vocab_size)
    return torch.tensor([*(row for row in range(size) if row != mask), mask])


def _use(
    kind: Kind, data: Mapping[str, Any], config: DenoiserConfig, tokenizer: Tokenizer | None, mask: int
) -> BundleConfig:
    """What the network's outputs are, and how it writes."""

    def moved(name: str) -> int | None:
        token = llama.single(data.get(name))
        return token - (token > mask) if isinstance(token, int) else None

    start, eos = None, moved("eos_token_id")
    if kind.shifted:
        known = None if tokenizer is None else tokenizer.token_to_id(_START)
        start = next((token for token in (known, moved("bos_token_id"), eos) if token is not None), None)
    said = data.get("max_position_embeddings")
    length = numbers.integer("max_position_embeddings", kind.context if said is None else said, low=1)
    length = length if kind.most is None else min(length, kind.most)
    schedule = ScheduleConfig("flat", length)
    if kind.block is not None:
        width = data.get("block_size")
        width = numbers.integer("block_size", kind.block if width is None else width, low=1, high=length)
        schedule = ScheduleConfig("block", length, width=width)
    return BundleConfig(
        model=config,
        process=ProcessConfig("absorbing"),
        hyperschedule=schedule,
        shifted=kind.shifted,
        bos_id=start,
        eos_id=eos,
        block_causal=kind.block is not None,
    )


def _renamed(name: str) -> str:
    """The name of a tensor of LLaDA in Llama's layout; others as they are."""
    stem, _, kind = name.rpartition(".")
    part = stem.removeprefix("model.transformer.")
    if part in _LLADA_TOP:
        return f"{_LLADA_TOP[part]}.{kind}"
    block, _, piece = part.removeprefix("blocks.").partition(".")
    return f"model.layers.{block}.{_LLADA_BLOCK[piece]}.{kind}" if piece in _LLADA_BLOCK else name


def without_token(tokenizer: Tokenizer, token: int, *, source: Path) -> Tokenizer:
    """A tokenizer that lacks one token; ids above it are one lower."""
    state = json.loads(tokenizer.to_str())

    def moved(number: int) -> int:
        return number - (number > token)

    words = state["model"].get("vocab")
    if isinstance(words, dict):
        state["model"]["vocab"] = {word: moved(number) for word, number in words.items() if number != token}
    state["added_tokens"] = [one | {"id": moved(one["id"])} for one in state["added_tokens"] if one["id"] != token]
    for marks in _marks(state.get("post_processor")):
        marks["ids"] = [moved(number) for number in marks["ids"]]
    try:
        return Tokenizer.from_str(json.dumps(state, allow_nan=False))
    except Exception as error:
        raise ValueError(f"{source} has a tokenizer that needs its mask: {first_line(error)}") from None


def _marks(state: Any) -> list[dict[str, Any]]:
    """All tokens, with their ids, that a post-processor writes; those of one in another, too."""
    if not isinstance(state, dict):
        return []
    own = list((state.get("special_tokens") or {}).values())
    return own + [mark for one in state.get("processors") or [] for mark in _marks(one)]
