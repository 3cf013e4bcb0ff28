"""What a training run is: every setting, as nested frozen dataclasses.

A recipe is data. `recipes.py` holds the named ones; `train/` runs them. Knows no tensors.
"""

from dataclasses import dataclass, field
from typing import Any

from hdlm.config.bundle import OUTPUTS
from hdlm.config.fields import check_fields, plain, setting
from hdlm.config.mixture import MixtureMember, read_mixture
from hdlm.config.model import DenoiserConfig
from hdlm.config.parse import parse
from hdlm.config.process import ProcessConfig
from hdlm.config.sampling import DrawSettings
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

    layers: int = setting(12, "blocks, one after the other")
    width: int = setting(768, "features of a slot")
    heads: int = setting(12, "attention heads, which share the width")
    conditioned: bool = setting(True, "blocks read the noise (adaLN)")
    condition_width: int = setting(128, "features by which they read it")
    weighted_embedding: bool = setting(False, "a token's embedding is mixed with MASK's by its noise")
    rms_norm: bool = setting(False, "RMSNorm instead of LayerNorm")
    gated: bool = setting(False, "SwiGLU instead of GELU")
    hidden: int | None = setting(None, "features inside an MLP (none: 4 x width)")
    mlp_bias: bool = setting(True, "MLPs have biases")
    tied: bool = setting(False, "embedding and head are one matrix")
    dropout: float = setting(0.0, "share of features dropped in training")

    def __post_init__(self) -> None:
        check_fields(self, "model")
        try:
            DenoiserConfig(vocab_size=2, **vars(self))
        except ValueError as error:
            raise ValueError(f"model.{error}") from None


@dataclass(frozen=True)
class LossSettings:
    """beta1 weighs the settled cross-entropy, beta2 the diffusion loss (eq. mainloss); lambda_ is HDCE's.

    `averaged`: the masked bound's weights are means over the times that could have masked so (`theory.averaging`).
    """

    beta1: float = setting(0.0, "weight of the settled tokens' loss")
    beta2: float = setting(1.0, "weight of the diffusion loss")
    lambda_: float = setting(1.0, "weight of tokens that are not masked (hdce)")
    divided: bool = setting(True, "divided by how likely it is not to be masked (hdce)")
    reweighted: bool = setting(False, "settled tokens weigh by their window, as in the paper")
    averaged: bool = setting(False, "weights of masked tokens are averaged over times (linear noise)")

    def __post_init__(self) -> None:
        check_fields(self, "loss")
        for name in ("beta1", "beta2", "lambda_"):
            numbers.positive(f"loss.{name}", getattr(self, name), zero=True)


@dataclass(frozen=True)
class OptimizerSettings:
    """AdamW, or Muon for the hidden matrices; linear warmup, then a cosine down to `final_share` (1: constant)."""

    kind: str = setting("adamw", "adamw, or muon for the hidden matrices")
    lr: float = setting(3e-4, "learning rate at its highest")
    beta1: float = setting(0.9, "memory of the first moment, in [0, 1)")
    beta2: float = setting(0.95, "memory of the second moment, in [0, 1)")
    eps: float = setting(1e-8, "added to the root of the second moment")
    weight_decay: float = setting(0.1, "decay of matrices, times the learning rate")
    warmup: int = setting(2500, "steps until the learning rate is at its highest")
    final_share: float = setting(0.1, "share of it that is left at the end, by a cosine (1: constant)")
    clip: float = setting(1.0, "largest norm of a gradient")

    @property
    def orthogonal(self) -> bool:
        """Whether hidden matrices move by orthogonal steps (Muon)."""
        return self.kind == "muon"

    def __post_init__(self) -> None:
        check_fields(self, "optimizer")
        numbers.choice("optimizer.kind", self.kind, ("adamw", "muon"))
        for name in ("lr", "eps", "clip"):
            numbers.positive(f"optimizer.{name}", getattr(self, name))
        for name in ("weight_decay", "warmup"):
            numbers.positive(f"optimizer.{name}", getattr(self, name), zero=True)
        numbers.fraction("optimizer.final_share", self.final_share)
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"optimizer.{name} = {getattr(self, name)!r} is not accepted: it must be in [0, 1)")


@dataclass(frozen=True)
class SamplingSettings:
    """How the model is drawn from where nothing else is asked for; see `DrawSettings`."""

    sampler: str | None = setting(None, "step rule (none: the exact one); autoregression has its own")
    temperature: float | None = setting(None, "of draws (none: 1)")
    top_k: int | None = setting(None, "only so many of the likeliest tokens (none: all)")
    top_p: float | None = setting(None, "only the likeliest of this mass (none: all)")
    eta: float | None = setting(None, "strength of acs and remask")
    threshold: float | None = setting(None, "certain: settle all above it; bounded: nats of a step")

    def __post_init__(self) -> None:
        check_fields(self, "sampling")
        try:
            self.settings.check_for_a_model()
        except ValueError as error:
            raise ValueError(f"sampling.{str(error).removeprefix('sampling.')}") from None

    @property
    def settings(self) -> DrawSettings:
        """The same as settings of a draw."""
        return DrawSettings(**vars(self))


