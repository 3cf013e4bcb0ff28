"""Random bundles of every style of block and every kind of window, for folders that transformers loads."""

from dataclasses import replace

import torch

from hdlm.bundle import Bundle
from hdlm.config.bundle import BundleConfig
from hdlm.config.process import NoiseConfig, ProcessConfig
from hdlm.config.schedule import ScheduleConfig
from support.bundles import CONTEXT, PROCESSES, letters
from support.networks import network

# Of a network: its style, what is changed of it, and the process that it was trained on.
NETWORKS = {
    "adaLN, weighted": ("paper", {}, "gamma"),
    "adaLN, plain head": ("paper", {"conditioned_head": False, "weighted_embedding": False}, "absorbing"),
    "timeless": ("paper", {"timeless": True, "weighted_embedding": False}, "absorbing"),
    "unconditioned": ("plain", {}, "absorbing"),
    "wide heads, head for MASK": ("plain", {"head_width": 12, "mask_output": True, "head_bias": True}, "epsilon"),
    "llama": ("llama", {}, "absorbing"),
    "tied, drafts": ("llama", {"tied": True, "draft_width": 6}, "absorbing"),
    "gated adaLN": ("llama", {"conditioned": True, "norm_eps": 1e-3}, "gamma"),
    "no MASK": ("llama", {"mask_embedding": False}, "absorbing"),
}
NOISES = {
    "loglinear": NoiseConfig("loglinear", {"eps": 0.01}),
    "cosine": NoiseConfig("cosine"),
    "geometric": NoiseConfig("geometric", {"sigma_min": 0.01, "sigma_max": 9.0}),
}


def exported(name="unconditioned", *, kind="block", width=4, noise=None, process=None, seed=0, **changes):
    """A bundle of float64 numbers by a name of NETWORKS; `changes` are those of its configuration."""
    style, shape, own = NETWORKS[name]
    model = network(style, seed=seed, **shape)
    process = PROCESSES[own] if process is None else process
    schedule = ScheduleConfig("quench", CONTEXT) if name == "no MASK" else ScheduleConfig(kind, CONTEXT, width=width)
    settings = {"shifted": True, "bos_id": 3, "eos_id": 7, "next_token": True} | changes
    config = BundleConfig(model.config, process, schedule, **settings)
    if noise is not None:
        config = replace(config, process=replace(config.process, noise=NOISES[noise]))
    return Bundle(model, config, letters())


def scored(seed=0):
    """A bundle of a network whose outputs are scores of gamma noise."""
    process = ProcessConfig("gamma", noise=NoiseConfig("loglinear"), gamma=0.3)
    return exported("unconditioned", process=process, parameterization="score", seed=seed)


def chi_square(counts, law):
    """How unlikely counts [states] are for a law [states]: their chi-square, in standard deviations above its mean."""
    expected = law * counts.sum()
    kept = expected > 5
    pooled = torch.cat([counts[kept], counts[~kept].sum().view(1)])
    wanted = torch.cat([expected[kept], expected[~kept].sum().view(1)]).clamp(min=1e-9)
    degrees = len(pooled) - 1
    return (((pooled - wanted) ** 2 / wanted).sum().item() - degrees) / (2 * degrees) ** 0.5
