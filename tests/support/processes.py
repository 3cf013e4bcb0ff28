"""The processes that the theory's tests run over, on a vocabulary small enough for matrices."""

import hdlm

VOCAB = 4

RATE_PROCESSES = [
    hdlm.Absorbing(VOCAB),
    hdlm.Absorbing(VOCAB, hdlm.LogLinear()),
    hdlm.Uniform(VOCAB),
    hdlm.GammaHybrid(VOCAB, 0.0),
    hdlm.GammaHybrid(VOCAB, 0.01),
    hdlm.GammaHybrid(VOCAB, 0.3, hdlm.Linear()),
    hdlm.GammaHybrid(VOCAB, 0.5, hdlm.Cosine()),
    hdlm.GammaHybrid(VOCAB, 0.7, hdlm.Geometric(1e-3, 8.0)),
    hdlm.GammaHybrid(VOCAB, 1.0),
]
EPSILON_PROCESSES = [
    hdlm.EpsilonHybrid(VOCAB, 0.0),
    hdlm.EpsilonHybrid(VOCAB, 0.2),
    hdlm.EpsilonHybrid(VOCAB, 0.9, hdlm.LogLinear()),
]
PROCESSES = RATE_PROCESSES + EPSILON_PROCESSES
