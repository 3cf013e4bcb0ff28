"""A sentence on its way from noise to itself, under a process and a hyperschedule: what the pictures show.

The whole path is one exact draw given the clean sentence: full noise first, then each step from the posterior
that knows the answer. Knows no drawing.
"""

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from hdlm.theory.hyperschedule import Hyperschedule
from hdlm.theory.process import Process
from hdlm.theory.random import Source

SENTENCE = "the old clock on the wall stopped at noon"
# What altered words are drawn from, besides the sentence's own: short, so that they fit a cell.
WORDS = """
    tree river blue moon cat seven rain open salt music fire wind stone green paper bread light
    ship cold dance cloud honey glass north winter apple yes over gold run small deep
""".split()  # noqa: SIM905, a sentence reads better than a list


@dataclass(frozen=True)
class Vocabulary:
    """The words of a sentence and of WORDS, each with an id."""

    words: list[str]

    @classmethod
    def of(cls, sentence: list[str]) -> "Vocabulary":
        """The distinct words of `sentence`, then those of WORDS that it lacks."""
        return cls(list(dict.fromkeys([*sentence, *WORDS])))

    def ids(self, sentence: list[str]) -> Tensor:
        """Ids of the sentence's words, [length]."""
        return torch.tensor([self.words.index(word) for word in sentence])


def sentence_of(text: str | None, length: int | None) -> list[str]:
    """The words of `text` (or of SENTENCE), repeated or cut to `length` where one is given."""
    words = (text if text is not None else SENTENCE).split()
    if not words:
        raise ValueError(f"text = {text!r} is not accepted: it must hold at least one word")
    count = len(words) if length is None else length
    return [words[i % len(words)] for i in range(count)]


def noising(process: Process, schedule: Hyperschedule, x0: Tensor, *, generator: Source = None) -> Tensor:
    """States [steps + 1, length] from full noise to x0 [length], one exact draw of the process given x0."""
    p0 = torch.nn.functional.one_hot(x0, process.vocab_size).double()
    times = schedule.levels.double() / schedule.max_level
    states = [process.corrupt(x0, times[0], generator=generator)]
    for t, s in itertools.pairwise(times):
        states.append(process.sample_posterior(states[-1], p0, s=s, t=t, generator=generator))
    return torch.stack(states)
