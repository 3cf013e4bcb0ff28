"""The published checkpoints of this field in our denoiser: HDLM (epsilon, gamma), MDLM, SEDD (absorb, uniform).

They are one architecture under one set of names; what differs is whether it is conditioned on noise, whether its
embeddings are weighted, and what is done to the output. Widths and depth are read off the tensors, the rest off
config.json. `load_network(folder).outputs(...)` gives what the published network gives.
"""

import os
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
from hdlm.nn.config import DenoiserConfig
from hdlm.nn.transformer import Denoiser
from hdlm.theory import checks
from hdlm.theory.parameterization import log_expm1

_EMBEDDING, _ROTARY = "vocab_embed.embedding", "rotary_emb.inv_freq"
# Our names to theirs, in this order.
_NAMES = (
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
_SCHEDULES = {"block": "block", "slide": "slide", "simple": "slide", "flat": "flat"}


@dataclass(frozen=True)
class Convention:
    """What a published network does around the common architecture."""

    process: ProcessConfig
    parameterization: str
    has_mask: bool = True
    conditioned: bool = True
    conditioned_head: bool = True
    timeless: bool = False
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
        checks.tokens("tokens", tokens, self.model.config.embeddings)
        batch, length = tokens.shape
        positions = torch.arange(length, device=tokens.device) if positions is None else positions
        if sigma is None:
            if self.model.sigma is not None:
                raise ValueError("sigma = None is not accepted: this network is conditioned on noise")
            sigma = torch.zeros(batch, device=tokens.device)
        per_slot = sigma.view(batch, -1).expand(batch, length)
        gamma = self.convention.gamma
        weight = torch.exp(-gamma * per_slot) if gamma is not None else torch.ones_like(per_slot)
        plan = Plan() if forbidden is None else Plan(dense=~forbidden.unsqueeze(1))
        out = self.model.head(
            self.model.run(tokens, per_slot, weight, self.model.rope(positions), ((length, 1),), plan)
        )
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


def load_bundle(folder: str | Path, *, tokenizer: bool = True) -> Bundle:
    """A published checkpoint as a bundle: network, process, hyperschedule, and its tokenizer where one is found."""
    folder = Path(folder)
    network, data = _load(folder)
    model, convention = network.model, network.convention
    size = model.config.vocab_size
    shifted = data.get("type") == "shifted"
    config = BundleConfig(
        model=model.config,
        process=convention.process,
        hyperschedule=_schedule(data, folder),
        shifted=shifted,
        parameterization=convention.parameterization,
        bos_id=size - 1 if shifted else None,
        block_causal=not shifted
        and _section(_section(data, "annealing"), "attention").get("context_type") == "block_causal",
    )
    return Bundle(model, config, _tokenizer(folder, data) if tokenizer else None)


def _load(folder: Path) -> tuple[PublishedNetwork, dict[str, Any]]:
    data = weights.read_json(folder / "config.json")
    convention = _convention(data, folder)
    tensors = _without_prefix(weights.read_folder(folder, allow_torch=True), folder)
    model = Denoiser(_architecture(tensors, data, convention, folder)).eval()
    theirs = {own: _published_name(own) for own, _ in model.named_parameters()}
    ours = {name: own for own, name in theirs.items()}
    named = {ours.get(name, name): tensor for name, tensor in tensors.items() if name != _ROTARY}
    weights.fill(model, named, source=folder, names=theirs)
    return PublishedNetwork(model, convention), data


def _published_name(own: str) -> str:
    """The published name of one of our parameters."""
    if own == "embedding":
        return _EMBEDDING
    for part, replacement in _NAMES:
        if part in own:
            return own.replace(part, replacement)
    return own


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
    kind, graph = data.get("model_type"), _section(data, "graph").get("type")
    if kind == "epsilon_hybrid":
        process = ProcessConfig("epsilon", epsilon=_option(data, "training", "epsilon", folder))
        return Convention(process, "clean", conditioned=False)
    noise = _noise(data, folder)
    if kind == "mdlm" or data.get("parameterization") == "subs":
        timeless = data.get("time_conditioning") is False
        return Convention(ProcessConfig("absorbing", noise=noise), "clean", timeless=timeless)
    if kind == "gamma_hybrid" or graph in ("absorb", "uniform"):
        scaled = "sedd-scaled" if _option(data, "model", "scale_by_sigma", folder) else "sedd-plain"
        if kind != "gamma_hybrid":
            process = ProcessConfig("absorbing" if graph == "absorb" else "uniform", noise=noise)
            return Convention(process, scaled, has_mask=graph == "absorb", own_score_is_one=True)
        gamma = _option(data, "graph", "gamma", folder)
        weighted = _option(data, "model", "hybrid_sigma_embedding", folder)
        process = ProcessConfig("gamma", noise=noise, gamma=gamma)
        return Convention(process, scaled, conditioned_head=False, gamma=gamma if weighted else None)
    raise ValueError(
        f"{folder / 'config.json'} describes no model known here: neither hdlm, Llama, HDLM, MDLM nor SEDD"
    )


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
    """The tensors by their own names: a wrapper's prefix such as "backbone." is dropped."""
    anchors = [name for name in tensors if name.endswith(_EMBEDDING)]
    if len(anchors) != 1:
        raise ValueError(f"{folder} lacks {_EMBEDDING}")
    prefix = anchors[0].removesuffix(_EMBEDDING)
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}


