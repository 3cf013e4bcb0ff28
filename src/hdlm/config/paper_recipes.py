"""The paper's models as recipes: every row of its tables on OpenWebText and LM1B, and the baselines, by their names.

What the paper and its published configurations say is taken as it is: sizes and steps of appendices B.1 and E, scores
for gamma, HDCE for epsilon, the optimisers and learning rates of the published training code. Where we would do
otherwise there is a second recipe beside it, whose name says what is other: `-clean`, `-bound`. Knows no tensors.
"""

from collections.abc import Callable
from dataclasses import replace

from hdlm.config.mixture import MixtureMember
from hdlm.config.process import NoiseConfig, ProcessConfig
from hdlm.config.recipe import LossSettings, ModelSettings, OptimizerSettings, Recipe

LOG_LINEAR = NoiseConfig("loglinear", {"eps": 1e-3})
# SEDD's and MDLM's: constant after a warm-up. The hybrids': of scores a cosine down to 0 after a warm-up of 10,000
# steps, of HDCE a cosine from the first step on, down to 4e-5.
BASELINE_ADAM = OptimizerSettings(lr=3e-4, beta2=0.999, weight_decay=0.0, warmup=2500, final_share=1.0)
GAMMA_ADAM = OptimizerSettings(lr=3e-4, beta2=0.999, weight_decay=0.0, warmup=10_000, final_share=0.0)
EPSILON_ADAM = OptimizerSettings(lr=3e-4, beta2=0.95, weight_decay=0.1, warmup=0, final_share=4e-5 / 3e-4)
STAGE_1, STAGE_2 = 850_000, 150_000

Make = Callable[[str, str], Recipe]


def owt(name: str, about: str) -> Recipe:
    """OpenWebText, 1,024 tokens."""
    return Recipe(
        name=f"owt-{name}",
        about=about,
        data="owt",
        tokenizer="gpt2",
        length=1024,
        model=ModelSettings(dropout=0.1),
        optimizer=BASELINE_ADAM,
        steps=STAGE_1,
        global_batch=512,
        micro_batch=32,
        compile=True,
    )


def lm1b(name: str, about: str) -> Recipe:
    """LM1B, 128 tokens."""
    base = owt(name, about)
    return replace(
        base, name=f"lm1b-{name}", data="lm1b-full", tokenizer="bert-base-uncased", length=128, micro_batch=256
    )


def baselines(make: Make) -> list[Recipe]:
    """AR, SEDD (absorb, uniform), MDLM and BD3-LM on one data set, for as long as both stages together."""
    ar = make("ar", "baseline: autoregression")
    absorb = make("sedd-absorb", "baseline: SEDD, absorbing")
    uniform = make("sedd-uniform", "baseline: SEDD, uniform")
    mdlm = make("mdlm", "baseline: MDLM")
    bd3 = make("bd3lm", "baseline: BD3-LM, blocks of 4")
    ar, absorb, uniform, mdlm, bd3 = (
        replace(r, steps=STAGE_1 + STAGE_2 if r.steps == STAGE_1 else r.steps) for r in (ar, absorb, uniform, mdlm, bd3)
    )
    plain = replace(ar.model, conditioned=False)
    masked = ProcessConfig("absorbing")
    return [
        replace(ar, shifted=True, model=plain, process=masked, schedules=(MixtureMember("quench"),)),
        replace(absorb, process=ProcessConfig("absorbing", noise=LOG_LINEAR), parameterization="score"),
        replace(uniform, process=ProcessConfig("uniform", noise=LOG_LINEAR), parameterization="score"),
        replace(mdlm, process=masked, model=plain),
        replace(bd3, process=masked, model=plain, schedules=(MixtureMember("block", 4),)),
    ]


def with_gamma(recipe: Recipe, gamma: float, *, weighted: bool = True) -> Recipe:
    """The same on gamma-hybrid noise: scores, weighted embedding."""
    return replace(
        recipe,
        process=ProcessConfig("gamma", noise=LOG_LINEAR, gamma=gamma),
        parameterization="score",
        model=replace(recipe.model, weighted_embedding=weighted),
        optimizer=GAMMA_ADAM,
    )


