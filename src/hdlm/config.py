"""What a model folder's config.json says, as frozen dataclasses, and the objects that its words stand for.

The only place where strings choose classes: everywhere else code holds the objects. Knows no weights.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

from hdlm.nn.config import DenoiserConfig
from hdlm.sampling.acs import AdaptiveCorrection
from hdlm.sampling.autoregressive import Autoregressive
from hdlm.sampling.certain import Certain
from hdlm.sampling.confidence import Confidence
from hdlm.sampling.leaping import Euler, TauLeaping
from hdlm.sampling.original import Original
from hdlm.sampling.posterior import Posterior
from hdlm.sampling.remask import Remask
from hdlm.sampling.rule import Rule
from hdlm.sampling.shaping import Shaping
from hdlm.theory.absorbing import Absorbing
from hdlm.theory.epsilon_hybrid import EpsilonHybrid
from hdlm.theory.gamma_hybrid import GammaHybrid
from hdlm.theory.hyperschedule import Block, Flat, Hyperschedule, Quench, Slide
from hdlm.theory.noise import Cosine, Geometric, Linear, LogLinear, Noise
from hdlm.theory.parameterization import score_offset
from hdlm.theory.process import Process
from hdlm.theory.reading import CleanReading, Reading, ScoreReading, no_offset, sedd_offset
from hdlm.theory.uniform import Uniform

FORMAT, VERSION = "hdlm", 1

NOISES = {"linear": Linear, "loglinear": LogLinear, "cosine": Cosine, "geometric": Geometric}
PROCESSES = {"absorbing": Absorbing, "uniform": Uniform, "gamma": GammaHybrid, "epsilon": EpsilonHybrid}
SCHEDULES = {"quench": Quench, "flat": Flat, "block": Block, "slide": Slide}

# What a network's outputs are: logits of the clean token; log scores that get our offsets; log scores that get SEDD's
# one offset for all states, log(e^sigma - 1) + log N; log scores as they are.
PARAMETERIZATIONS = ("clean", "score", "sedd-scaled", "sedd-plain")
_OFFSETS = {"score": score_offset, "sedd-scaled": sedd_offset, "sedd-plain": no_offset}

SAMPLERS: dict[str, type[Rule]] = {
    rule.name: rule
    for rule in (
        Posterior,
        Original,
        AdaptiveCorrection,
        TauLeaping,
        Euler,
        Autoregressive,
        Certain,
        Confidence,
        Remask,
    )
}
_WITH_ETA, _WITH_THRESHOLD = (AdaptiveCorrection, Remask), (Certain, Confidence)
DRAWS = ("float64", "float32")

PRESETS = {
    "tiny": {"layers": 2, "width": 64, "heads": 4},
    "mini": {"layers": 6, "width": 384, "heads": 6},
    "small": {"layers": 12, "width": 768, "heads": 12},
    "medium": {"layers": 24, "width": 1024, "heads": 16},
}


def preset(name: str, vocab_size: int, **changes: Any) -> DenoiserConfig:
    """A denoiser by its size: tiny, mini, small (the paper's) or medium, with any field changed."""
    return DenoiserConfig(vocab_size=vocab_size, **(_choose("preset", name, PRESETS) | changes))


@dataclass(frozen=True)
class NoiseConfig:
    """A noise schedule by its word and numbers."""

    kind: str = "linear"
    settings: dict[str, float] = field(default_factory=dict)

    def build(self) -> Noise:
        """The schedule."""
        return _call("noise", _choose("noise.kind", self.kind, NOISES), self.settings)


@dataclass(frozen=True)
class ProcessConfig:
    """A process by its word, its share of uniform noise (gamma or epsilon) and its noise."""

    kind: str = "absorbing"
    noise: NoiseConfig = NoiseConfig()
    gamma: float | None = None
    epsilon: float | None = None

    def build(self, vocab_size: int) -> Process:
        """The process over `vocab_size` tokens."""
        shares = {name: value for name in ("gamma", "epsilon") if (value := getattr(self, name)) is not None}
        make = _choose("process.kind", self.kind, PROCESSES)
        return _call("process", make, {"vocab_size": vocab_size, "noise": self.noise.build()} | shares)


@dataclass(frozen=True)
class ScheduleConfig:
    """A hyperschedule by its word; `length` is the context that a network was trained on."""

    kind: str
    length: int
    width: int | None = None
    rate: float | None = None

    def build(self) -> Hyperschedule:
        """The schedule."""
        values = {name: value for name, value in asdict(self).items() if name != "kind" and value is not None}
        return _call("hyperschedule", _choose("hyperschedule.kind", self.kind, SCHEDULES), values)

    @classmethod
    def of(cls, schedule: Hyperschedule) -> "ScheduleConfig":
        """The words for a schedule, from which it can be built again; `custom`, for want of its levels, cannot."""
        kind = next((word for word, made in SCHEDULES.items() if isinstance(schedule, made)), "custom")
        width = schedule.width if kind in ("block", "slide") else None
        return cls(kind, schedule.length, width, None if kind == "quench" else schedule.rate)

    @property
    def name(self) -> str:
        """Kind and width, as in "block 16"."""
        return f"{self.kind} {self.width}" if self.width else self.kind


@dataclass(frozen=True)
class SamplingConfig(Shaping):
    """How a network likes to be drawn from: shaping and, but for autoregression, a rule (None: the exact one)."""

    sampler: str | None = None
    threshold: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sampler is None and self.threshold is not None:
            raise ValueError(f"threshold = {self.threshold!r} is not accepted without a sampler that has one")
        if self.sampler == "ar":
            raise ValueError("sampler = 'ar' is not accepted: autoregression always has it, and nothing else can")
        if self.sampler is not None:
            make_rule(self.sampler, threshold=self.threshold)


@dataclass(frozen=True)
class BundleConfig:
    """All that config.json holds besides format and version.

    `hyperschedule` is the one to sample with unless told otherwise; `mixture` holds the others that the network was
    trained on. `next_token`: its settled slots learned to predict the next token, as in autoregression.
    `sampling`: how to draw where nothing is asked for.
    """

    model: DenoiserConfig
    process: ProcessConfig
    hyperschedule: ScheduleConfig
    shifted: bool
    parameterization: str = "clean"
    bos_id: int | None = None
    eos_id: int | None = None
    block_causal: bool = False
    mixture: tuple[ScheduleConfig, ...] = ()
    next_token: bool = False
    sampling: SamplingConfig = field(default_factory=SamplingConfig)

    def __post_init__(self) -> None:
        for name in ("shifted", "block_causal", "next_token"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} = {getattr(self, name)!r} is not accepted: it must be true or false")
        if self.parameterization not in PARAMETERIZATIONS:
            accepted = ", ".join(PARAMETERIZATIONS)
            raise ValueError(
                f"parameterization = {self.parameterization!r} is not accepted: it must be one of {accepted}"
            )
        for name in ("bos_id", "eos_id"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or not 0 <= value < self.model.vocab_size):
                raise ValueError(f"{name} = {value!r} is not accepted: it must be in 0..{self.model.vocab_size - 1}")
        if self.sampling.sampler is not None:
            make_rule(self.sampling.sampler).check(self.reading(self.process.build(self.model.vocab_size)))
        if self.shifted and self.bos_id is None:
            raise ValueError("bos_id = None is not accepted: a shifted model starts from BOS")

    @property
    def digest(self) -> str:
        """A fingerprint of what gives the weights their meaning, by which the files of one save know each other."""
        meaning = {name: asdict(self)[name] for name in ("model", "process", "shifted", "parameterization")}
        return hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()

    def reading(self, process: Process) -> Reading:
        """What the network's outputs mean."""
        if self.parameterization == "clean":
            return CleanReading(process)
        return ScoreReading(process, _OFFSETS[self.parameterization])

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` reads back."""
        return {"format": FORMAT, "version": VERSION} | asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "BundleConfig":
        """The config of a JSON object; unknown formats, versions and fields are refused by name."""
        if data.get("format") != FORMAT:
            raise ValueError(f"format = {data.get('format')!r} is not accepted: it must be {FORMAT!r}")
        if data.get("version") != VERSION:
            raise ValueError(f"version = {data.get('version')!r} is not accepted: this hdlm reads version {VERSION}")
        body = {name: value for name, value in data.items() if name not in ("format", "version")}
        return parse(cls, body, "config")


def make_rule(name: str, *, eta: float | None = None, threshold: float | None = None) -> Rule:
    """A step rule by its word, with the settings that it has."""
    make = _choose("sampler", name, SAMPLERS)
    settings = {}
    for setting, value, having in (("eta", eta, _WITH_ETA), ("threshold", threshold, _WITH_THRESHOLD)):
        if value is None:
            continue
        if make not in having:
            names = " and ".join(rule.name for rule in having)
            raise ValueError(f"{setting} = {value!r} is not accepted for sampler {name!r}: it is a setting of {names}")
        settings[setting] = value
    return make(**settings)


def sampler(
    name: str | None,
    reading: Reading,
    schedule: Hyperschedule,
    *,
    eta: float | None = None,
    threshold: float | None = None,
) -> Rule:
    """A step rule by its word for this reading and schedule; None: the exact one."""
    if name is None:
        exact = "posterior" if isinstance(reading, CleanReading) else "tau-leaping"
        if isinstance(reading, CleanReading) and isinstance(reading.process, Absorbing):
            exact = "original"  # the same law, drawn with less ado
        name = "ar" if isinstance(schedule, Quench) else exact
    rule = make_rule(name, eta=eta, threshold=threshold)
    if name == "ar" and not isinstance(schedule, Quench):
        raise ValueError(f"sampler 'ar' does not fit {schedule!r}: autoregression is the quench schedule's")
    rule.check(reading)
    return rule


def parse(cls: type, data: Any, where: str) -> Any:
    """A dataclass from a JSON object, its own fields alone; fields that are dataclasses or lists of them likewise."""
    if not isinstance(data, Mapping):
        raise ValueError(f"{where} = {data!r} is not accepted: it must be an object")
    kinds = get_type_hints(cls)
    for name in data:
        if name not in kinds:
            raise ValueError(f"{where} has the unknown field {name!r}: it may have {', '.join(sorted(kinds))}")
    return _call(where, cls, {name: _value(kinds[name], value, f"{where}.{name}") for name, value in data.items()})


def _value(kind: Any, value: Any, where: str) -> Any:
    if is_dataclass(kind):
        assert isinstance(kind, type)
        return parse(kind, value, where)
    if get_origin(kind) is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{where} = {value!r} is not accepted: it must be a list")
        return tuple(_value(get_args(kind)[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    return value


def _choose(name: str, word: str, table: Mapping[str, Any]) -> Any:
    if not isinstance(word, str) or word not in table:
        raise ValueError(f"{name} = {word!r} is not accepted: it must be one of {', '.join(table)}")
    return table[word]


def _call(where: str, make: Any, values: Mapping[str, Any]) -> Any:
    """Build an object; a missing or superfluous setting is bad input, not a bug."""
    try:
        return make(**values)
    except TypeError as error:
        raise ValueError(f"{where} is not accepted: {str(error).split('.', 1)[-1]}") from None
