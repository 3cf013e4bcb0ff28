"""hdlm: language models anywhere between autoregression and diffusion.

The public names are imported on first use, so that `import hdlm` and the command line start at once.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hdlm.bundle import Bundle, load
    from hdlm.theory.absorbing import Absorbing
    from hdlm.theory.epsilon_hybrid import EpsilonHybrid
    from hdlm.theory.gamma_hybrid import GammaHybrid
    from hdlm.theory.hyperschedule import Block, Custom, Flat, Quench, Slide
    from hdlm.theory.noise import Cosine, Geometric, Linear, LogLinear
    from hdlm.theory.uniform import Uniform

__version__ = "0.1.0"

__all__ = [
    "Absorbing",
    "Block",
    "Bundle",
    "Cosine",
    "Custom",
    "EpsilonHybrid",
    "Flat",
    "GammaHybrid",
    "Geometric",
    "Linear",
    "LogLinear",
    "Quench",
    "Slide",
    "Uniform",
    "load",
]

_HOMES = {
    "hdlm.bundle": ("Bundle", "load"),
    "hdlm.theory.absorbing": ("Absorbing",),
    "hdlm.theory.epsilon_hybrid": ("EpsilonHybrid",),
    "hdlm.theory.gamma_hybrid": ("GammaHybrid",),
    "hdlm.theory.hyperschedule": ("Block", "Custom", "Flat", "Quench", "Slide"),
    "hdlm.theory.noise": ("Cosine", "Geometric", "Linear", "LogLinear"),
    "hdlm.theory.uniform": ("Uniform",),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module 'hdlm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
