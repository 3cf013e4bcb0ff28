"""Noise and noising processes by their words and numbers."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hdlm.theory.noise import Noise
    from hdlm.theory.process import Process


@dataclass(frozen=True)
class NoiseConfig:
    """A noise schedule by its word and numbers."""

    kind: str = "linear"
    settings: dict[str, float] = field(default_factory=dict)

    def build(self) -> "Noise":
        """The schedule."""
        from hdlm.config.build import build_noise

        return build_noise(self)


@dataclass(frozen=True)
class ProcessConfig:
    """A process by its word, its share of uniform noise (gamma or epsilon) and its noise."""

    kind: str = "absorbing"
    noise: NoiseConfig = NoiseConfig()
    gamma: float | None = None
    epsilon: float | None = None

    def build(self, vocab_size: int) -> "Process":
        """The process over `vocab_size` tokens."""
        from hdlm.config.build import build_process

        return build_process(self, vocab_size)
