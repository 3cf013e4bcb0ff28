"""The denoiser: one transformer for autoregression, diffusion and everything between.

It reads slots (`theory.layout`) and gives one vector of scores over the vocabulary per slot. What a slot may see, and
whether its output is for its own token or the next one, is the layout's business. The style of a block is data:
LayerNorm, GELU and adaLN make it the diffusion transformer of the paper; RMSNorm, SwiGLU, grouped heads and a tied
head make it a Llama. Trunk and head are callable apart, so that a caller can run the head on chosen slots only.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hdlm.nn.attention import Plan, attend, plan_for, rope_table, rotate
from hdlm.nn.cache import Cache, Pass
from hdlm.nn.conditioning import Modulation, SigmaEmbedding, add_gated, modulate
from hdlm.nn.config import DenoiserConfig, padded
from hdlm.nn.fixed import FixedCache, FixedPass
from hdlm.nn.fused import fits, fused_trunk
from hdlm.nn.linear import Linear, linear
from hdlm.theory.layout import Slots
from hdlm.theory.levels import Runs


class Norm(nn.Module):
    """LayerNorm without bias, or RMSNorm; statistics in at least float32."""

    def __init__(self, config: DenoiserConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(config.width))
        self._eps, self._rms = config.norm_eps, config.rms_norm

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
        weight = self.weight.to(wide.dtype)
        if self._rms:
            return F.rms_norm(wide, (x.shape[-1],), weight, self._eps).to(x.dtype)
        return F.layer_norm(wide, (x.shape[-1],), weight, None, self._eps).to(x.dtype)


class Attention(nn.Module):
    """Queries, keys and values in one projection, grouped where there are fewer key-value heads."""

    def __init__(self, config: DenoiserConfig) -> None:
        super().__init__()
        self._heads, self._kv_heads, self._size = config.heads, config.num_kv_heads, config.head_size
        self.qkv = Linear(config.width, (config.heads + 2 * self._kv_heads) * self._size, bias=False)
        self.out = Linear(config.heads * self._size, config.width, bias=False)

    def forward(
        self, x: Tensor, rope: tuple[Tensor, Tensor], plan: Plan, cached: Pass | FixedPass | None, layer: int
    ) -> Tensor:
        batch, slots, _ = x.shape
        heads = self.qkv(x).view(batch, slots, -1, self._size).transpose(1, 2)
        qk, v = heads.split([self._heads + self._kv_heads, self._kv_heads], dim=1)
        q, k = rotate(qk, *rope).split([self._heads, self._kv_heads], dim=1)
        if cached is not None:
            k, v = cached.exchange(layer, k, v)
        out = attend(q, k, v, plan)
        return self.out(out.transpose(1, 2).reshape(batch, slots, -1))


class MLP(nn.Module):
    """GELU, or SwiGLU where gated (then `inner` holds the gate's rows first)."""

    def __init__(self, config: DenoiserConfig) -> None:
        super().__init__()
        self.gated = config.gated
        self.inner = Linear(config.width, config.hidden_size * (1 + config.gated), bias=config.mlp_bias)
        self.outer = Linear(config.hidden_size, config.width, bias=config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x)
        if self.gated:
            gate, x = x.chunk(2, dim=-1)
            return self.outer(F.silu(gate) * x)
        return self.outer(F.gelu(x, approximate="tanh"))


class Block(nn.Module):
    """Attention and MLP, each behind a norm; with conditioning, shifted, scaled and gated by the noise level."""

    def __init__(self, config: DenoiserConfig) -> None:
        super().__init__()
        self.norm1, self.attention = Norm(config), Attention(config)
        self.norm2, self.mlp = Norm(config), MLP(config)
        self.modulation = Modulation(config.condition_width, config.width, 6) if config.conditioned else None
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        x: Tensor,
        condition: Tensor | None,
        runs: Runs,
        rope: tuple[Tensor, Tensor],
        plan: Plan,
        cached: Pass | FixedPass | None,
        layer: int,
    ) -> Tensor:
        if self.modulation is None or condition is None:
            x = x + self.dropout(self.attention(self.norm1(x), rope, plan, cached, layer))
            return x + self.dropout(self.mlp(self.norm2(x)))
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation.again(condition)
        out = self.attention(modulate(self.norm1(x), shift1, scale1, runs), rope, plan, cached, layer)
        x = add_gated(x, self.dropout(out), gate1, runs)
        return add_gated(x, self.dropout(self.mlp(modulate(self.norm2(x), shift2, scale2, runs))), gate2, runs)


class Head(nn.Module):
    """From features to scores over the vocabulary, starting at zero: all tokens equally likely."""

    def __init__(self, config: DenoiserConfig) -> None:
        super().__init__()
        self.outputs = config.outputs
        self.norm = Norm(config)
        conditioned = config.conditioned and config.conditioned_head
        self.modulation = Modulation(config.condition_width, config.width, 2) if conditioned else None
        self.weight = nn.Parameter(torch.zeros(padded(config.outputs), config.width))
        self.bias = nn.Parameter(torch.zeros(padded(config.outputs))) if config.head_bias else None

    def features(self, x: Tensor, condition: Tensor | None, runs: Runs) -> Tensor:
        """What the last matrix product reads, [batch, slots, width]."""
        x = self.norm(x)
        if self.modulation is None or condition is None:
            return x
        shift, scale = self.modulation(condition)
        return modulate(x, shift, scale, runs)

    def forward(self, features: Tensor) -> Tensor:
        """Scores [..., outputs] of any features [..., width]."""
        return linear(features, self.weight, self.bias)[..., : self.outputs]


