"""Our configurations and parameters under the names that a folder of transformers has for them, both ways.

config.json holds what the network is, generation_config.json how to draw from it; neither holds what the other does.
What the modelling file does not compute is refused by name. Knows no file.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from hdlm import weights
from hdlm.config.bundle import FORMAT, VERSION, BundleConfig
from hdlm.config.fields import plain
from hdlm.nn.transformer import Denoiser
from hdlm.theory import numbers

MODEL_TYPE = "hdlm"
CODE = ("configuration_hdlm.py", "modeling_hdlm.py")
# Fields of a denoiser by the names of HDLMConfig, most of which are those of transformers.
_MODEL = {
    "vocab_size": "vocab_size",
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_width": "head_dim",
    "hidden": "intermediate_size",
    "mask_embedding": "mask_embedding",
    "mask_output": "mask_output",
    "conditioned": "conditioned",
    "condition_width": "condition_size",
    "conditioned_head": "conditioned_head",
    "timeless": "timeless",
    "weighted_embedding": "weighted_embedding",
    "rms_norm": "rms_norm",
    "gated": "gated_mlp",
    "mlp_bias": "mlp_bias",
    "head_bias": "head_bias",
    "tied": "tie_word_embeddings",
    "norm_eps": "norm_eps",
    "rope_base": "rope_theta",
    "dropout": "dropout",
    "draft_width": "draft_width",
}
# What the outputs mean, likewise. `hyperschedule` and `mixture` are one list there, `sampling` a file of its own.
_MEANING = {
    "process": "process",
    "shifted": "shifted",
    "parameterization": "parameterization",
    "bos_id": "bos_token_id",
    "eos_id": "eos_token_id",
    "block_causal": "block_causal",
    "next_token": "next_token",
}
_ELSEWHERE = ("model", "hyperschedule", "mixture", "sampling")
_DRAWS = {"sampler": "hdlm_sampler", "eta": "hdlm_eta", "threshold": "hdlm_threshold"}
_DRAWS |= {"temperature": "temperature", "top_k": "top_k", "top_p": "top_p"}
# Parameters: how our names begin, and theirs.
_PARAMETERS = (("head.norm.", "norm."), ("head.modulation.", "modulation."), ("sigma.", "noise."))


def config_json(config: BundleConfig, *, dtype: str) -> dict[str, Any]:
    """config.json of a network of numbers `dtype`. Texts are padded with EOS, where there is one."""
    for owner, known in ((config.model, _MODEL), (config, (*_MEANING, *_ELSEWHERE))):
        for field in dataclasses.fields(owner):
            value = getattr(owner, field.name)
            if field.name not in known and value != field.default:
                raise ValueError(
                    f"{field.name} = {value!r} is not accepted: the network for transformers has no such part"
                )
    said = {theirs: getattr(config.model, ours) for ours, theirs in _MODEL.items()}
    said |= {theirs: plain(getattr(config, ours)) for ours, theirs in _MEANING.items()}
    return {
        "architectures": ["HDLMForCausalLM"],
        "auto_map": {
            "AutoConfig": "configuration_hdlm.HDLMConfig",
            "AutoModelForCausalLM": "modeling_hdlm.HDLMForCausalLM",
        },
        "model_type": MODEL_TYPE,
        "hdlm_version": VERSION,
        "torch_dtype": dtype,
        **said,
        "hyperschedules": [plain(schedule) for schedule in config.schedules],
        "max_position_embeddings": config.context,
        "pad_token_id": config.eos_id,
    }


def mask_id(config: BundleConfig) -> int | None:
    """MASK's id in a text that transformers reads; None for a network that never reads MASK."""
    masks = config.model.mask_embedding and config.process.build(config.model.vocab_size).starts_masked
    return config.model.vocab_size if masks else None


def generation_json(config: BundleConfig) -> dict[str, Any]:
    """generation_config.json: the model's own wishes; where it has none, the law as it is."""
    wishes = {_DRAWS[name]: value for name, value in config.sampling.to_json().items()}
    wishes |= {name: float(wishes[name]) for name in ("temperature", "top_p") if name in wishes}  # 2 is refused there
    greedy = config.sampling.temperature == 0
    drawn = {"do_sample": not greedy} | ({} if greedy else {"top_k": 0}) | wishes
    if greedy:
        del drawn["temperature"]  # transformers has no draw at temperature 0
    ids = {"bos_token_id": config.bos_id, "eos_token_id": config.eos_id, "pad_token_id": config.eos_id}
    said = {name: value for name, value in ids.items() if value is not None}
    return said | drawn


def bundle_config(data: Mapping[str, Any], generation: Mapping[str, Any]) -> BundleConfig:
    """What config.json and generation_config.json say, in our words; missing and wrong values are refused by name.

    What transformers adds of its own when it saves a model is passed over.
    """
    for name in (*_MODEL.values(), *_MEANING.values(), "hyperschedules", "max_position_embeddings"):
        if name not in data:
            raise ValueError(f"{name} is missing")
    schedules = data["hyperschedules"]
    if not isinstance(schedules, list) or not schedules:
        raise ValueError(f"hyperschedules = {numbers.shown(schedules)} is not accepted: it must be a list, not empty")
    model = {ours: data[theirs] for ours, theirs in _MODEL.items()}
    body = {ours: data[theirs] for ours, theirs in _MEANING.items()}
    config = BundleConfig.from_json(
        {"format": FORMAT, "version": data.get("hdlm_version"), "model": model, **body}
        | {"hyperschedule": schedules[0], "mixture": schedules[1:], "sampling": _sampling(generation)}
    )
    if data["max_position_embeddings"] != config.context:
        said = numbers.shown(data["max_position_embeddings"])
        raise ValueError(f"max_position_embeddings = {said} is not accepted: hyperschedules says {config.context}")
    return config


def _sampling(generation: Mapping[str, Any]) -> dict[str, Any]:
    """A model's wishes as generation_config.json has them; what says nothing there (top_k of 0, a 1) is no wish."""
    said = {ours: generation[theirs] for ours, theirs in _DRAWS.items() if generation.get(theirs) is not None}
    if said.get("top_k") == 0:
        del said["top_k"]
    return said | ({"temperature": 0} if generation.get("do_sample") is False else {})


def parameters(model: Denoiser) -> dict[str, Tensor]:
    """A network's parameters, in place, by the names of a file for transformers."""
    return {_their_name(name): tensor for name, tensor in weights.contents(model).items()}


def _their_name(own: str) -> str:
    if own == "embedding":
        return "embedding.weight"
    for ours, theirs in _PARAMETERS:
        if own.startswith(ours):
            own = theirs + own.removeprefix(ours)
    return own.replace("modulation.linear.", "modulation.")
