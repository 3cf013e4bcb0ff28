"""The published checkpoints of this field in our denoiser: HDLM (epsilon, gamma), MDLM, SEDD (absorb, uniform).

They are one architecture under one set of names; what differs is whether it is conditioned on noise, whether its
embeddings are weighted, and what is done to the output. Widths and depth are read off the tensors, the rest off
config.json. `load_network(folder).outputs(...)` gives what the published network gives.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hdlm import weights
from hdlm.bundle import Bundle
from hdlm.config.bundle import BundleConfig
from hdlm.config.model import DenoiserConfig
from hdlm.config.process import NoiseConfig, ProcessConfig
from hdlm.config.schedule import ScheduleConfig
from hdlm.data.tokenizer import read_tokenizer
from hdlm.folders import data_root
from hdlm.interop.parts import build_network, folder_tokenizer
from hdlm.nn.attention import MaskedAttention
from hdlm.nn.transformer import Denoiser
from hdlm.theory import checks, numbers
from hdlm.theory.parameterization import log_expm1

_EMBEDDING, _INNER, _ROTARY = "vocab_embed.embedding", "blocks.0.mlp.0.weight", "rotary_emb.inv_freq"
# Our names to theirs, in this order.
_NAMES = (
    ("embedding", _EMBEDDING),
    ("head.modulation.linear", "output_layer.adaLN_modulation"),
    ("head.norm", "output_layer.norm_final"),
    ("head.", "output_layer.linear."),
    ("sigma.inner", "sigma_map.mlp.0"),
    ("sigma.outer", "sigma_map.mlp.2"),
    ("attention.qkv", "attn_qkv"),
    ("attention.out", "attn_out"),
    ("mlp.inner", "mlp.0"),
    ("mlp.outer", "mlp.2"),
    ("modulation.linear", "adaLN_modulation"),
)
_SCHEDULES = {"block": "block", "slide": "slide", "simple": "slide"}


@dataclass(frozen=True)
class Convention:
    """What sets one published network apart. `style`: of its architecture, as fields of `DenoiserConfig`."""

    process: ProcessConfig
    parameterization: str
    style: dict[str, Any]
    own_score_is_one: bool = False


@dataclass(frozen=True)
class PublishedNetwork:
    """A published network computed by our denoiser."""

    model: Denoiser
    convention: Convention

    def outputs(
        self,
        tokens: Tensor,
        positions: Tensor | None = None,
        sigma: Tensor | None = None,
        forbidden: Tensor | None = None,
    ) -> Tensor:
        """Logits or log scores [batch, length, outputs] as the published code gives them, MASK's column included.

        `sigma` [batch] or [batch, length]; `forbidden` [batch, length, length], True where a slot may not look.
        """
        checks.tokens("tokens", tokens, self.model.config.embeddings)
        batch, length = tokens.shape
        positions = torch.arange(length, device=tokens.device) if positions is None else positions
        if sigma is None:
            if self.model.sigma is not None:
                raise ValueError("sigma = None is not accepted: this network is conditioned on noise")
            sigma = torch.zeros(batch, device=tokens.device)
        per_slot = sigma.view(batch, -1).expand(batch, length)
        gamma = self.convention.process.gamma if self.model.config.weighted_embedding else None
        weight = torch.exp(-gamma * per_slot) if gamma is not None else torch.ones_like(per_slot)
        attend = MaskedAttention(mask=None if forbidden is None else ~forbidden.unsqueeze(1))
        features = self.model.run(tokens, per_slot, weight, self.model.rope(positions), ((length, 1),), attend)
        out = self.model.head(features)
        if self.convention.parameterization == "sedd-scaled":
            out = out - (log_expm1(per_slot) + math.log(out.shape[-1] - 1)).unsqueeze(-1)
        return out.scatter(-1, tokens.unsqueeze(-1), 0.0) if self.convention.own_score_is_one else out


def load_network(folder: str | Path) -> PublishedNetwork:
    """A published checkpoint from its folder (config.json and weights)."""
    return _load(Path(folder))[0]


def load_bundle(folder: str | Path, *, tokenizer: bool = True) -> Bundle:
    """A published checkpoint as a bundle: network, process, hyperschedule, and its tokenizer where one is found."""
    folder = Path(folder)
    network, data = _load(folder)
    model, convention = network.model, network.convention
    size = model.config.vocab_size
    shifted, schedule = data.get("type") == "shifted", _schedule(data)
    context = _section(_section(data, "annealing"), "attention").get("context_type")
    config = BundleConfig(
        model=model.config,
        process=convention.process,
        hyperschedule=schedule,
        shifted=shifted,
        parameterization=convention.parameterization,
        bos_id=size - 1 if shifted else None,
        block_causal=not shifted and schedule.width is not None and context == "block_causal",
    )
    return Bundle(model, config, _tokenizer(folder, data) if tokenizer else None)


def _load(folder: Path) -> tuple[PublishedNetwork, dict[str, Any]]:
    data = weights.read_json(folder / "config.json")
    convention = _convention(data, folder)
    tensors = _without_prefix(weights.read_folder(folder, allow_torch=True), folder)
    config = _architecture(tensors, data, convention.style, folder)
    return PublishedNetwork(build_network(config, tensors, source=folder, targets=_targets), convention), data


def _targets(model: Denoiser) -> dict[str, Tensor]:
    """Our parameters under the published names."""
    return {_published_name(name): tensor for name, tensor in weights.contents(model).items()}


def _published_name(own: str) -> str:
    """The published name of one of our parameters."""
    return next((own.replace(part, theirs) for part, theirs in _NAMES if part in own), own)


def _option(data: Mapping[str, Any], section: str, name: str, folder: Path) -> Any:
    """An option under a section of config.json, or at its top where the section does not have it."""
    found = _section(data, section).get(name, data.get(name))
    if found is None:
        raise ValueError(f"{folder / 'config.json'} lacks {section}.{name}, which a published checkpoint names")
    return found


def _flag(data: Mapping[str, Any], section: str, name: str, folder: Path) -> bool:
    return numbers.boolean(f"{section}.{name}", _option(data, section, name, folder))


def _section(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A section of config.json; empty where it is not there."""
    section = data.get(name)
    if section is not None and not isinstance(section, Mapping):
        raise ValueError(f"{name} = {section!r} is not accepted: it must be an object")
    return section or {}


