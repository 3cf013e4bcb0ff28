"""How varied samples are: entropy of their tokens, distinct n-grams, repetition."""

import math
from collections import Counter
from collections.abc import Sequence


def unigram_entropy(samples: Sequence[Sequence[int]]) -> tuple[float, float]:
    """Entropy in nats of each sample's own token frequencies, averaged over samples, with its standard error."""
    values = []
    for tokens in samples:
        total = len(tokens)
        values.append(-sum(n / total * math.log(n / total) for n in Counter(tokens).values()) if total else 0.0)
    return mean_and_error(values)


def distinct(texts: Sequence[str], n: int) -> float:
    """Different n-grams of words over all n-grams, in all texts together."""
    grams = [gram for text in texts for gram in _grams(text.split(), n)]
    return len(set(grams)) / len(grams) if grams else 0.0


def repetition(texts: Sequence[str], n: int = 4) -> tuple[float, float]:
    """Share of a text's n-grams of words that it has said before, averaged over texts, with its standard error."""
    values = []
    for text in texts:
        grams = list(_grams(text.split(), n))
        values.append(1 - len(set(grams)) / len(grams) if grams else 0.0)
    return mean_and_error(values)


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean and its standard error."""
    count = len(values)
    mean = sum(values) / count
    spread = sum((value - mean) ** 2 for value in values)
    return mean, math.sqrt(spread / (count - 1) / count) if count > 1 else 0.0


def _grams(words: Sequence[str], n: int):
    return zip(*(words[i:] for i in range(n)), strict=False)