@dataclass(frozen=True)
class Recipe:
    """A whole run."""

    name: str = setting(about="name of the recipe, and of its folder")
    about: str = setting("", "what it is, in a line")
    data: str = setting("stdlib", "a corpus by name, a file or folder of text, prepared tokens, or a matrix of them")
    encoding: str = setting("utf-8", "of text files, a codec of Python; NAME:replace where not all can be decoded")
    tokenizer: str = setting("bpe-2048", "bpe-SIZE (trained on the data), bytes, chars, a name or a tokenizer.json")
    length: int = setting(1024, "tokens of a row: the context")
    shifted: bool = setting(False, "a slot predicts the next position instead of its own")
    parameterization: str = setting("clean", "outputs: clean (logits of the token), score, or hdce (epsilon)")
    model: ModelSettings = ModelSettings()
    process: ProcessConfig = field(default_factory=ProcessConfig)
    schedules: tuple[MixtureMember, ...] = setting(
        (MixtureMember(),), "the mixture, kind[:width][:share] parted by commas; custom:FILE", read=read_mixture
    )
    autoregressive_first: float = setting(
        0.0, "share of the steps, the first ones, that train autoregression alone: half the work, most of the language"
    )
    doubled: bool = setting(
        True, "all windows of a row in one pass, clean tokens beside noisy ones (false: one window a row)", later=True
    )
    loss: LossSettings = LossSettings()
    sampling: SamplingSettings = SamplingSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    steps: int = setting(1_000_000, "steps of the optimiser")
    global_batch: int = setting(512, "rows of a step, on all processes together")
    micro_batch: int = setting(32, "rows at a time on one process")
    ema: float = setting(0.9999, "memory of the averaged weights, in [0, 1)")
    seed: int = setting(0, "seed of weights, order and noise")
    log_every: int = setting(50, "steps between lines of the log")
    eval_every: int = setting(5000, "steps between validations")
    eval_rows: int = setting(512, "rows of a validation")
    save_every: int = setting(5000, "steps between checkpoints")
    keep: int = setting(2, "checkpoints that are kept")
    compile: bool = setting(False, "compile the network (seconds at the start, faster steps on a GPU)")
    sharded: bool = setting(False, "shard parameters and optimiser over processes (FSDP2)")
    hybrid: bool = setting(False, "sharded inside of each node alone, with a copy a node (HSDP)", later=True)
    recompute: bool = setting(
        False, "blocks are computed again in the backward pass: far less memory, a third more work", later=True
    )
    init_from: str | None = setting(None, "model folder whose weights and tokenizer it starts from")
    goes_on_from: str | None = setting(
        None, "stage 2: the recipe whose model --init-from must name (none: may start from nothing)", later=True
    )

    def __post_init__(self) -> None:
        check_fields(self)
        for name in _COUNTS:
            numbers.integer(name, getattr(self, name), low=1)
        numbers.integer("seed", self.seed, low=0)
        if not 0 <= self.ema < 1:
            raise ValueError(f"ema = {self.ema!r} is not accepted: it must be in [0, 1)")
        numbers.choice("parameterization", self.parameterization, OUTPUTS)
        if not self.schedules:
            raise ValueError("schedules = () is not accepted: it must name at least one hyperschedule")
        for number, member in enumerate(self.schedules):
            if member.levels is not None and len(member.levels[0]) != self.length:
                raise ValueError(
                    f"schedules.{number}.levels has {len(member.levels[0])} columns: a custom hyperschedule must have "
                    f"as many as the context has tokens, length = {self.length}"
                )
        numbers.fraction("autoregressive_first", self.autoregressive_first)
        if not self.doubled and any(member.levels is not None for member in self.schedules):
            raise ValueError("doubled = False is not accepted: a custom hyperschedule says itself which windows it has")
        if any(member.kind == "quench" for member, _ in self.members) and not self.shifted:
            raise ValueError(
                "shifted = False is not accepted: autoregression (quench, autoregressive_first) predicts the next token"
            )
        if self.loss.averaged and not self._can_average():
            raise ValueError(
                "loss.averaged = True is not accepted: it is for linear noise, a network without the time and the "
                "absorbing or the epsilon process (by HDCE: with loss.divided = False), and for no custom schedule; "
                "--loss.averaged false does without"
            )
        if self.hybrid and not self.sharded:
            raise ValueError("hybrid = True is not accepted with sharded = False: it says how far the shards reach")
        if self.parameterization == "score" and self.process.kind == "epsilon":
            raise ValueError("parameterization = 'score' is not accepted: the epsilon process has no score")
        if self.parameterization == "hdce" and self.process.kind != "epsilon":
            raise ValueError("parameterization = 'hdce' is not accepted: HDCE is the loss of the epsilon process")

    @property
    def members(self) -> list[tuple[MixtureMember, float]]:
        """Every hyperschedule that is trained, with its share of all steps: the mixture, then what comes before it."""
        first, whole = self.autoregressive_first, sum(member.share for member in self.schedules)
        found = [(member, (1 - first) * member.share / whole) for member in self.schedules]
        return [*found, (MixtureMember("quench"), first)] if first > 0 else found

    def _can_average(self) -> bool:
        timeless = not (self.model.conditioned or self.model.weighted_embedding)
        weighted = self.parameterization == "hdce" and self.loss.divided
        masks = self.process.kind in ("absorbing", "epsilon") and not weighted
        even = not any(member.levels for member in self.schedules) and self.parameterization != "score"
        return timeless and masks and even and self.process.noise.kind == "linear"

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` reads back."""
        return plain(self)

    @classmethod
    def from_json(cls, data: Any) -> "Recipe":
        """The recipe of a JSON object; unknown fields are refused by name."""
        return parse(cls, data, "recipe")
