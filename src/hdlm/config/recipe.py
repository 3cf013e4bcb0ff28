"""What a training run is: every setting, as nested frozen dataclasses.

A recipe is data. `recipes.py` holds the named ones; `train/` runs them. Knows no tensors.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

from hdlm.config.bundle import PARAMETERIZATIONS
from hdlm.config.parse import parse
from hdlm.config.process import ProcessConfig
from hdlm.config.schedule import ScheduleConfig
from hdlm.theory import numbers

_COUNTS = (
    "length",
    "steps",
    "global_batch",
    "micro_batch",
    "log_every",
    "eval_every",
    "eval_rows",
    "save_every",
    "keep",
)


@dataclass(frozen=True)
class ModelSettings:
    """The network but for its vocabulary; see `DenoiserConfig`."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    conditioned: bool = True
    condition_width: int = 128
    weighted_embedding: bool = False
    rms_norm: bool = False
    gated: bool = False
    hidden: int | None = None
    mlp_bias: bool = True
    tied: bool = False
    dropout: float = 0.0


@dataclass(frozen=True)
class MixtureMember:
    """A hyperschedule and its share of the steps."""

    kind: str = "flat"
    width: int | None = None
    share: float = 1.0

    def schedule(self, length: int) -> ScheduleConfig:
        """The schedule for a context length."""
        return ScheduleConfig(self.kind, length, width=self.width)


@dataclass(frozen=True)
class LossSettings:
    """beta1 weighs the settled cross-entropy, beta2 the diffusion loss (eq. mainloss); lambda_ is HDCE's.

    `averaged`: the masked bound's weights are means over the times that could have masked so (`theory.averaging`).
    """

    beta1: float = 0.0
    beta2: float = 1.0
    lambda_: float = 1.0
    divided: bool = True
    reweighted: bool = False
    averaged: bool = False


@dataclass(frozen=True)
class OptimizerSettings:
    """AdamW, or Muon for the hidden matrices; linear warmup, then a cosine down to `final_share` (1: constant)."""

    kind: str = "adamw"
    lr: float = 3e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    warmup: int = 2500
    final_share: float = 0.1
    clip: float = 1.0

    @property
    def orthogonal(self) -> bool:
        """Whether hidden matrices move by orthogonal steps (Muon)."""
        return self.kind == "muon"

    def __post_init__(self) -> None:
        numbers.choice("optimizer.kind", self.kind, ("adamw", "muon"))
        for name in ("lr", "eps", "clip"):
            numbers.positive(f"optimizer.{name}", getattr(self, name))
        for name in ("beta1", "beta2", "final_share"):
            if not 0 <= getattr(self, name) <= 1 - (name != "final_share") * 1e-9:
                raise ValueError(f"optimizer.{name} = {getattr(self, name)!r} is not accepted: it must be in [0, 1)")
        if self.weight_decay < 0 or self.warmup < 0:
            raise ValueError("optimizer.weight_decay and optimizer.warmup are not accepted below 0")


@dataclass(frozen=True)
class Recipe:
    """A whole run."""

    name: str
    about: str = ""
    data: str = "stdlib"
    tokenizer: str = "bpe-2048"
    length: int = 1024
    shifted: bool = False
    parameterization: str = "clean"
    model: ModelSettings = ModelSettings()
    process: ProcessConfig = field(default_factory=ProcessConfig)
    schedules: tuple[MixtureMember, ...] = (MixtureMember(),)
    loss: LossSettings = LossSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    steps: int = 1_000_000
    global_batch: int = 512
    micro_batch: int = 32
    ema: float = 0.9999
    seed: int = 0
    log_every: int = 50
    eval_every: int = 5000
    eval_rows: int = 512
    save_every: int = 5000
    keep: int = 2
    compile: bool = False
    sharded: bool = False
    init_from: str | None = None

    def __post_init__(self) -> None:
        for name in _COUNTS:
            numbers.integer(name, getattr(self, name), low=1)
        if not 0 <= self.ema < 1:
            raise ValueError(f"ema = {self.ema!r} is not accepted: it must be in [0, 1)")
        if self.parameterization not in PARAMETERIZATIONS[:2]:
            raise ValueError(f"parameterization = {self.parameterization!r} is not accepted: it must be clean or score")
        if not self.schedules or any(member.share <= 0 for member in self.schedules):
            raise ValueError("schedules is not accepted: it must name at least one, with shares above 0")
        if any(member.kind == "quench" for member in self.schedules) and not self.shifted:
            raise ValueError("shifted = False is not accepted: autoregression (quench) predicts the next token")
        if self.loss.averaged and not self._can_average():
            raise ValueError(
                "loss.averaged = True is not accepted: it is for linear noise, a network without the time and "
                "the absorbing process (or the epsilon process with loss.divided = False)"
            )
        if self.sharded and self.optimizer.orthogonal:
            raise ValueError("optimizer.kind = 'muon' is not accepted with sharded = True: it needs whole matrices")
        if self.parameterization == "score" and self.process.kind == "epsilon":
            raise ValueError("parameterization = 'score' is not accepted: the epsilon process has no score")

    def _can_average(self) -> bool:
        timeless = not (self.model.conditioned or self.model.weighted_embedding)
        masks = self.process.kind == "absorbing" or (self.process.kind == "epsilon" and not self.loss.divided)
        return timeless and masks and self.process.noise.kind == "linear" and self.parameterization == "clean"

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` reads back."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> "Recipe":
        """The recipe of a JSON object; unknown fields are refused by name."""
        return parse(cls, data, "recipe")