@dataclass(frozen=True)
class Pieces:
    """A trunk in parts: `embed`, a callable per block, and the head's `features`."""

    embed: Callable[[Tensor, Tensor], Tensor]
    blocks: Sequence[Callable[..., Tensor]]
    features: Callable[[Tensor, Tensor | None, Runs], Tensor]


class Denoiser(nn.Module):
    """Slots in, scores per slot out. `trunk` and `head` are its two halves."""

    def __init__(self, config: DenoiserConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Parameter(torch.empty(padded(config.embeddings), config.width))
        self.sigma = SigmaEmbedding(config.condition_width) if config.conditioned else None
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.head = Head(config)
        self._initialise()
        if config.tied:
            self.head.weight = self.embedding

    def _initialise(self) -> None:
        """Normal weights, smaller where they add to the residual stream; gates, modulations and head stay at zero."""
        nn.init.normal_(self.embedding, std=0.02)
        for block in self.blocks:
            assert isinstance(block, Block)
            for matrix in (block.attention.qkv, block.mlp.inner, block.attention.out, block.mlp.outer):
                residual = matrix in (block.attention.out, block.mlp.outer)
                nn.init.normal_(matrix.weight, std=0.02 / (math.sqrt(2 * self.config.layers) if residual else 1))
                if matrix.bias is not None:
                    nn.init.zeros_(matrix.bias)
        if self.sigma is not None:
            for matrix in (self.sigma.inner, self.sigma.outer):
                nn.init.normal_(matrix.weight, std=0.02)
                nn.init.zeros_(matrix.bias)

    def forward(self, slots: Slots, *, cache: Cache | None = None) -> Tensor:
        """Scores [batch, slots, outputs]."""
        return self.head(self.trunk(slots, cache=cache))

    def trunk(self, slots: Slots, *, cache: Cache | None = None) -> Tensor:
        """Features [batch, slots, width], all but the last matrix product; with a cache, its settled slots are kept."""
        layout = slots.layout
        cached = cache.open(layout) if cache is not None else None
        if not isinstance(cached, Pass) and fits(self, slots, cached):
            return fused_trunk(self, slots, cached)
        plan = plan_for(layout) if cached is None else cached.plan
        rope = self.rope(layout.position if cached is None else cached.position)
        x = self.run(slots.token, slots.sigma, slots.weight, rope, layout.runs, plan, cached)
        if cached is not None:
            cached.commit()
        return x

    def run(
        self,
        token: Tensor,
        sigma: Tensor,
        weight: Tensor,
        rope: tuple[Tensor, Tensor],
        runs: Runs,
        plan: Plan,
        cached: Pass | FixedPass | None = None,
        *,
        pieces: "Pieces | None" = None,
    ) -> Tensor:
        """The trunk on plain tensors (see `Slots`), by its own pieces or by compiled ones."""
        pieces = self.pieces() if pieces is None else pieces
        x = pieces.embed(token, weight)
        if self.config.timeless:
            sigma = torch.zeros_like(sigma)
        condition = self.sigma(sigma) if self.sigma is not None else None
        for layer, block in enumerate(pieces.blocks):
            x = block(x, condition, runs, rope, plan, cached, 0 if cached is None else layer)
        return pieces.features(x, condition, runs)

    def pieces(self, *, compiled: bool = False) -> "Pieces":
        """What a pass consists of. Compiled, all blocks share one program, which takes seconds and not a minute.

        `rope` is no part of them: a compiler would melt it into every block and work it out again in each.
        """
        wrap: Callable[[Any], Any] = torch.compile if compiled else lambda piece: piece
        return Pieces(wrap(self.embed), [wrap(block) for block in self.blocks], wrap(self.head.features))

    def rope(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the rotary embedding at `position` [slots] or [batch, slots]."""
        dtype = torch.promote_types(self.embedding.dtype, torch.float32)
        return rope_table(position, self.config.head_size, self.config.rope_base, dtype)

    def embed(self, token: Tensor, weight: Tensor) -> Tensor:
        """Embeddings [batch, slots, width]; weighted, a token fades into MASK (eq. weightedtokenembedding).

        Under autocast the stream that starts here is in half precision, as long as it is: a third less to move.
        """
        x = F.embedding(token, self.embedding)
        if self.config.weighted_embedding:
            mask = self.embedding[self.config.vocab_size]
            x = torch.lerp(mask, x, weight.to(x.dtype).unsqueeze(-1))
        kind = x.device.type
        return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x

    def new_cache(self, batch: int, capacity: int, *, fixed: bool = False) -> Cache:
        """An empty cache for `batch` rows of up to `capacity` positions, in this network's precision and place.

        `fixed`: for recorded steps (see `fixed.py`).
        """
        config = self.config
        return (FixedCache if fixed else Cache)(
            layers=config.layers,
            batch=batch,
            kv_heads=config.num_kv_heads,
            head_width=config.head_size,
            capacity=capacity,
            dtype=self.embedding.dtype,
            device=self.embedding.device,
        )

    @property
    def vocabulary_rows(self) -> dict[str, int]:
        """Rows that mean something, of the parameters that are padded."""
        outputs = self.config.outputs
        return {"embedding": self.config.embeddings, "head.weight": outputs, "head.bias": outputs}

    @property
    def num_parameters(self) -> int:
        """Parameters, padding rows not counted."""
        rows = self.vocabulary_rows
        return sum(p[: rows.get(name, len(p))].numel() for name, p in self.named_parameters())
