"""The recipes by name: one for a laptop, text8, every row of the paper's tables 1 to 3, and the baselines.

Sizes, data and optimisers are the paper's (appendices B.1 and E); docs/recipes.md maps rows to names. Stage-2 recipes
go on from a stage-1 model with `--init-from`.
"""

from dataclasses import replace

from hdlm.config.mixture import MixtureMember
from hdlm.config.process import NoiseConfig, ProcessConfig
from hdlm.config.recipe import LossSettings, ModelSettings, OptimizerSettings, Recipe, SamplingSettings
from hdlm.theory import numbers

_LOG_LINEAR = NoiseConfig("loglinear", {"eps": 1e-3})
_GAMMA_ADAM = OptimizerSettings(lr=3e-4, beta2=0.999, weight_decay=0.0, warmup=10_000, final_share=1.0)
_EPSILON_ADAM = OptimizerSettings(lr=3e-4, beta2=0.95, weight_decay=0.1, warmup=10_000, final_share=0.1)
_STAGE_1, _STAGE_2 = 850_000, 150_000


def _gamma(gamma: float) -> ProcessConfig:
    return ProcessConfig("gamma", noise=_LOG_LINEAR, gamma=gamma)


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


def _owt(name: str, about: str) -> Recipe:
    return Recipe(
        name=f"owt-{name}",
        about=about,
        data="owt",
        tokenizer="gpt2",
        length=1024,
        model=ModelSettings(dropout=0.1),
        optimizer=_GAMMA_ADAM,
        steps=_STAGE_1,
        global_batch=512,
        micro_batch=32,
        compile=True,
    )


def _lm1b(name: str, about: str) -> Recipe:
    base = _owt(name, about)
    return replace(
        base, name=f"lm1b-{name}", data="lm1b-full", tokenizer="bert-base-uncased", length=128, micro_batch=256
    )


def _text8(name: str, about: str) -> Recipe:
    return replace(
        _owt(name, about),
        name=f"text8-{name}",
        data="text8-prefix",
        tokenizer="chars",
        length=256,
        model=ModelSettings(dropout=0.05),
        steps=500_000,
        micro_batch=128,
    )


def _with_gamma(recipe: Recipe, gamma: float, *, weighted: bool = True) -> Recipe:
    model = replace(recipe.model, weighted_embedding=weighted)
    return replace(recipe, process=_gamma(gamma), model=model)


def _with_epsilon(recipe: Recipe, epsilon: float) -> Recipe:
    model = replace(recipe.model, conditioned=False)
    return replace(recipe, process=ProcessConfig("epsilon", epsilon=epsilon), model=model, optimizer=_EPSILON_ADAM)


def _stage_2(recipe: Recipe, kind: str, width: int, *, shifted: bool) -> Recipe:
    loss = LossSettings(beta1=1.0 if shifted else 0.0)
    return replace(recipe, schedules=(MixtureMember(kind, width),), shifted=shifted, loss=loss, steps=_STAGE_2)


def _baselines(make) -> list[Recipe]:
    """AR, SEDD (absorb, uniform), MDLM and BD3-LM on one data set, in the same engine."""
    ar = make("ar", "baseline: autoregression")
    absorb = make("sedd-absorb", "baseline: SEDD, absorbing (table 1, a)")
    uniform = make("sedd-uniform", "baseline: SEDD, uniform")
    mdlm = make("mdlm", "baseline: MDLM")
    bd3 = make("bd3lm", "baseline: BD3-LM, blocks of 4")
    ar, absorb, uniform, mdlm, bd3 = (
        replace(r, steps=_STAGE_1 + _STAGE_2 if r.steps == _STAGE_1 else r.steps)
        for r in (ar, absorb, uniform, mdlm, bd3)
    )
    plain = replace(ar.model, conditioned=False)
    masked = ProcessConfig("absorbing")
    return [
        replace(ar, shifted=True, model=plain, process=masked, schedules=(MixtureMember("quench"),)),
        replace(absorb, process=ProcessConfig("absorbing", noise=_LOG_LINEAR), parameterization="score"),
        replace(uniform, process=ProcessConfig("uniform", noise=_LOG_LINEAR), parameterization="score"),
        replace(mdlm, process=masked, model=plain),
        replace(bd3, process=masked, model=plain, schedules=(MixtureMember("block", 4),)),
    ]


def _table_1() -> list[Recipe]:
    score = {"parameterization": "score"}
    b = _with_gamma(_owt("abl-b", "table 1, b: (a) + hybrid process"), 0.01, weighted=False)
    c = _with_gamma(_owt("abl-c", "table 1, c: (b) + weighted embedding"), 0.01)
    d = _with_gamma(_owt("abl-d", "table 1, d: (c) - time conditioning"), 0.01)
    e = _with_gamma(_owt("abl-e", "table 1, e: (c) + slide over the whole context"), 0.01)
    return [
        replace(b, **score),
        replace(c, **score),
        replace(d, model=replace(d.model, conditioned=False), **score),
        replace(e, schedules=(MixtureMember("slide", 1024),), **score),
    ]


def _hybrids(make, gamma: float, length: int, table: str) -> list[Recipe]:
    """Stage 1 (flat, aligned and shifted) and stage 2 (block d/64, block d/4, slide d/4) of the gamma-hybrid."""
    label = f"{table}: gamma-hybrid {gamma:g}"
    found = [_with_gamma(make("gamma-flat", f"{label}, flat, aligned"), gamma)]
    found.append(replace(_with_gamma(make("gamma-flat-shifted", f"{label}, flat, shifted"), gamma), shifted=True))
    for kind, width in (("block", length // 64), ("block", length // 4), ("slide", length // 4)):
        for shifted in (False, True):
            side = "shifted" if shifted else "aligned"
            name = f"gamma-{kind}{width}{'-shifted' if shifted else ''}"
            about = f"{label}, {kind} {width}, {side}; stage 2"
            found.append(_stage_2(_with_gamma(make(name, about), gamma), kind, width, shifted=shifted))
    return found


def all_recipes() -> dict[str, Recipe]:
    """Every recipe by its name."""
    epsilon = _with_epsilon(_owt("epsilon-flat", "table 3: epsilon-hybrid 0.01, flat, aligned"), 0.01)
    epsilon_block = _with_epsilon(_owt("epsilon-block256", "table 4: epsilon-hybrid 0.01, block 256; stage 2"), 0.01)
    text8_block = _with_gamma(_text8("gamma-block16", "gamma-hybrid 0.01, block 16, shifted"), 0.01)
    found = [
        laptop(),
        *_laptop_baselines(),
        stories(),
        *_baselines(_text8),
        _with_gamma(_text8("gamma-flat", "gamma-hybrid 0.01, flat"), 0.01),
        replace(_stage_2(text8_block, "block", 16, shifted=True), steps=500_000),
        *_baselines(_owt),
        *_table_1(),
        *_hybrids(_owt, 0.01, 1024, "table 3"),
        epsilon,
        _stage_2(epsilon_block, "block", 256, shifted=False),
        *_baselines(_lm1b),
        *_hybrids(_lm1b, 0.02, 128, "table 2"),
    ]
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
