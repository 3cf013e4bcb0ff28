"""Small bundles of every process, whose tokens are letters, and the samplers that fit them."""

import torch
from tokenizers import Tokenizer, decoders, models

import hdlm
from hdlm.bundle import Bundle
from hdlm.config.bundle import BundleConfig
from hdlm.config.process import NoiseConfig, ProcessConfig
from hdlm.config.schedule import ScheduleConfig
from support.networks import network

LETTERS = "abcdefghij "  # the 11 tokens of the small networks
CONTEXT = 24
PROCESSES = {
    "absorbing": ProcessConfig("absorbing"),
    "gamma": ProcessConfig("gamma", noise=NoiseConfig("loglinear"), gamma=0.2),
    "uniform": ProcessConfig("uniform", noise=NoiseConfig("loglinear")),
    "epsilon": ProcessConfig("epsilon", epsilon=0.1),
}
SAMPLERS = {
    "absorbing": [
        "posterior",
        "original",
        "tau-leaping",
        "certain",
        "bounded",
        "left-to-right",
        "confidence",
        "remask",
    ],
    "gamma": ["posterior", "original", "acs", "tau-leaping", "euler", "certain", "confidence", "remask"],
    "uniform": ["posterior", "tau-leaping", "euler"],
    "epsilon": ["posterior", "original", "acs", "bounded", "certain", "confidence", "remask"],
}
SCHEDULES = [hdlm.Block(13, 4), hdlm.Block(13, 5, 2), hdlm.Slide(13, 4), hdlm.Slide(13, 6, 0.5), hdlm.Quench(13)]


def letters():
    """A tokenizer of letters."""
    tokenizer = Tokenizer(models.BPE({sign: i for i, sign in enumerate(LETTERS)}, []))
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def bundle(kind="block", width=4, *, process="gamma", shifted=True, style=None, dtype=torch.float64, **changes):
    """A random network with all that generation needs."""
    style = style or ("paper" if process == "gamma" else "plain")
    if process == "uniform":
        changes["model"] = {"mask_embedding": False}
    model = network(style, **changes.pop("model", {})).to(dtype)
    config = BundleConfig(
        model=model.config,
        process=PROCESSES[process],
        hyperschedule=ScheduleConfig(kind, CONTEXT, width=width if kind in ("block", "slide") else None),
        shifted=shifted,
        bos_id=3,
        next_token=shifted,
        **changes,
    )
    return Bundle(model, config, letters())


def score_bundle(process):
    """A network whose outputs are scores."""
    model = network("plain")
    config = BundleConfig(
        model.config, process, ScheduleConfig("block", CONTEXT, width=4), True, "score", bos_id=3, next_token=True
    )
    return Bundle(model, config, letters())
