"""Llama-layout checkpoints in our denoiser: the same transformer with RMSNorm, SwiGLU and grouped heads.

An autoregressive model loaded this way has every mask, cache and fast path of the library at once. What our block
cannot express (biases in attention, scaled rotary tables, other activations) is refused by name.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from hdlm import weights
from hdlm.bundle import Bundle
from hdlm.config.bundle import BundleConfig
from hdlm.config.model import DenoiserConfig
from hdlm.config.process import ProcessConfig
from hdlm.config.schedule import ScheduleConfig
from hdlm.interop.parts import build_network, folder_chat, folder_tokenizer
from hdlm.nn.transformer import Denoiser
from hdlm.theory import numbers

# Our names to theirs; a fused projection of ours is several of theirs, one above the other.
_TOP = {
    "embedding": "model.embed_tokens.weight",
    "head.norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
_BLOCK = {
    "norm1": ("input_layernorm",),
    "norm2": ("post_attention_layernorm",),
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.out": ("self_attn.o_proj",),
    "mlp.inner": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.outer": ("mlp.down_proj",),
}


def load_denoiser(folder: str | Path) -> Denoiser:
    """The network of a Llama-layout folder (config.json and safetensors)."""
    folder = Path(folder)
    config = _architecture(weights.read_json(folder / "config.json"), folder)
    # Rotary tables are computed; a tied head is written twice by some.
    spare = ("rotary_emb.inv_freq", "lm_head.weight") if config.tied else ("rotary_emb.inv_freq",)
    tensors = {name: tensor for name, tensor in weights.read_folder(folder).items() if not name.endswith(spare)}
    return build_network(config, tensors, source=folder, targets=_targets)


def load_bundle(folder: str | Path, *, tokenizer: bool = True) -> Bundle:
    """The same as a bundle that decodes autoregressively."""
    folder = Path(folder)
    data = weights.read_json(folder / "config.json")
    model = load_denoiser(folder)
    config = BundleConfig(
        model=model.config,
        process=ProcessConfig("absorbing"),
        hyperschedule=ScheduleConfig("quench", _said(data, "max_position_embeddings", 2048)),
        shifted=True,
        bos_id=_single(data.get("bos_token_id"), 1),
        eos_id=_single(data.get("eos_token_id"), 2),
    )
    return Bundle(model, config, folder_tokenizer(folder) if tokenizer else None, chat_template=folder_chat(folder))


def _said(data: Mapping[str, Any], name: str, default: Any) -> Any:
    """What a config says of something, or the Llama config's default where it says nothing or null."""
    return default if data.get(name) is None else data[name]


def _single(value: Any, default: int) -> Any:
    """Some configs list several ids: the first is the one that is written. Without one, the Llama config's default."""
    if isinstance(value, list):
        value = value[0] if value else None
    return default if value is None else value


def _architecture(data: Mapping[str, Any], folder: Path) -> DenoiserConfig:
    source = folder / "config.json"
    rope = numbers.instance("rope_parameters", _said(data, "rope_parameters", {}), dict)
    refused = {
        "attention_bias": data.get("attention_bias") not in (None, False),
        "mlp_bias": data.get("mlp_bias") not in (None, False),
        "rope_scaling": data.get("rope_scaling") is not None or _said(rope, "rope_type", "default") != "default",
        "partial_rotary_factor": data.get("partial_rotary_factor") not in (None, 1, 1.0),
        "hidden_act": data.get("hidden_act", "silu") != "silu",
    }
    for name, wrong in refused.items():
        if wrong:
            raise ValueError(
                f"{source} sets {name} = {data.get(name, rope)!r}, which this transformer does not compute"
            )
    try:
        return DenoiserConfig(
            vocab_size=data["vocab_size"],
            layers=data["num_hidden_layers"],
            width=data["hidden_size"],
            heads=data["num_attention_heads"],
            kv_heads=data.get("num_key_value_heads"),
            head_width=data.get("head_dim"),
            hidden=data["intermediate_size"],
            mask_embedding=False,
            conditioned=False,
            rms_norm=True,
            gated=True,
            mlp_bias=False,
            tied=numbers.boolean("tie_word_embeddings", _said(data, "tie_word_embeddings", False)),
            norm_eps=_said(data, "rms_norm_eps", 1e-6),
            rope_base=_said(data, "rope_theta", _said(rope, "rope_theta", 10_000.0)),
        )
    except KeyError as error:
        raise ValueError(f"{source} lacks {error.args[0]}, which a Llama config names") from None


def _targets(model: Denoiser) -> dict[str, Tensor]:
    """Our parameters under Llama's names."""
    config = model.config
    keys = config.num_kv_heads * config.head_size
    rows = {"attention.qkv": [config.heads * config.head_size, keys, keys], "mlp.inner": [config.hidden_size] * 2}
    targets = {}
    for name, tensor in weights.contents(model).items():
        if name in _TOP:
            targets[_TOP[name]] = tensor
        else:
            _, layer, part = name.removesuffix(".weight").split(".", 2)
            pieces = tensor.split(rows.get(part, len(tensor)))
            for theirs, piece in zip(_BLOCK[part], pieces, strict=True):
                targets[f"model.layers.{layer}.{theirs}.weight"] = piece
    return targets