def _convention(data: Mapping[str, Any], folder: Path) -> Convention:
    """Which of the published models config.json describes."""
    kind, graph = data.get("model_type"), _section(data, "graph").get("type")
    if kind == "epsilon_hybrid":
        process = ProcessConfig("epsilon", epsilon=_option(data, "training", "epsilon", folder))
        return Convention(process, "hdce", {"conditioned": False})
    noise = _noise(data, folder)
    if kind == "mdlm" or data.get("parameterization") == "subs":
        style = {"timeless": data.get("time_conditioning") is False}
        return Convention(ProcessConfig("absorbing", noise=noise), "clean", style)
    if kind == "gamma_hybrid" or graph in ("absorb", "uniform"):
        scaled = "sedd-scaled" if _flag(data, "model", "scale_by_sigma", folder) else "sedd-plain"
        if kind != "gamma_hybrid":
            masks = graph == "absorb"
            process = ProcessConfig("absorbing" if masks else "uniform", noise=noise)
            style = {"mask_embedding": masks, "mask_output": masks}
            return Convention(process, scaled, style, own_score_is_one=True)
        process = ProcessConfig("gamma", noise=noise, gamma=_option(data, "graph", "gamma", folder))
        weighted = _flag(data, "model", "hybrid_sigma_embedding", folder)
        return Convention(process, scaled, {"conditioned_head": False, "weighted_embedding": weighted})
    known = "it must be of hdlm, Llama, Qwen2, Qwen3, LLaDA, Dream, SDAR, HDLM, MDLM or SEDD"
    if isinstance(kind, str):
        raise ValueError(f"{folder / 'config.json'} describes a model of the type {numbers.shown(kind)}: {known}")
    raise ValueError(f"{folder / 'config.json'} describes no model known here: {known}")