def _architecture(
    tensors: Mapping[str, Tensor], data: Mapping[str, Any], convention: Convention, folder: Path
) -> DenoiserConfig:
    """Sizes from config.json, and the vocabulary and the MLP's width off the tensors."""
    states = tensors[_EMBEDDING].shape[0]
    inner = tensors.get("blocks.0.mlp.0.weight")
    if inner is None:
        raise ValueError(f"{folder} lacks blocks.0.mlp.0.weight")
    named = _section(data, "tokenizer").get("tokens", data.get("tokens"))
    if isinstance(named, int) and states != named + convention.has_mask:
        raise ValueError(f"{folder} has {_EMBEDDING} of {states} rows: config.json names {named} tokens")
    model = _section(data, "model")
    width = model.get("hidden_size", data.get("hidden_dim"))
    return DenoiserConfig(
        vocab_size=states - convention.has_mask,
        layers=_option(data, "model", "n_blocks", folder),
        width=width if width is not None else _option(data, "model", "hidden_size", folder),
        heads=_option(data, "model", "n_heads", folder),
        hidden=inner.shape[0],
        mask_embedding=convention.has_mask,
        mask_output=convention.has_mask,
        conditioned=convention.conditioned,
        condition_width=_option(data, "model", "cond_dim", folder) if convention.conditioned else 128,
        conditioned_head=convention.conditioned_head,
        timeless=convention.timeless,
        weighted_embedding=convention.gamma is not None,
        head_bias=True,
    )


def _schedule(data: Mapping[str, Any], folder: Path) -> ScheduleConfig:
    """The hyperschedule that a checkpoint was trained for; a block as wide as the context is flat."""
    length = _section(data, "model").get("length", data.get("model_length", 1024))
    annealing = _section(data, "annealing")
    width, tau = annealing.get("width", length), annealing.get("tau", annealing.get("width", length))
    if not all(isinstance(value, int) and value > 0 for value in (length, width, tau)):
        raise ValueError(
            f"{folder / 'config.json'} names length {length!r}, width {width!r}, tau {tau!r}: integers are needed"
        )
    rate = width / tau
    if width >= length:
        return ScheduleConfig("flat", length, rate=rate)
    kind = _SCHEDULES.get(annealing.get("type", ""))
    if kind is None or kind == "flat":
        raise ValueError(
            f"{folder / 'config.json'} names annealing.type = {annealing.get('type')!r}: block or slide are known"
        )
    return ScheduleConfig(kind, length, width=width, rate=rate)


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
