"""Models in the layouts of Llama, Qwen2 and Qwen3 in our denoiser: RMSNorm, SwiGLU and grouped heads.

An autoregressive model loaded this way has every mask, cache and fast path of the library at once. Qwen2 adds biases to
queries, keys and values, Qwen3 norms of queries and keys. What our block cannot express (sliding windows, other
activations) is refused by name. `gguf.py` reads the same models out of another kind of file.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from torch import Tensor

from hdlm import weights
from hdlm.bundle import Bundle
from hdlm.config.bundle import BundleConfig
from hdlm.config.model import DenoiserConfig
from hdlm.config.process import ProcessConfig
from hdlm.config.schedule import ScheduleConfig
from hdlm.interop.byte_level import qwen_tokenizer
from hdlm.interop.parts import build_network, first_token, folder_chat, folder_tokenizer
from hdlm.nn.transformer import Denoiser
from hdlm.theory import numbers

LAYOUTS = ("llama", "qwen2", "qwen3")
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
_CONTEXT = {"llama": 2048, "qwen2": 32_768, "qwen3": 32_768}  # where a config does not say
# Our names to theirs; a fused projection of ours is several of theirs, one above the other.
_TOP = {"embedding": EMBEDDING, "head.norm.weight": "model.norm.weight", "head.weight": HEAD}
_BLOCK = {
    "norm1": ("input_layernorm",),
    "norm2": ("post_attention_layernorm",),
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.q_norm": ("self_attn.q_norm",),
    "attention.k_norm": ("self_attn.k_norm",),
    "attention.out": ("self_attn.o_proj",),
    "mlp.inner": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.outer": ("mlp.down_proj",),
}


def load_denoiser(folder: str | Path) -> Denoiser:
    """The network of a folder of one of these layouts (config.json and safetensors)."""
    return load_bundle(folder, tokenizer=False).model


def load_bundle(folder: str | Path, *, tokenizer: bool = True) -> Bundle:
    """A folder of one of these layouts as a bundle that decodes autoregressively."""
    folder = Path(folder)
    source = folder / "config.json"
    data = weights.read_json(source)
    found = folder_tokenizer(folder) if tokenizer else None
    if tokenizer and found is None and data.get("model_type") != "llama":
        found = qwen_tokenizer(folder)
    config = architecture(data, source)
    return decoder(data, config, weights.read_folder(folder), found, folder_chat(folder), source=folder)


def decoder(
    data: Mapping[str, Any],
    config: DenoiserConfig,
    tensors: Mapping[str, Tensor],
    tokenizer: Tokenizer | None,
    chat_template: str | None,
    *,
    source: Path,
) -> Bundle:
    """The bundle of a config.json, of the network's config that it means, and of tensors by their names there.

    Rows of a vocabulary that was made longer than the tokenizer's, which no text has, are left out.
    """
    config, tensors = without_spare_rows(config, tensors, tokenizer)
    model = build_network(config, without_copies(tensors, config), source=source, targets=targets)
    kind = data["model_type"]
    bos, eos = (single(data.get(f"{name}_token_id")) for name in ("bos", "eos"))
    if kind == "llama":  # what its config is where it does not say
        bos, eos = 1 if bos is None else bos, 2 if eos is None else eos
    start = first_token(tokenizer, bos if bos is not None else eos)
    if start is None:
        raise ValueError(f"{source} is not accepted: its config names neither bos_token_id nor eos_token_id")
    length = _said(data, "max_position_embeddings", _CONTEXT[kind])
    bundle = BundleConfig(
        model=model.config,
        process=ProcessConfig("absorbing"),
        hyperschedule=ScheduleConfig("quench", length),
        shifted=True,
        bos_id=start,
        eos_id=eos,
    )
    return Bundle(model, bundle, tokenizer, chat_template=chat_template)


def without_spare_rows(
    config: DenoiserConfig, tensors: Mapping[str, Tensor], tokenizer: Tokenizer | None
) -> tuple[DenoiserConfig, Mapping[str, Tensor]]:
    """A config and tensors whose vocabulary ends where the tokenizer's does."""
    rows = config.vocab_size if tokenizer is None else tokenizer.get_vocab_size()
    if rows >= config.vocab_size:
        return config, tensors
    cut = {
        name: tensors[name][:rows]
        for name in (EMBEDDING, HEAD)
        if name in tensors and tensors[name].shape[:1] == (config.vocab_size,)
    }
    return replace(config, vocab_size=rows), {**tensors, **cut}