def with_epsilon(recipe: Recipe, epsilon: float) -> Recipe:
    """The same on epsilon-hybrid noise: HDCE, and a network that does not read the time."""
    return replace(
        recipe,
        process=ProcessConfig("epsilon", epsilon=epsilon),
        parameterization="hdce",
        model=replace(recipe.model, conditioned=False),
        optimizer=EPSILON_ADAM,
    )


def stage_2(recipe: Recipe, kind: str, width: int, *, after: str, shifted: bool) -> Recipe:
    """The same windowed, to go on from a model of the recipe `after`.

    An aligned network's settled loss would copy its input, so that it has none; the published code has it.
    """
    return replace(
        recipe,
        schedules=(MixtureMember(kind, width),),
        shifted=shifted,
        loss=LossSettings(beta1=1.0 if shifted else 0.0),
        steps=STAGE_2,
        goes_on_from=after,
    )


def as_clean(recipe: Recipe) -> Recipe:
    """Ours beside one of scores or HDCE: logits of the clean token, by the likelihood bound of the process."""
    epsilon = recipe.process.kind == "epsilon"
    suffix, what = ("-bound", "trained by its bound") if epsilon else ("-clean", "logits of the clean token")
    return replace(
        recipe,
        name=recipe.name + suffix,
        about=f"ours: {recipe.name}, {what}",
        parameterization="clean",
        goes_on_from=recipe.goes_on_from and recipe.goes_on_from + suffix,
    )


def _table_1() -> list[Recipe]:
    """The ablation, all of it for 850,000 steps."""
    a = replace(
        owt("abl-a", "table 1, a: SEDD-absorb, for as long as the others"),
        process=ProcessConfig("absorbing", noise=LOG_LINEAR),
        parameterization="score",
    )
    b = with_gamma(owt("abl-b", "table 1, b: (a) + hybrid process"), 0.01, weighted=False)
    c = with_gamma(owt("abl-c", "table 1, c: (b) + weighted embedding"), 0.01)
    d = with_gamma(owt("abl-d", "table 1, d: (c) - time conditioning"), 0.01)
    e = with_gamma(owt("abl-e", "table 1, e: (c) + slide over the whole context"), 0.01)
    d = replace(d, model=replace(d.model, conditioned=False))
    return [a, b, c, d, replace(e, schedules=(MixtureMember("slide", 1024),))]


def _gamma_rows(make: Make, gamma: float, length: int, table: str) -> list[Recipe]:
    """Stage 1 (flat, aligned and shifted) and stage 2 (block d/64, block d/4, slide d/4) of the gamma-hybrid."""
    label = f"{table}: gamma-hybrid {gamma:g}"
    flat = with_gamma(make("gamma-flat", f"{label}, flat, aligned"), gamma)
    flat_shifted = with_gamma(make("gamma-flat-shifted", f"{label}, flat, shifted"), gamma)
    found = [flat, replace(flat_shifted, shifted=True)]
    for kind, width in (("block", length // 64), ("block", length // 4), ("slide", length // 4)):
        for shifted, start in ((False, flat), (True, flat_shifted)):
            side = "shifted" if shifted else "aligned"
            name = f"gamma-{kind}{width}{'-shifted' if shifted else ''}"
            made = with_gamma(make(name, f"{label}, {kind} {width}, {side}; stage 2"), gamma)
            found.append(stage_2(made, kind, width, after=start.name, shifted=shifted))
    return found


def paper_recipes() -> list[Recipe]:
    """All of them."""
    flat = with_epsilon(owt("epsilon-flat", "table 3: epsilon-hybrid 0.01, flat, aligned"), 0.01)
    block = with_epsilon(owt("epsilon-block256", "table 4: epsilon-hybrid 0.01, block 256; stage 2"), 0.01)
    epsilon = [flat, stage_2(block, "block", 256, after=flat.name, shifted=False)]
    hybrids = [_gamma_rows(owt, 0.01, 1024, "table 3"), epsilon, _gamma_rows(lm1b, 0.02, 128, "table 2")]
    return [
        *baselines(owt),
        *_table_1(),
        *baselines(lm1b),
        *(recipe for rows in hybrids for recipe in rows),
        *(as_clean(recipe) for rows in hybrids for recipe in rows),
    ]
