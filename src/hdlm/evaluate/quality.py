"""The quality of a model's samples under one way of drawing them: one cell of a sweep."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hdlm.config.sampling import DrawSettings
from hdlm.evaluate.diversity import distinct, repetition, unigram_entropy
from hdlm.evaluate.judge import Judge
from hdlm.evaluate.mauve_score import Featuriser, mauve
from hdlm.processes import ALONE, World
from hdlm.sampling.generate import exhaust, generate
from hdlm.sampling.request import prompt_request
from hdlm.sampling.results import Samples
from hdlm.theory.hyperschedule import Hyperschedule

if TYPE_CHECKING:
    from hdlm.bundle import Bundle


@dataclass
class Panel:
    """Who judges: a language model, and a featuriser with the features of real texts; either may be missing."""

    judge: Judge | None = None
    featuriser: Featuriser | None = None
    references: np.ndarray | None = None


def draw(
    bundle: "Bundle",
    settings: dict[str, Any],
    *,
    samples: int,
    length: int | None,
    seed: int,
    hyperschedule: Hyperschedule | None = None,
    backend: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    world: World = ALONE,
) -> Samples:
    """Unconditional samples of full length: an end of text does not end them, so that lengths compare.

    `settings`: those of a draw, and kind, width and rate of the hyperschedule, or `hyperschedule`, a whole one.
    `progress` is told steps done and to do. `world`: this process among others, which share the work.
    """
    schedule = {name: settings[name] for name in ("kind", "width", "rate") if name in settings}
    drawn = {name: value for name, value in settings.items() if name not in schedule}
    how = DrawSettings(**drawn, seed=seed, stop_at_eos=False, backend=backend)
    how = replace(how, batch_size=how.batch_size * world.size)  # a share of a batch is as large as a batch of one
    request = prompt_request(
        bundle, num_samples=samples, length=length, hyperschedule=hyperschedule, **schedule, settings=how
    )
    done, steps = 0, request.share(world.rank, world.size).steps

    def advance(taken: int) -> None:
        nonlocal done
        done += taken
        progress(done, steps)

    return exhaust(generate(bundle, request, watched=False, progress=advance, world=world))


def texts_of(samples: Samples) -> list[str]:
    """The samples as words: where there is no tokenizer, each token's id is one."""
    return samples.text if samples.tokenizer is not None else [" ".join(map(str, row)) for row in samples.tokens]


def assess(
    samples: Samples, panel: Panel, tell: Callable[[str, int, int], None], *, world: World = ALONE
) -> dict[str, Any]:
    """All numbers about some samples; what the panel cannot say is left out. `tell`: what, texts done and to do.

    `world`: this process among others, of which each has its share of the texts read.
    """
    began = time.perf_counter()
    texts = texts_of(samples)
    entropy, entropy_error = unigram_entropy(samples.tokens)
    repeated, repeated_error = repetition(texts)
    found: dict[str, Any] = {
        "samples": len(texts),
        "seed": samples.seed,
        "entropy": {"value": entropy, "error": entropy_error, "unit": "nats, unigram, per sample"},
        "repetition": {"value": repeated, "error": repeated_error, "unit": "share of 4-grams of words"},
        "distinct": {str(n): distinct(texts, n) for n in (1, 2, 3)},
        "stats": samples.stats.to_json(),
    }
    if panel.judge is not None:
        judge = panel.judge
        read = world.divide(texts, lambda own: judge.read(own, progress=lambda done: tell("judging", done, len(own))))
        found["gen_ppl"] = vars(judge.verdict(read))
    if panel.featuriser is not None and panel.references is not None:
        features = features_of(texts, panel.featuriser, "features of samples", tell, world)
        score = mauve(features, panel.references, panel.featuriser.name)
        found["mauve"] = {"value": score.value, "error": score.spread, **vars(score)}
    found["seconds"] = time.perf_counter() - began + samples.stats.seconds
    return found


def features_of(
    texts: Sequence[str], featuriser: Featuriser, what: str, tell: Callable[[str, int, int], None], world: World
) -> np.ndarray:
    """Features of texts [count, width], each process having made its share."""
    return np.stack(world.divide(texts, lambda own: list(featuriser(own, lambda done: tell(what, done, len(own))))))