def without_copies(tensors: Mapping[str, Tensor], config: DenoiserConfig) -> dict[str, Tensor]:
    """Tensors but for those that follow from others: rotary tables, and a tied head, which some write twice."""
    spare = ("rotary_emb.inv_freq", HEAD) if config.tied else ("rotary_emb.inv_freq",)
    return {name: tensor for name, tensor in tensors.items() if not name.endswith(spare)}


def _said(data: Mapping[str, Any], name: str, default: Any) -> Any:
    """What a config says of something, or the default where it says nothing or null."""
    return default if data.get(name) is None else data[name]


def single(value: Any) -> Any:
    """Some configs list several ids: the first is the one that is written."""
    return (value[0] if value else None) if isinstance(value, list) else value


def architecture(data: Mapping[str, Any], source: Path, **style: Any) -> DenoiserConfig:
    """The network that a config.json describes, refused where ours cannot be it; `style`: other fields of it."""
    kind = data.get("model_type")
    layers = _said(data, "layer_types", [])
    refused = {
        "attention_bias": data.get("attention_bias") not in (None, False),
        "mlp_bias": data.get("mlp_bias") not in (None, False),
        "partial_rotary_factor": data.get("partial_rotary_factor") not in (None, 1, 1.0),
        "hidden_act": data.get("hidden_act", "silu") != "silu",
        "use_sliding_window": data.get("use_sliding_window") not in (None, False),
        "layer_types": not isinstance(layers, list) or any(layer != "full_attention" for layer in layers),
    }
    for name, wrong in refused.items():
        if wrong:
            raise ValueError(f"{source} sets {name} = {data.get(name)!r}, which this transformer does not compute")
    scaling, rope = _rope_scaling(data, source)
    try:
        return DenoiserConfig(
            vocab_size=data["vocab_size"],
            layers=data["num_hidden_layers"],
            width=data["hidden_size"],
            heads=data["num_attention_heads"],
            kv_heads=data.get("num_key_value_heads"),
            head_width=_said(data, "head_dim", 128 if kind == "qwen3" else None),
            hidden=data["intermediate_size"],
            conditioned=False,
            rms_norm=True,
            gated=True,
            mlp_bias=False,
            tied=numbers.boolean("tie_word_embeddings", _said(data, "tie_word_embeddings", False)),
            norm_eps=_said(data, "rms_norm_eps", 1e-6),
            rope_base=_said(data, "rope_theta", _said(rope, "rope_theta", 10_000.0)),
            rope_scaling=scaling,
            **{"mask_embedding": False, "qkv_bias": kind == "qwen2", "qk_norm": kind == "qwen3"} | style,
        )
    except KeyError as error:
        raise ValueError(f"{source} lacks {error.args[0]}, which a config of this kind names") from None


def _rope_scaling(data: Mapping[str, Any], source: Path) -> tuple[tuple[float, ...], Mapping[str, Any]]:
    """How rotary waves are stretched (`DenoiserConfig.rope_scaling`), and the section of the config that says it."""
    name = "rope_scaling" if data.get("rope_scaling") is not None else "rope_parameters"
    rope = numbers.instance(name, _said(data, name, {}), dict)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return (), rope
    fields = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    if kind != "llama3" or not all(field in rope for field in fields):
        raise ValueError(f"{source} sets {name} = {rope!r}, which this transformer does not compute")
    return tuple(numbers.positive(f"{name}.{field}", rope[field]) for field in fields), rope


def targets(model: Denoiser) -> dict[str, Tensor]:
    """Our parameters under Llama's names."""
    config = model.config
    keys = config.num_kv_heads * config.head_size
    rows = {"attention.qkv": [config.heads * config.head_size, keys, keys], "mlp.inner": [config.hidden_size] * 2}
    found = {}
    for name, tensor in weights.contents(model).items():
        if name in _TOP:
            found[_TOP[name]] = tensor
        else:
            _, layer, part = name.split(".", 2)
            part, kind = part.rsplit(".", 1)
            pieces = tensor.split(rows.get(part, len(tensor)))
            for theirs, piece in zip(_BLOCK[part], pieces, strict=True):
                found[f"model.layers.{layer}.{theirs}.{kind}"] = piece
    return found
