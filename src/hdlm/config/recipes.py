"""The recipes by name: one for a laptop, the shipped model's, text8, and the paper's (`paper_recipes.py`).

docs/recipes.md says what each one is.
"""

from dataclasses import replace

from hdlm.config.mixture import MixtureMember
from hdlm.config.paper_recipes import baselines, owt, paper_recipes, with_gamma
from hdlm.config.process import ProcessConfig
from hdlm.config.recipe import LossSettings, ModelSettings, OptimizerSettings, Recipe, SamplingSettings
from hdlm.theory import numbers


def laptop() -> Recipe:
    """The default: five minutes on two CPU cores, no download. benchmarks/laptop.py compares what it could be."""
    return Recipe(
        name="laptop",
        about="blocks of 16 and flat, 1.2M parameters, Python's own source code; five minutes on two CPU cores",
        data="stdlib",
        tokenizer="bpe-4096",
        length=128,
        shifted=True,
        model=ModelSettings(
            layers=3,
            width=128,
            heads=2,
            conditioned=False,
            rms_norm=True,
            gated=True,
            hidden=384,
            mlp_bias=False,
            tied=True,
        ),
        process=ProcessConfig("absorbing"),
        schedules=(MixtureMember("block", 16, share=3.0), MixtureMember("flat")),
        autoregressive_first=0.5,
        loss=LossSettings(beta1=1.0, averaged=True),
        sampling=SamplingSettings(sampler="certain", temperature=0.8),
        optimizer=OptimizerSettings(kind="muon", lr=6e-3, beta2=0.98, weight_decay=0.05, warmup=50, final_share=0.05),
        steps=1500,
        global_batch=8,
        micro_batch=8,
        ema=0.98,
        log_every=20,
        eval_every=500,
        eval_rows=128,
        save_every=250,
    )


def _laptop_baselines() -> list[Recipe]:
    """Autoregression and MDLM with the network, text and minutes of `laptop`."""
    base, alone = laptop(), {"autoregressive_first": 0.0, "loss": LossSettings(averaged=True)}
    ar = {"name": "laptop-ar", "about": "autoregression, to compare with laptop", "steps": 2200}
    mdlm = {"name": "laptop-mdlm", "about": "MDLM (flat, aligned), to compare with laptop", "steps": 2200}
    return [
        replace(base, **ar, **alone, schedules=(MixtureMember("quench"),), sampling=SamplingSettings(temperature=0.8)),
        replace(base, **mdlm, **alone, schedules=(MixtureMember("flat"),), shifted=False),
    ]


def stories() -> Recipe:
    """The model that comes with the package."""
    return Recipe(
        name="stories",
        about="the shipped model: children's stories, one network for every way of decoding (benchmarks/stories)",
        data="stories/train.npy",
        tokenizer="stories/tokenizer.json",
        length=256,
        shifted=True,
        model=ModelSettings(
            layers=6,
            width=384,
            heads=6,
            conditioned=False,
            rms_norm=True,
            gated=True,
            hidden=1024,
            mlp_bias=False,
            tied=True,
        ),
        process=ProcessConfig("absorbing"),
        schedules=(
            MixtureMember("block", 16, share=6.0),
            MixtureMember("flat", share=2.0),
            MixtureMember("block", 4, share=1.0),
            MixtureMember("slide", 16, share=1.0),
        ),
        loss=LossSettings(beta1=0.3, averaged=True),
        optimizer=OptimizerSettings(kind="muon", lr=6e-3, beta2=0.98, weight_decay=0.05, warmup=100, final_share=0.02),
        steps=17_500,
        global_batch=256,
        micro_batch=256,
        ema=0.999,
        compile=True,
    )


def _text8(name: str, about: str) -> Recipe:
    return replace(
        owt(name, about),
        name=f"text8-{name}",
        data="text8-prefix",
        tokenizer="chars",
        length=256,
        model=ModelSettings(dropout=0.05),
        steps=500_000,
        micro_batch=128,
    )


def _text8_recipes() -> list[Recipe]:
    """The baselines, and gamma-hybrids in one stage."""
    block = with_gamma(_text8("gamma-block16", "gamma-hybrid 0.01, block 16, shifted"), 0.01)
    return [
        *baselines(_text8),
        with_gamma(_text8("gamma-flat", "gamma-hybrid 0.01, flat"), 0.01),
        replace(block, schedules=(MixtureMember("block", 16),), shifted=True, loss=LossSettings(beta1=1.0)),
    ]


def all_recipes() -> dict[str, Recipe]:
    """Every recipe by its name."""
    found = [laptop(), *_laptop_baselines(), stories(), *_text8_recipes(), *paper_recipes()]
    return {recipe.name: recipe for recipe in found}


def get(name: str) -> Recipe:
    """A recipe by its name."""
    recipes = all_recipes()
    if numbers.text("recipe", name) not in recipes:
        close = [known for known in recipes if known.startswith(name.split("-")[0])] or ["laptop"]
        raise ValueError(
            f"recipe = {numbers.shown(name)} is not accepted: see `hdlm train --list` (near: {', '.join(close[:6])})"
        )
    return recipes[name]
