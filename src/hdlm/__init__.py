"""hdlm: language models anywhere between autoregression and diffusion.

The public names are imported on first use, so that `import hdlm` and the command line start at once. `hdlm.train` is a
package that can be called.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hdlm.bundle import Bundle as Bundle
    from hdlm.bundle import load as load
    from hdlm.config import recipes as recipes
    from hdlm.config.model import DenoiserConfig as DenoiserConfig
    from hdlm.evaluate.bound import Bound as Bound
    from hdlm.evaluate.compare import compare as compare
    from hdlm.evaluate.comparison import Comparison as Comparison
    from hdlm.interop.export import export as export
    from hdlm.nn.transformer import Denoiser as Denoiser
    from hdlm.sampling.results import Frame as Frame
    from hdlm.sampling.results import Samples as Samples
    from hdlm.sampling.rule import Rule as Rule
    from hdlm.sampling.rules import *  # noqa: F403
    from hdlm.theory.absorbing import Absorbing as Absorbing
    from hdlm.theory.custom import Custom as Custom
    from hdlm.theory.entries import *  # noqa: F403
    from hdlm.theory.epsilon_hybrid import EpsilonHybrid as EpsilonHybrid
    from hdlm.theory.gamma_hybrid import GammaHybrid as GammaHybrid
    from hdlm.theory.hyperschedule import Hyperschedule as Hyperschedule
    from hdlm.theory.noise import *  # noqa: F403
    from hdlm.theory.process import Process as Process
    from hdlm.theory.uniform import Uniform as Uniform
    from hdlm.train.loop import train as train

    __version__: str

_HOMES = {
    "bundle": "Bundle load",
    "config.model": "DenoiserConfig",
    "evaluate.bound": "Bound",
    "evaluate.compare": "compare",
    "evaluate.comparison": "Comparison",
    "interop.export": "export",
    "nn.transformer": "Denoiser",
    "sampling.results": "Frame Samples",
    "sampling.rule": "Rule",
    "sampling.rules": (
        "AdaptiveCorrection Autoregressive Bounded Certain Confidence Euler LeftToRight Original Posterior "
        "PublishedCorrection Remask Speculative TauLeaping"
    ),
    "theory.absorbing": "Absorbing",
    "theory.custom": "Custom",
    "theory.entries": "Block Flat Quench Slide",
    "theory.epsilon_hybrid": "EpsilonHybrid",
    "theory.gamma_hybrid": "GammaHybrid",
    "theory.hyperschedule": "Hyperschedule",
    "theory.noise": "Cosine Geometric Linear LogLinear",
    "theory.process": "Process",
    "theory.uniform": "Uniform",
}
_NAMES = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("hdlm.version").version()
    if name == "train":
        return importlib.import_module("hdlm.train")
    if name == "recipes":
        return importlib.import_module("hdlm.config.recipes")
    if name not in _NAMES:
        raise AttributeError(f"module 'hdlm' has no attribute {name!r}")
    return getattr(importlib.import_module(f"hdlm.{_NAMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*_NAMES, "__version__", "recipes", "train"])
