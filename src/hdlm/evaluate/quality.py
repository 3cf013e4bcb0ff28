"""The quality of a model's samples under one way of drawing them: one cell of a sweep."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hdlm.evaluate.diversity import distinct, repetition, unigram_entropy
from hdlm.evaluate.judge import Judge
from hdlm.evaluate.mauve_score import Featuriser, mauve
from hdlm.writing.request import prompt_request
from hdlm.writing.write import Samples, write

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
    progress: Callable[[int, int], None] | None = None,
) -> Samples:
    """Unconditional samples of full length: an end of text does not end them, so that lengths compare."""
    request = prompt_request(bundle, num_samples=samples, length=length, seed=seed, stop_at_eos=False, **settings)
    written, done, steps = write(bundle, request, watched=False), 0, request.steps
    while True:
        try:
            next(written)
        except StopIteration as end:
            return end.value
        done += 1
        if progress is not None:
            progress(done, steps)


def assess(samples: Samples, panel: Panel) -> dict[str, Any]:
    """All numbers about some samples; what the panel cannot say is left out."""
    began = time.perf_counter()
    texts = samples.text
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
        verdict = panel.judge.score(texts)
        found["gen_ppl"] = {
            "value": verdict.perplexity,
            "error": verdict.error,
            "tokens": verdict.tokens,
            "judge": verdict.judge,
        }
    if panel.featuriser is not None and panel.references is not None:
        score = mauve(panel.featuriser(texts), panel.references, panel.featuriser.name)
        found["mauve"] = {"value": score.value, "error": score.spread, **vars(score)}
    found["seconds"] = time.perf_counter() - began + samples.stats.seconds
    return found
