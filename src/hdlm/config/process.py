"""Noise and noising processes by their words and numbers."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hdlm.config.fields import check_fields, setting

if TYPE_CHECKING:
    from hdlm.theory.noise import Noise
    from hdlm.theory.process import Process


@dataclass(frozen=True)
class NoiseConfig:
    """A noise schedule by its word and numbers."""

    kind: str = setting("linear", "noise by time: linear, loglinear, cosine or geometric")
    settings: dict[str, float] = field(
        default_factory=dict, metadata={"about": "its numbers, such as eps of loglinear"}
    )

    def __post_init__(self) -> None:
        check_fields(self, "process.noise")

    def build(self) -> "Noise":
        """The schedule."""
        from hdlm.config.build import build_noise

        return build_noise(self)


@dataclass(frozen=True)
class ProcessConfig:
    """A process by its word, its share of uniform noise (gamma or epsilon) and its noise."""

    kind: str = setting("absorbing", "what noise does to a token: absorbing, uniform, gamma or epsilon")
    noise: NoiseConfig = NoiseConfig()
    gamma: float | None = setting(None, "of gamma: the share of uniform noise, in [0, 1]")
    epsilon: float | None = setting(None, "of epsilon: the share of uniform noise, in [0, 1]")

    def __post_init__(self) -> None:
        check_fields(self, "process")

    def build(self, vocab_size: int) -> "Process":
        """The process over `vocab_size` tokens."""
        from hdlm.config.build import build_process

        return build_process(self, vocab_size)
