"""The published checkpoints of this field in our denoiser: HDLM (epsilon, gamma), MDLM, SEDD (absorb, uniform).

They are one architecture under one set of names; what differs is whether it is conditioned on noise, whether its
embeddings are weighted, and what is done to the output. Widths and depth are read off the tensors, the rest off
config.json. `load_network(folder).outputs(...)` gives what the published network gives.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hdlm import weights
from hdlm.bundle import Bundle, read_tokenizer
from hdlm.config import BundleConfig, NoiseConfig, ProcessConfig, ScheduleConfig
from hdlm.nn.attention import Plan
from hdlm.nn.transformer import Denoiser, DenoiserConfig
from hdlm.theory.parameterization import log_expm1

_EMBEDDING = "vocab_embed.embedding"
_NAMES = (
    (r"vocab_embed\.embedding", "embedding"),
    (r"sigma_map\.mlp\.0\.", "sigma.inner."),
    (r"sigma_map\.mlp\.2\.", "sigma.outer."),
    (r"\.attn_qkv\.", ".attention.qkv."),
    (r"\.attn_out\.", ".attention.out."),
    (r"\.mlp\.0\.", ".mlp.inner."),
    (r"\.mlp\.2\.", ".mlp.outer."),
    (r"output_layer\.norm_final\.", "head.norm."),
    (r"output_layer\.linear\.", "head."),
    (r"output_layer\.adaLN_modulation\.", "head.modulation.linear."),
    (r"\.adaLN_modulation\.", ".modulation.linear."),
)


@dataclass(frozen=True)
class Convention:
    """What a published network does around the common architecture."""

    process: ProcessConfig
    parameterization: str
    has_mask: bool = True
    gamma: float | None = None
    own_score_is_one: bool = False


class PublishedNetwork:
    """A published network computed by our denoiser."""

    def __init__(self, model: Denoiser, convention: Convention) -> None:
        self.model = model
        self.convention = convention

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
        batch, length = tokens.shape
        positions = torch.arange(length, device=tokens.device) if positions is None else positions
        if sigma is None:
            if self.model.sigma is not None:
                raise ValueError("sigma = None is not accepted: this network is conditioned on noise")
            sigma = torch.zeros(batch, device=tokens.device)
        per_slot = sigma.view(batch, -1).expand(batch, length)
        gamma = self.convention.gamma
        weight = torch.exp(-gamma * per_slot) if gamma is not None else torch.ones_like(per_slot)
        level = torch.arange(length, device=tokens.device)
        plan = Plan() if forbidden is None else Plan(dense=~forbidden.unsqueeze(1))
        out = self.model.head(self.model.run(tokens, per_slot, weight, positions, level, plan))
        return self._score(out, tokens, per_slot)

    def _score(self, out: Tensor, tokens: Tensor, sigma: Tensor) -> Tensor:
        if self.convention.parameterization == "sedd-scaled":
            out = out - (log_expm1(sigma) + torch.log(torch.tensor(out.shape[-1] - 1.0))).unsqueeze(-1)
        if self.convention.own_score_is_one:
            out = out.scatter(-1, tokens.unsqueeze(-1), 0.0)
        return out


def load_network(folder: str | Path) -> PublishedNetwork:
    """A published checkpoint from its folder (config.json and weights)."""
    network, _ = _load(Path(folder))
    return network


def load_bundle(folder: str | Path) -> Bundle:
    """A published checkpoint as a bundle: network, process, hyperschedule, and its tokenizer where one is found."""
    folder = Path(folder)
    network, data = _load(folder)
    model, convention = network.model, network.convention
    size = model.config.vocab_size
    shifted = data.get("type") == "shifted"
    config = BundleConfig(
        model=model.config,
        process=convention.process,
        hyperschedule=_schedule(data),
        shifted=shifted,
        parameterization=convention.parameterization,
        bos_id=size - 1 if shifted else None,
    )
    return Bundle(model, config, _tokenizer(folder, data))


def _load(folder: Path) -> tuple[PublishedNetwork, dict[str, Any]]:
    data = weights.read_json(folder / "config.json")
    convention = _convention(data, folder)
    tensors = _renamed(weights.read_folder(folder, allow_torch=True), folder)
    config = _architecture(tensors, _option(data, "model", "n_heads", folder), convention, folder)
    model = Denoiser(config).eval()
    weights.fill(model, tensors, source=folder)
    return PublishedNetwork(model, convention), data


def _option(data: Mapping[str, Any], section: str, name: str, folder: Path) -> Any:
    """An option under a section of config.json, or at its top where the section does not have it."""
    found = _section(data, section).get(name, data.get(name))
    if found is None:
        raise ValueError(f"{folder / 'config.json'} lacks {section}.{name}, which a published checkpoint names")
    return found


def _section(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = data.get(name)
    return section if isinstance(section, Mapping) else {}


def _convention(data: Mapping[str, Any], folder: Path) -> Convention:
    """Which of the published models config.json describes."""
    log_linear = NoiseConfig("loglinear", {"eps": 1e-3})
    kind, graph = data.get("model_type"), _section(data, "graph").get("type")
    if kind == "epsilon_hybrid":
        return Convention(ProcessConfig("epsilon", epsilon=_option(data, "training", "epsilon", folder)), "clean")
    if kind == "gamma_hybrid":
        gamma = _option(data, "graph", "gamma", folder)
        weighted = _option(data, "model", "hybrid_sigma_embedding", folder)
        process = ProcessConfig("gamma", noise=log_linear, gamma=gamma)
        return Convention(process, "sedd-scaled", gamma=gamma if weighted else None)
    if kind == "mdlm" or data.get("parameterization") == "subs":
        return Convention(ProcessConfig("absorbing", noise=log_linear), "clean")
    if graph in ("absorb", "uniform"):
        scaled = "sedd-scaled" if _option(data, "model", "scale_by_sigma", folder) else "sedd-plain"
        process = ProcessConfig("absorbing" if graph == "absorb" else "uniform", noise=log_linear)
        return Convention(process, scaled, has_mask=graph == "absorb", own_score_is_one=True)
    raise ValueError(
        f"{folder / 'config.json'} describes no model known here: neither hdlm, Llama, HDLM, MDLM nor SEDD"
    )


def _renamed(tensors: Mapping[str, Tensor], folder: Path) -> dict[str, Tensor]:
    """The tensors under our names; a wrapper's prefix such as "backbone." and the rotary table are dropped."""
    anchors = [name for name in tensors if name.endswith(_EMBEDDING)]
    if len(anchors) != 1:
        raise ValueError(f"{folder} lacks {_EMBEDDING}")
    prefix = anchors[0].removesuffix(_EMBEDDING)
    renamed = {}
    for name, tensor in tensors.items():
        own = name.removeprefix(prefix)
        if own == "rotary_emb.inv_freq":
            continue
        for pattern, replacement in _NAMES:
            own = re.sub(pattern, replacement, own)
        renamed[own] = tensor
    return renamed


