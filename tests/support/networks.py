"""Small random networks in float64, and ways to feed them."""

import torch

import hdlm
from hdlm.config.model import DenoiserConfig
from hdlm.nn.transformer import Denoiser

VOCAB = 11
BOS_ID = 3

STYLES = {
    "paper": {"conditioned": True, "weighted_embedding": True, "head_bias": True},
    "plain": {"conditioned": False},
    "llama": {
        "conditioned": False,
        "rms_norm": True,
        "gated": True,
        "mlp_bias": False,
        "kv_heads": 2,
        "hidden": 40,
        "rope_base": 500.0,
    },
}
STYLES["qwen"] = STYLES["llama"] | {"qkv_bias": True, "qk_norm": True, "rope_scaling": (4.0, 1.0, 4.0, 12.0)}


def network(style="paper", *, layers=2, seed=0, **changes):
    """A denoiser whose every parameter is random, gates and head included."""
    config = DenoiserConfig(vocab_size=VOCAB, layers=layers, width=32, heads=4, **(STYLES[style] | changes))
    model = Denoiser(config).double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def batch(length, *, rows=2, process=None, seed=0):
    """Clean tokens, noisy tokens and times of a batch, and the process."""
    process = process if process is not None else hdlm.GammaHybrid(VOCAB, 0.3)
    generator = torch.Generator().manual_seed(seed)
    x0 = torch.randint(VOCAB, (rows, length), generator=generator)
    t = torch.rand(rows, length, generator=generator, dtype=torch.float64)
    return x0, process.corrupt(x0, t, generator=generator), t, process
