"""How to draw from a network: everything that is not the hyperschedule, in one place."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ParamSpec, TypeVar

from hdlm.theory import numbers

PRECISIONS = ("float64", "float32")
BACKENDS = ("fast", "reference")
OF_A_MODEL = ("sampler", "eta", "threshold", "temperature", "top_k", "top_p")  # what config.json may say
OF_RULES = ("eta", "threshold", "draft", "ahead")  # settings that some step rules have
MAX_SEED = 2**63 - 1
# What keywords of other libraries are here.
ELSEWHERE = {
    "max_new_tokens": "length",
    "max_length": "length, which counts new tokens alone",
    "num_return_sequences": "num_samples",
    "do_sample": "temperature, which is 0 for the likeliest token and above 0 for a draw",
    "generator": "seed, a number",
    "use_cache": "cache",
    "num_beams": "num_samples, since there is no search",
    "eos_token_id": "stop_at_eos, True or False: a model knows its own",
}

P = ParamSpec("P")
R = TypeVar("R")


def in_our_words(method: Callable[P, R]) -> Callable[P, R]:
    """The method, which says its own word to those who use one of another library's; its signature stays as it is."""

    @functools.wraps(method)
    def told(*arguments: P.args, **keywords: P.kwargs) -> R:
        for name in keywords:
            if name in ELSEWHERE:
                raise TypeError(f"{method.__name__}() takes no {name}: here it is {ELSEWHERE[name]}")
        return method(*arguments, **keywords)

    return told


@dataclass(frozen=True)
class DrawSettings:
    """What is asked for; None leaves it to the model, and where that has no wish to the default.

    `sampler`: the step rule by name or as a `Rule`. `eta`, `threshold`, `draft`, `ahead`: settings of some rules.
    `temperature` (0: always the likeliest token), `top_k`, `top_p` warp the law of the clean token. `precision`:
    float64 draws are exact, float32 ones as flawed as those of earlier work. `backend`: "reference" or "fast", which
    write the same.
    """

    sampler: Any = None
    eta: float | None = None
    threshold: float | None = None
    draft: int | None = None
    ahead: str | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    precision: str = "float64"
    cache: bool = True
    stop_at_eos: bool = True
    seed: int | None = None
    batch_size: int = 32
    backend: str | None = None

    def __post_init__(self) -> None:
        if self.temperature is not None:
            numbers.positive("temperature", self.temperature, zero=True)
        if self.top_k is not None:
            numbers.integer("top_k", self.top_k, low=1)
        if self.top_p is not None and numbers.fraction("top_p", self.top_p) == 0:
            raise ValueError("top_p = 0 is not accepted: it must be above 0 and at most 1")
        if self.eta is not None:
            numbers.fraction("eta", self.eta)
        if self.threshold is not None:
            numbers.positive("threshold", self.threshold, zero=True)  # a rule may have an end to it
        numbers.choice("precision", self.precision, PRECISIONS)
        for name in ("cache", "stop_at_eos"):
            numbers.boolean(name, getattr(self, name))
        if self.seed is not None:
            numbers.integer("seed", self.seed, low=0, high=MAX_SEED)
        numbers.integer("batch_size", self.batch_size, low=1)
        if self.backend is not None:
            numbers.choice("backend", self.backend, BACKENDS)
        if self.sampler is not None and not isinstance(self.sampler, str) and self._of_rule:
            raise ValueError(f"{' and '.join(self._of_rule)} are not accepted beside {self.sampler!r}: it has its own")

    @property
    def _of_rule(self) -> list[str]:
        """The names of what is said of a rule's settings."""
        return [name for name in OF_RULES if getattr(self, name) is not None]

    @property
    def one_after_the_other(self) -> bool:
        """Whether the rule that is asked for is one of autoregression, which has a hyperschedule of its own."""
        name = self.sampler if isinstance(self.sampler, str) else getattr(self.sampler, "name", None)
        return name in ("ar", "speculative")

    @classmethod
    def among(cls, arguments: Mapping[str, Any]) -> "DrawSettings":
        """Those of some named arguments that are settings of a draw."""
        return cls(**{field.name: arguments[field.name] for field in fields(cls) if field.name in arguments})

    def over(self, own: "DrawSettings", *, autoregressive: bool) -> "DrawSettings":
        """With a model's own wishes where nothing is said, and temperature and top_p as numbers.

        A rule of the model's own is not for autoregression, and its settings are for no other rule.
        """
        sampler = own.sampler if self.sampler is None and not autoregressive else self.sampler
        wishes = [("temperature", 1.0), ("top_k", None), ("top_p", 1.0)]
        if isinstance(sampler, str) and sampler == own.sampler:
            wishes += [(name, None) for name in OF_RULES]
        said = {}
        for name, default in wishes:
            value = getattr(self, name) if getattr(self, name) is not None else getattr(own, name)
            said[name] = default if value is None else value
        return replace(self, sampler=sampler, **said)

    def check_for_a_model(self) -> None:
        """Refuse what a model cannot wish for."""
        for field in fields(self):
            if field.name not in OF_A_MODEL and getattr(self, field.name) != field.default:
                raise ValueError(f"sampling.{field.name} is not accepted: a model may name {', '.join(OF_A_MODEL)}")
        if self.sampler is None and self._of_rule:
            name = self._of_rule[0]
            raise ValueError(f"{name} = {getattr(self, name)!r} is not accepted without a sampler that has one")
        if self.one_after_the_other:
            raise ValueError(f"sampler = {self.sampler!r} is not accepted: it is autoregression's, and nothing else's")

    def to_json(self) -> dict[str, Any]:
        """What is said, by name."""
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name)) != field.default}
