"""The denoiser: one transformer for autoregression, diffusion and everything between.

It reads slots (`theory.layout`) and gives one vector of scores over the vocabulary per slot. What a slot may see, and
whether its output is for its own token or the next one, is the layout's business. The style of a block is data:
LayerNorm, GELU and adaLN make it the diffusion transformer of the paper; RMSNorm, SwiGLU, grouped heads and a tied
head make it a Llama, biases or norms of queries and keys a Qwen. Trunk and head are callable apart, so that a caller
can run the head on chosen slots only.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hdlm.config.model import DenoiserConfig, padded
from hdlm.nn.attention import Attend, PerLayer, attention_for, rope_table, rotate
from hdlm.nn.cache import Cache
from hdlm.nn.conditioning import Modulation, SigmaEmbedding, add_gated, modulate
from hdlm.nn.draft import DraftHead
from hdlm.theory.layout import Slots
from hdlm.theory.levels import Runs

CHUNK_ELEMENTS = {"cuda": 2**27, "cpu": 2**24}  # scores over the vocabulary that exist at a time


class Norm(nn.Module):
    """LayerNorm without bias, or RMSNorm, of `width` features; statistics in at least float32."""

    def __init__(self, config: DenoiserConfig, width: int | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(config.width if width is None else width))
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
        self.qkv = nn.Linear(config.width, (config.heads + 2 * self._kv_heads) * self._size, bias=config.qkv_bias)
        self.out = nn.Linear(config.heads * self._size, config.width, bias=False)
        self.q_norm = Norm(config, self._size) if config.qk_norm else None
        self.k_norm = Norm(config, self._size) if config.qk_norm else None

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        return self.out(attend(*self.project(self.qkv(x), rope)).transpose(1, 2).flatten(2))

    def project(self, qkv: Tensor, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries and keys, and values, [batch, heads, slots, size], of qkv [batch, slots, heads * size]."""
        heads = self.normed(qkv).unflatten(-1, (-1, self._size)).transpose(1, 2)
        qk, v = heads.split([self._heads + self._kv_heads, self._kv_heads], dim=1)
        q, k = rotate(qk, *rope).split([self._heads, self._kv_heads], dim=1)
        return q, k, v

    def normed(self, qkv: Tensor) -> Tensor:
        """The same with each head's queries and keys normed, where this attention does that."""
        if self.q_norm is None or self.k_norm is None:
            return qkv
        sizes = [self._heads, self._kv_heads, self._kv_heads]
        q, k, v = qkv.unflatten(-1, (-1, self._size)).split(sizes, dim=-2)
        return torch.cat([self.q_norm(q), self.k_norm(k), v], dim=-2).flatten(-2)


class MLP(nn.Module):
    """GELU, or SwiGLU where gated (then `inner` holds the gate's rows first)."""

    def __init__(self, config: DenoiserConfig) -> None:
        super().__init__()
        self.gated = config.gated
        self.inner = nn.Linear(config.width, config.hidden_size * (1 + config.gated), bias=config.mlp_bias)
        self.outer = nn.Linear(config.hidden_size, config.width, bias=config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.activate(self.inner(x)))

    def activate(self, x: Tensor) -> Tensor:
        """What lies between the two products."""
        if self.gated:
            gate, x = x.chunk(2, dim=-1)
            return F.silu(gate) * x
        return F.gelu(x, approximate="tanh")


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
        attend: Attend,
    ) -> Tensor:
        if self.modulation is None or condition is None:
            x = x + self.dropout(self.attention(self.norm1(x), rope, attend))
            return x + self.dropout(self.mlp(self.norm2(x)))
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation.recomputed(condition)
        out = self.attention(modulate(self.norm1(x), shift1, scale1, runs), rope, attend)
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

    def chunks(self, count: int) -> list[slice]:
        """Even chunks of `count` rows, so that the scores of one fit the memory (CHUNK_ELEMENTS)."""
        most = max(1, CHUNK_ELEMENTS.get(self.weight.device.type, 2**24) // len(self.weight))
        size = max(1, -(-count // max(1, -(-count // most))))
        return [slice(start, min(start + size, count)) for start in range(0, count, size)]

    def forward(self, features: Tensor) -> Tensor:
        """Scores [..., outputs] of any features [..., width]."""
        return F.linear(features, self.weight, self.bias)[..., : self.outputs]


class Denoiser(nn.Module):
    """Slots in, scores per slot out. `trunk` and `head` are its two halves; `draft`, where there is one, lies between
    them for drafts alone."""

    def __init__(self, config: DenoiserConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Parameter(torch.empty(padded(config.embeddings), config.width))
        self.sigma = SigmaEmbedding(config.condition_width) if config.conditioned else None
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.head = Head(config)
        self.draft = DraftHead(config) if config.draft_width else None
        if not self.embedding.is_meta:  # torch would load its compiler, a second of work, to draw nothing
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
        if not isinstance(slots, Slots):
            raise TypeError(
                f"a Denoiser reads Slots, not {type(slots).__name__}: bundle.logits(token_ids) gives next-token "
                "logits, and hdlm.theory.layout builds the slots of any pass"
            )
        layout = slots.layout
        rope, inputs = self.rope(layout.position), (slots.token, slots.sigma, slots.weight)
        if cache is None:
            return self.run(*inputs, rope, layout.runs, attention_for(layout))
        cached = cache.open(layout)
        x = self.run(*inputs, rope, layout.runs, cached)
        cached.commit()
        return x

    def run(
        self,
        token: Tensor,
        sigma: Tensor,
        weight: Tensor,
        rope: tuple[Tensor, Tensor],
        runs: Runs,
        attend: Attend | PerLayer,
    ) -> Tensor:
        """The trunk on plain tensors (see `Slots`): attention is the same in all layers, or goes through a cache."""
        x, condition = self.embed(token, weight), self.condition(sigma)
        for layer, block in enumerate(self.blocks):
            x = block(x, condition, runs, rope, attend.at(layer) if isinstance(attend, PerLayer) else attend)
        return self.head.features(x, condition, runs)

    def condition(self, sigma: Tensor) -> Tensor | None:
        """What the blocks know of the noise [batch, levels], [batch, levels, condition_width]; None: nothing."""
        if self.sigma is None:
            return None
        return self.sigma(torch.zeros_like(sigma) if self.config.timeless else sigma)

    def rope(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the rotary embedding at `position` [slots] or [batch, slots]."""
        dtype = torch.promote_types(self.embedding.dtype, torch.float32)
        config = self.config
        return rope_table(position, config.head_size, config.rope_base, dtype, config.rope_scaling)

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

    def new_cache(self, batch: int, capacity: int) -> Cache:
        """An empty cache for `batch` rows of up to `capacity` positions, in this network's precision and place."""
        return Cache(
            layers=self.config.layers,
            batch=batch,
            kv_heads=self.config.num_kv_heads,
            head_width=self.config.head_size,
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