def _noise(data: Mapping[str, Any], folder: Path) -> NoiseConfig:
    """The noise that a checkpoint names; log-linear where it names none."""
    noise = _section(data, "noise")
    kind = noise.get("type", "loglinear")
    if kind == "loglinear":
        return NoiseConfig("loglinear", {"eps": 1e-3})
    if kind == "geometric":
        return NoiseConfig("geometric", {name: noise[name] for name in ("sigma_min", "sigma_max") if name in noise})
    raise ValueError(f"{folder / 'config.json'} names noise.type = {kind!r}: it must be loglinear or geometric")


def _without_prefix(tensors: Mapping[str, Tensor], folder: Path) -> dict[str, Tensor]:
    """The parameters by their own names: a wrapper's prefix such as "backbone." is dropped."""
    anchors = [name for name in tensors if name.endswith(_EMBEDDING)]
    if len(anchors) != 1:
        raise ValueError(f"{folder} lacks {_EMBEDDING}")
    prefix = anchors[0].removesuffix(_EMBEDDING)
    named = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    return {name: tensor for name, tensor in named.items() if name != _ROTARY}


def _architecture(
    tensors: Mapping[str, Tensor], data: Mapping[str, Any], style: dict[str, Any], folder: Path
) -> DenoiserConfig:
    """Sizes from config.json, and the vocabulary and the MLP's width off the tensors."""
    for name in (_EMBEDDING, _INNER):
        if name not in tensors or tensors[name].ndim != 2:
            raise ValueError(f"{folder} lacks {name}, a matrix")
    states, has_mask = len(tensors[_EMBEDDING]), style.get("mask_embedding", True)
    named = _section(data, "tokenizer").get("tokens", data.get("tokens"))
    if named is not None and states != numbers.integer("tokens", named, low=1) + has_mask:
        raise ValueError(f"{folder} has {_EMBEDDING} of {states} rows: config.json names {named} tokens")
    model, fields = _section(data, "model"), {"mask_output": True, **style}
    width = model.get("hidden_size", data.get("hidden_dim"))
    return DenoiserConfig(
        vocab_size=states - has_mask,
        layers=_option(data, "model", "n_blocks", folder),
        width=width if width is not None else _option(data, "model", "hidden_size", folder),
        heads=_option(data, "model", "n_heads", folder),
        hidden=len(tensors[_INNER]),
        condition_width=_option(data, "model", "cond_dim", folder) if style.get("conditioned", True) else 128,
        head_bias=True,
        **fields,
    )


def _schedule(data: Mapping[str, Any]) -> ScheduleConfig:
    """The hyperschedule that a checkpoint was trained for; a block as wide as the context is flat."""
    length = _section(data, "model").get("length", data.get("model_length", 1024))
    annealing = _section(data, "annealing")
    width, tau = annealing.get("width", length), annealing.get("tau", annealing.get("width", length))
    for name, value in (("model.length", length), ("annealing.width", width), ("annealing.tau", tau)):
        numbers.integer(name, value, low=1)
    rate = width / tau
    if width >= length:
        return ScheduleConfig("flat", length, rate=rate)
    kind = _SCHEDULES[numbers.choice("annealing.type", annealing.get("type"), _SCHEDULES)]
    return ScheduleConfig(kind, length, width=width, rate=rate)


def _tokenizer(folder: Path, data: Mapping[str, Any]):
    """The folder's own tokenizer, or the one its config names, from the data folder."""
    own = folder_tokenizer(folder)
    if own is not None:
        return own
    named = _section(data, "tokenizer")
    name = Path(str(named.get("model")))
    path = data_root() / "tokenizers" / name / "tokenizer.json"
    if name.is_absolute() or ".." in name.parts or not path.is_file():
        return None
    tokenizer = read_tokenizer(path)
    return tokenizer if tokenizer.get_vocab_size() == named.get("tokens") else None