def _architecture(tensors: Mapping[str, Tensor], heads: int, convention: Convention, folder: Path) -> DenoiserConfig:
    """Sizes off the tensors' shapes."""

    def shape(name: str) -> tuple[int, ...]:
        if name not in tensors:
            raise ValueError(f"{folder} lacks {name}")
        return tuple(tensors[name].shape)

    states, width = shape("embedding")
    conditioned = "sigma.inner.weight" in tensors
    return DenoiserConfig(
        vocab_size=states - convention.has_mask,
        layers=1 + max(int(name.split(".")[1]) for name in tensors if name.startswith("blocks.")),
        width=width,
        heads=heads,
        hidden=shape("blocks.0.mlp.inner.weight")[0],
        mask_embedding=convention.has_mask,
        mask_output=convention.has_mask,
        conditioned=conditioned,
        condition_width=shape("sigma.inner.weight")[0] if conditioned else 128,
        conditioned_head="head.modulation.linear.weight" in tensors,
        weighted_embedding=convention.gamma is not None,
        head_bias="head.bias" in tensors,
    )


def _schedule(data: Mapping[str, Any]) -> ScheduleConfig:
    """The hyperschedule that a checkpoint was trained for; a block as wide as the context is flat."""
    length = int(_section(data, "model").get("length", data.get("length", 1024)))
    annealing = _section(data, "annealing")
    if annealing.get("width", length) >= length:
        return ScheduleConfig("flat", length)
    return ScheduleConfig(annealing["type"], length, width=annealing["width"])


def _tokenizer(folder: Path, data: Mapping[str, Any]):
    """The folder's own tokenizer, or the one its config names, from the data folder."""
    if (folder / "tokenizer.json").exists():
        return read_tokenizer(folder / "tokenizer.json")
    named, root = _section(data, "tokenizer"), os.environ.get("HDLM_DATA")
    if named and root:
        path = Path(root) / "tokenizers" / str(named.get("model")) / "tokenizer.json"
        tokenizer = read_tokenizer(path) if path.exists() else None
        if tokenizer is not None and tokenizer.get_vocab_size() == named.get("tokens"):
            return tokenizer
    return None
