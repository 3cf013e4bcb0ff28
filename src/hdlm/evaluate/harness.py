"""A bundle as a model of EleutherAI's lm-evaluation-harness:

    python -m hdlm.evaluate.harness --model hdlm --model_args path=CKPT --tasks TASK [any other lm_eval flag]

registers it there as `hdlm` and hands over to `lm_eval`, which has no plug-ins of its own.

Log-likelihoods are minus the bound, of the continuation given the context, which is settled (or, for flat schedules,
given inside the window): exact for autoregressive models, for all others a lower bound on the log-likelihood, by Monte
Carlo with fixed seeds.
"""

from typing import Any

from lm_eval.api.instance import Instance  # pyright: ignore[reportMissingImports]
from lm_eval.api.model import LM  # pyright: ignore[reportMissingImports]
from lm_eval.api.registry import register_model  # pyright: ignore[reportMissingImports]

from hdlm.bundle import load
from hdlm.device import choose_device
from hdlm.evaluate.likelihood import estimate
from hdlm.sampling.prompts import encode


@register_model("hdlm")
class HarnessModel(LM):
    """A bundle as the harness sees it. `draws`: noise draws per request; `rate`, `sampler`: of generation."""

    def __init__(
        self,
        path: str,
        *,
        draws: int = 16,
        device: str | None = None,
        rate: float | None = None,
        sampler: str | None = None,
        seed: int = 0,
        max_gen_toks: int = 64,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
    ) -> None:
        super().__init__()
        self._bundle = load(path, device=choose_device(device))
        if self._bundle.tokenizer is None:
            raise ValueError(f"{path} has no tokenizer: the harness gives text")
        self._draws, self._seed, self._longest = int(draws), int(seed), int(max_gen_toks)
        self._how = {"rate": None if rate is None else float(rate), "sampler": sampler, "seed": self._seed}

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Minus the bound of each continuation, and whether greedy decoding would say it (never claimed)."""
        return [(-self._nats(*request.args), False) for request in requests]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Minus the bound of each whole text, window after window of the model's context."""
        return [-self._nats("", request.args[0]) for request in requests]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Continuations, cut at the first of the stop strings."""
        return [self._continue(*request.args) for request in requests]

    def _nats(self, before: str, text: str) -> float:
        """The bound on -log p(text | before); what does not fit the context is left out on the left."""
        tokenizer, limit = self._bundle.tokenizer, self._bundle.config.context
        trailing = len(before) - len(before.rstrip())
        if trailing:
            before, text = before[:-trailing], before[-trailing:] + text
        given, tokens = encode(tokenizer, before), encode(tokenizer, text)
        nats = 0.0
        for start in range(0, len(tokens), limit):
            piece = tokens[start : start + limit]
            seen = [*given, *tokens[:start]][max(0, len(given) + start - (limit - len(piece))) :]
            nats += estimate(
                self._bundle, [[*seen, *piece]], prefix=len(seen), draws=self._draws, seed=self._seed, batch_size=16
            ).nats
        return nats

    def _continue(self, before: str, settings: dict[str, Any]) -> str:
        stops = settings.get("until") or []
        stops = [stops] if isinstance(stops, str) else stops
        length = int(settings.get("max_gen_toks", self._longest))
        temperature = float(settings.get("temperature", 0.0)) if settings.get("do_sample") else 0.0
        room = self._bundle.config.context - length
        tokens = encode(self._bundle.tokenizer, before)[-max(room, 1) :]
        text = self._bundle.generate([tokens], length=length, temperature=temperature, **self._how).new_text[0]
        cuts = [at for stop in stops if stop and (at := text.find(stop)) >= 0]
        return text[: min(cuts)] if cuts else text


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate  # pyright: ignore[reportMissingImports]

    cli_evaluate()
