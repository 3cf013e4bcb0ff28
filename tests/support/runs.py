"""Tiny runs for the training tests."""

from pathlib import Path

from hdlm.config.process import NoiseConfig, ProcessConfig
from hdlm.config.recipe import LossSettings, MixtureMember, ModelSettings, OptimizerSettings, Recipe


def text_folder(folder: Path, count: int = 120) -> str:
    """A corpus of a few hundred short documents."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (folder / f"{number}.txt").write_text(f"the number {number} is followed by {number + 1} " * 6)
    return str(folder)


def tiny_recipe(data: str, **changes) -> Recipe:
    """Seconds on one core; every part of a real run in it, dropout and a mixture of schedules included."""
    settings = {
        "name": "tiny",
        "data": data,
        "tokenizer": "bytes",
        "length": 24,
        "shifted": True,
        "model": ModelSettings(layers=2, width=32, heads=2, condition_width=16, weighted_embedding=True, dropout=0.1),
        "process": ProcessConfig("gamma", NoiseConfig("loglinear", {"eps": 1e-3}), gamma=0.05),
        "schedules": (MixtureMember("block", 6, share=2.0), MixtureMember("slide", 6), MixtureMember("flat")),
        "loss": LossSettings(beta1=0.5),
        "optimizer": OptimizerSettings(lr=3e-3, warmup=5),
        "steps": 12,
        "global_batch": 8,
        "micro_batch": 4,
        "ema": 0.9,
        "log_every": 1,
        "eval_every": 6,
        "eval_rows": 16,
        "save_every": 4,
    }
    return Recipe(**(settings | changes))
