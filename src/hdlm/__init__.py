"""hdlm: language models anywhere between autoregression and diffusion."""

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
