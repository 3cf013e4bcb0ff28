"""A bundle as a model of EleutherAI's lm-evaluation-harness:

    python -m hdlm.evaluate.harness --model hdlm --model_args path=CKPT --tasks TASK [any other lm_eval flag]

registers it there as `hdlm` and hands over to `lm_eval`, which has no plug-ins of its own. `--device` chooses where to
compute; by default that is CUDA where there is one, else the CPU.

Log-likelihoods are minus the bound, of the continuation given the context, which is settled (or, for flat schedules,
given inside the window): exact for autoregressive models, for all others a lower bound on the log-likelihood, by Monte
Carlo with fixed seeds.
"""

import sys
from collections.abc import Sequence
from typing import Any

from lm_eval.api.instance import Instance  # pyright: ignore[reportMissingImports]
from lm_eval.api.model import LM  # pyright: ignore[reportMissingImports]
from lm_eval.api.registry import register_model  # pyright: ignore[reportMissingImports]

from hdlm.bundle import load
from hdlm.device import choose_device
from hdlm.errors import first_line
from hdlm.evaluate.likelihood import estimate
from hdlm.sampling.prompts import encode
from hdlm.theory import checks


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
        self._draws, self._seed = checks.integer("draws", draws, low=1), checks.integer("seed", seed, low=0)
        self._longest = checks.integer("max_gen_toks", max_gen_toks, low=1)
        self._how = {"rate": rate, "sampler": sampler, "seed": self._seed}
        self._bundle = load(str(path), device=choose_device(device))
        if self._bundle.tokenizer is None:
            raise ValueError(f"{path} has no tokenizer: the harness gives text")

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None):
        """As the harness makes it: what `--model_args` says counts before the flags, some of which have defaults."""
        return super().create_from_arg_obj((additional_config or {}) | arg_dict)

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


def main(words: Sequence[str]) -> int:
    """The harness's own command line with the words of a shell; the exit code is 0, or 2 on bad input."""
    from lm_eval.__main__ import cli_evaluate  # pyright: ignore[reportMissingImports]

    sys.argv[1:] = _with_device(words)
    try:
        cli_evaluate()
    except ValueError as error:
        print(f"hdlm: {first_line(error)}", file=sys.stderr)
        return 2
    return 0


def _with_device(words: Sequence[str]) -> list[str]:
    """A run's words with a device before all others, which they may change: the harness's own default is a GPU.

    Other commands take none, and a configuration file names its own.
    """
    own = any(word.startswith(("--config", "-C")) for word in words)
    if own or not words or words[0] in ("ls", "validate") or not {"--tasks", "-t", "--model", "-M"} & set(words):
        return list(words)
    command = ["run"] if words[0] == "run" else []
    return [*command, "--device", str(choose_device(None)), *words[len(command) :]]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
