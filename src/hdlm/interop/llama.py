"""Llama-layout checkpoints in our denoiser: the same transformer with RMSNorm, SwiGLU and grouped heads.

An autoregressive model loaded this way has every mask, cache and fast path of the library at once. What our block
cannot express (biases in attention, scaled rotary tables, other activations) is refused by name.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hdlm import weights
from hdlm.bundle import Bundle, read_tokenizer
from hdlm.config import BundleConfig, ProcessConfig, ScheduleConfig
from hdlm.nn.config import DenoiserConfig
from hdlm.nn.transformer import Denoiser

_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)\.weight")
_PLAIN = {
    "input_layernorm": "norm1.weight",
    "post_attention_layernorm": "norm2.weight",
    "self_attn.o_proj": "attention.out.weight",
    "mlp.down_proj": "mlp.outer.weight",
}
_FUSED = {
    "attention.qkv.weight": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.inner.weight": ("mlp.gate_proj", "mlp.up_proj"),
}
_TOP = {
    "model.embed_tokens.weight": "embedding",
    "model.norm.weight": "head.norm.weight",
    "lm_head.weight": "head.weight",
}


def load_denoiser(folder: str | Path) -> Denoiser:
    """The network of a Llama-layout folder (config.json and safetensors)."""
    folder = Path(folder)
    config = _architecture(weights.read_json(folder / "config.json"), folder)
    model = Denoiser(config).eval()
    weights.fill(model, _renamed(weights.read_folder(folder), config, folder), source=folder)
    return model


def load_bundle(folder: str | Path, *, tokenizer: bool = True) -> Bundle:
    """The same as a bundle that decodes autoregressively."""
    folder = Path(folder)
    data = weights.read_json(folder / "config.json")
    model = load_denoiser(folder)
    path = folder / "tokenizer.json"
    config = BundleConfig(
        model=model.config,
        process=ProcessConfig("absorbing"),
        hyperschedule=ScheduleConfig("quench", data.get("max_position_embeddings") or 2048),
        shifted=True,
        bos_id=_single(data.get("bos_token_id"), 1),
        eos_id=_single(data.get("eos_token_id"), 2),
    )
    return Bundle(model, config, read_tokenizer(path) if tokenizer and path.exists() else None)


def _single(value: Any, default: int) -> Any:
    """Some configs list several ids: the first is the one that is written. Without one, the Llama config's default."""
    if isinstance(value, list):
        value = value[0] if value else None
    return default if value is None else value


def _architecture(data: Mapping[str, Any], folder: Path) -> DenoiserConfig:
    source = folder / "config.json"
    rope = data.get("rope_parameters") or {}
    refused = {
        "attention_bias": data.get("attention_bias") not in (None, False),
        "mlp_bias": data.get("mlp_bias") not in (None, False),
        "rope_scaling": data.get("rope_scaling") is not None or rope.get("rope_type", "default") != "default",
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
            tied=bool(data.get("tie_word_embeddings", False)),
            norm_eps=data.get("rms_norm_eps", 1e-6),
            rope_base=float(data.get("rope_theta") or rope.get("rope_theta", 10_000.0)),
        )
    except KeyError as error:
        raise ValueError(f"{source} lacks {error.args[0]}, which a Llama config names") from None


def _renamed(tensors: Mapping[str, Tensor], config: DenoiserConfig, folder: Path) -> dict[str, Tensor]:
    """The tensors under our names, projections that we fuse joined."""
    renamed: dict[str, Tensor] = {}
    parts: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        layer = _LAYER.fullmatch(name)
        if layer is not None and layer[2] in _PLAIN:
            renamed[f"blocks.{layer[1]}.{_PLAIN[layer[2]]}"] = tensor
        elif layer is not None and any(layer[2] in group for group in _FUSED.values()):
            parts[f"{layer[1]}.{layer[2]}"] = tensor
        elif name in _TOP and not (config.tied and name == "lm_head.weight"):
            renamed[_TOP[name]] = tensor
        elif not name.endswith("rotary_emb.inv_freq") and name != "lm_head.weight":
            renamed[name] = tensor
    rows = {
        "self_attn.q_proj": config.heads * config.head_size,
        "self_attn.k_proj": config.num_kv_heads * config.head_size,
        "self_attn.v_proj": config.num_kv_heads * config.head_size,
        "mlp.gate_proj": config.hidden_size,
        "mlp.up_proj": config.hidden_size,
    }
    for layer_number in range(config.layers):
        for own, group in _FUSED.items():
            found = []
            for part in group:
                name = f"model.layers.{layer_number}.{part}.weight"
                tensor = parts.pop(f"{layer_number}.{part}", None)
                if tensor is None:
                    raise ValueError(f"{folder} lacks {name}")
                if tensor.shape != (rows[part], config.width):
                    wanted = (rows[part], config.width)
                    raise ValueError(f"{folder} has {name} of shape {tuple(tensor.shape)}: it must be {wanted}")
                found.append(tensor)
            renamed[f"blocks.{layer_number}.{own}"] = torch.cat(found)
    return renamed | {f"model.layers.{name}.weight": tensor for name, tensor in parts.items()}
