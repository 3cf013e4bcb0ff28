"""The trunk and the head of a pass without gradients, by the fastest means that fit it.

Fused kernels in half precision on a GPU (`fused.py`), oneDNN's layout on a CPU (`onednn.py`), else the network's own.
"""

from typing import Any

from torch import Tensor

from hdlm.fast import fused, onednn
from hdlm.fast.fixed_cache import FixedPass
from hdlm.nn.attention import attention_for
from hdlm.nn.cache import Cache, Pass
from hdlm.nn.transformer import Denoiser
from hdlm.theory.layout import Slots


def fast_trunk(network: Any, slots: Slots, cache: Cache | None) -> Tensor:
    """Features [batch, slots, width], as `network.trunk`."""
    if not isinstance(network, Denoiser):
        return network.trunk(slots, cache=cache)
    return run_pass(network, slots, cache.open(slots.layout) if cache is not None else None)


def run_pass(model: Denoiser, slots: Slots, opened: Pass | FixedPass | None) -> Tensor:
    """The same for a pass through a cache that is open, or through none."""
    if not isinstance(opened, Pass) and fused.fits(model, slots, opened):
        return fused.fused_trunk(model, slots, opened)
    layout = slots.layout
    rope = model.rope(opened.position if isinstance(opened, FixedPass) else layout.position)
    attend = attention_for(layout) if opened is None else opened
    if onednn.fits(model):
        x = onednn.onednn_trunk(model, slots, rope, attend)
    else:
        x = model.run(slots.token, slots.sigma, slots.weight, rope, layout.runs, attend)
    if isinstance(opened, Pass):
        opened.commit()
    return x


def fast_head(network: Any, features: Tensor) -> Tensor:
    """Outputs [..., N] of features [..., width], as `network.head`."""
    if isinstance(network, Denoiser) and onednn.fits(network):
        return onednn.onednn_head(network, features)
    return network.head(features)
