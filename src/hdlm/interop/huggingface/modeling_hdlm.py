"""HDLM language models for transformers: autoregression, diffusion and what lies between, by one network.

A network of this kind reads two sorts of tokens. The *text so far* is settled: each of its tokens sees itself and those
before it. A *window* of tokens that are still masked or noisy sees all the text before it and itself whole.

    forward    the text so far alone: the next token after each, as in any causal language model
    denoise    a window after the text: which token belongs at each of its positions
    generate   as always, one token after the other; with `hdlm_schedule`, by windows:

    model.generate(**inputs, max_new_tokens=64)                                  # autoregression
    model.generate(**inputs, max_new_tokens=64, hdlm_schedule="block:16")        # 16 tokens at a time, in 16 steps
    model.generate(**inputs, max_new_tokens=64, hdlm_schedule="flat", hdlm_rate=4)  # all together, in 16 steps
    model.generate(**inputs, hdlm_schedule="flat")                               # fills the MASK tokens of its input

Needs torch and transformers. Written by `hdlm export`; every such model has the same file, and config.json tells them
apart. The package hdlm reads the folder back (`hdlm.load`) and has more: bounds, other samplers, speculation, training.
"""

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import DynamicCache, GenerationConfig, GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils import logging

from .configuration_hdlm import HDLMConfig

logger = logging.get_logger(__name__)

FREQUENCIES = 256
MAX_SIGMA = 100.0  # more noise than this is the same noise
SAMPLERS = ("posterior", "original", "certain")
SCHEDULES = ("block", "slide", "flat")
# What `generate` takes beside `hdlm_schedule`; all else would change nothing there, and is refused.
TAKEN = {"attention_mask", "max_new_tokens", "num_return_sequences", "use_cache", "eos_token_id", "pad_token_id"}
TAKEN |= {"do_sample", "temperature", "top_k", "top_p"}


class Norm(nn.Module):
    """LayerNorm without bias, or RMSNorm; statistics in at least float32."""

    def __init__(self, config: HDLMConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(config.hidden_size))
        self.rms, self.eps = config.rms_norm, config.norm_eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        weight, shape = self.weight.to(wide.dtype), (x.shape[-1],)
        if self.rms:
            return F.rms_norm(wide, shape, weight, self.eps).to(x.dtype)
        return F.layer_norm(wide, shape, weight, None, self.eps).to(x.dtype)


class Attention(nn.Module):
    """Rotary attention; queries, keys and values are one projection, grouped where there are fewer of the latter."""

    def __init__(self, config: HDLMConfig, layer: int) -> None:
        super().__init__()
        self.layer, self.head_dim = layer, config.head_dim
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.qkv = nn.Linear(config.hidden_size, (self.heads + 2 * self.kv_heads) * self.head_dim, bias=False)
        self.out = nn.Linear(self.heads * self.head_dim, config.hidden_size, bias=False)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor | None, cache: Any) -> Tensor:
        heads = self.qkv(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        qk, v = heads.split([self.heads + self.kv_heads, self.kv_heads], dim=1)
        q, k = rotate(qk, *rope).split([self.heads, self.kv_heads], dim=1)
        if cache is not None:
            k, v = cache.update(k, v, self.layer)
        mixed = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=self.heads != self.kv_heads)
        return self.out(mixed.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """GELU, or SwiGLU where gated (`inner` then holds the gate's rows first)."""

    def __init__(self, config: HDLMConfig) -> None:
        super().__init__()
        self.gated, hidden = config.gated_mlp, config.intermediate_size
        self.inner = nn.Linear(config.hidden_size, hidden * (1 + self.gated), bias=config.mlp_bias)
        self.outer = nn.Linear(hidden, config.hidden_size, bias=config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        if not self.gated:
            return self.outer(F.gelu(self.inner(x), approximate="tanh"))
        gate, x = self.inner(x).chunk(2, dim=-1)
        return self.outer(F.silu(gate) * x)


class Noise(nn.Module):
    """Total noise [batch, slots] as vectors [batch, slots, condition_size], by which blocks are conditioned."""

    def __init__(self, config: HDLMConfig) -> None:
        super().__init__()
        self.inner = nn.Linear(FREQUENCIES, config.condition_size)
        self.outer = nn.Linear(config.condition_size, config.condition_size)

    def forward(self, sigma: Tensor) -> Tensor:
        half = FREQUENCIES // 2
        frequency = torch.exp(torch.arange(half, device=sigma.device) * (-math.log(10_000) / half))
        angle = sigma.float().clamp(max=MAX_SIGMA).unsqueeze(-1) * frequency
        waves = torch.cat([angle.cos(), angle.sin()], dim=-1).to(self.inner.weight.dtype)
        return F.silu(self.outer(F.silu(self.inner(waves))))


class Block(nn.Module):
    """Attention and MLP behind norms; where conditioned, each is shifted, scaled and gated by the noise (adaLN)."""

    def __init__(self, config: HDLMConfig, layer: int) -> None:
        super().__init__()
        self.norm1, self.attention = Norm(config), Attention(config, layer)
        self.norm2, self.mlp = Norm(config), MLP(config)
        self.modulation = nn.Linear(config.condition_size, 6 * config.hidden_size) if config.conditioned else None
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, x: Tensor, condition: Tensor | None, rope: tuple[Tensor, Tensor], mask: Tensor | None, cache: Any
    ) -> Tensor:
        if self.modulation is None or condition is None:
            x = x + self.dropout(self.attention(self.norm1(x), rope, mask, cache))
            return x + self.dropout(self.mlp(self.norm2(x)))
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(condition).chunk(6, dim=-1)
        x = x + gate1 * self.dropout(self.attention(self.norm1(x) * (1 + scale1) + shift1, rope, mask, cache))
        return x + gate2 * self.dropout(self.mlp(self.norm2(x) * (1 + scale2) + shift2))


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary embedding of x [batch, heads, slots, head_dim], its two halves being the coordinates."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1).to(x.dtype)


def exact(device: torch.device) -> torch.dtype:
    """The most exact numbers that a device has."""
    return torch.float32 if device.type == "mps" else torch.float64


def total_noise(times: Tensor, noise: dict[str, Any]) -> Tensor:
    """Sigma = -log alpha at times in [0, 1], 0 being clean; alpha is the probability that noise has not come yet."""
    kind, settings = noise["kind"], noise.get("settings") or {}
    if kind == "geometric":
        ratio = math.log(settings["sigma_max"] / settings["sigma_min"])
        return settings["sigma_max"] / math.expm1(ratio) * torch.expm1(times * ratio)
    if kind in ("linear", "loglinear"):
        left = 0.0 if kind == "linear" else settings.get("eps", 1e-3)
        alpha, lost = (1 - times) + left * times, (1 - left) * times
    elif kind == "cosine":
        alpha, lost = torch.sin((1 - times) * (math.pi / 2)), 2 * torch.sin(times * (math.pi / 4)) ** 2
    else:
        raise ValueError(f"noise.kind = {kind!r} is not accepted: it must be linear, loglinear, cosine or geometric")
    # Of alpha and 1 - alpha the smaller is the accurate one.
    return torch.where(lost < 0.5, -torch.log1p(-lost.clamp(max=0.5)), -torch.log(alpha))


class HDLMForCausalLM(PreTrainedModel, GenerationMixin):
    """The network, its next-token pass (`forward`), its windows (`denoise`), and both ways to write (`generate`)."""

    config_class = HDLMConfig
    config: HDLMConfig
    _no_split_modules = ["Block"]  # noqa: RUF012, a list as transformers has it
    _supports_sdpa = True
    _tied_weights_keys = {"head.weight": "embedding.weight"}  # noqa: RUF012
    _keys_to_ignore_on_load_unexpected = [r"^draft\."]  # noqa: RUF012, hdlm's draft head, which serves its speculation

    def __init__(self, config: HDLMConfig) -> None:
        super().__init__(config)
        rows = config.vocab_size + config.mask_embedding
        self.embedding = nn.Embedding(rows, config.hidden_size)
        self.noise = Noise(config) if config.conditioned else None
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = Norm(config)
        conditioned = config.conditioned and config.conditioned_head
        self.modulation = nn.Linear(config.condition_size, 2 * config.hidden_size) if conditioned else None
        outputs = rows if config.tie_word_embeddings else config.vocab_size + config.mask_output
        self.head = nn.Linear(config.hidden_size, outputs, bias=config.head_bias)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Small random weights, for a network that is made from its configuration alone."""
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
        if isinstance(module, Norm):
            nn.init.ones_(module.weight)

    def get_input_embeddings(self) -> nn.Module:
        """The embedding; its last row is MASK's, where there is one."""
        return self.embedding

    def get_output_embeddings(self) -> nn.Module:
        """The head."""
        return self.head

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits of the next token after each of `input_ids` [batch, slots], the first of which should be BOS.

        `attention_mask` [batch, cached and new]: 0 where there is padding, which is on the left. `labels`: the tokens
        themselves, as always; -100 is left out. `logits_to_keep`: of so many last slots alone; 0: of all.
        """
        if not self.config.shifted:
            raise ValueError(
                "this network is aligned: it predicts the tokens of a window and has no law of the next one. "
                'generate(..., hdlm_schedule="flat") or "block" writes with it, and denoise(...) is its pass'
            )
        if kwargs.get("output_attentions") or kwargs.get("output_hidden_states"):
            raise ValueError("output_attentions and output_hidden_states are not accepted: this network keeps neither")
        if past_key_values is None and use_cache:
            past_key_values = DynamicCache()
        held = 0 if past_key_values is None else past_key_values.get_seq_length()
        reach = torch.arange(held, held + input_ids.shape[1])
        sigma = torch.zeros(1, 1, device=input_ids.device)
        x = self._features(input_ids, sigma, reach, attention_mask, past_key_values, position_ids=position_ids)
        logits = self._scores(x[:, -logits_to_keep:])
        loss = None
        if labels is not None:
            count = kwargs.get("num_items_in_batch")  # a Trainer's, over all micro-batches of a step
            pairs = logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten().to(logits.device)
            loss = F.cross_entropy(*pairs) if count is None else F.cross_entropy(*pairs, reduction="sum") / count
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past_key_values)  # pyright: ignore[reportArgumentType]

    def denoise(
        self,
        tokens: Tensor,
        times: Tensor,
        start: int,
        *,
        given: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
    ) -> Tensor:
        """Scores [batch, window, vocab_size] of the clean tokens of a window: columns `start` to the last of `tokens`.

        `tokens` [batch, columns]: text, then the window, in which a token, `mask_token_id` or noise may stand; `times`
        [window] in (0, 1]: how noisy each column of it is, 1 being all noise; `given` [batch, columns]: tokens of the
        window that are certain all the same. With `past_key_values` (a `DynamicCache`) text that is settled for good
        enters it, and is not computed again.
        """
        config, cache = self.config, past_key_values
        columns, first = tokens.shape[1], start - config.shifted  # shifted: the slot before a token predicts it
        held = 0 if cache is None else cache.get_seq_length()
        if not held <= first < columns or len(times) != columns - start:
            raise ValueError(
                f"start = {start} with {len(times)} times is not accepted: of {columns} columns {held} are cached, a "
                f"window begins at {held + config.shifted} or later, and each of its columns has a time"
            )
        settled = torch.arange(held, first)
        if config.block_causal:
            width = config.hyperschedules[0]["width"]
            settled = ((settled // width + 1) * width).clamp(max=first) - 1
        reach = torch.cat([settled, torch.full((columns - first,), columns - 1)])
        noise = total_noise(times.double().cpu(), config.process["noise"])
        # A slot is told the noise of what it predicts; the last one of a shifted window predicts nothing that is read.
        told = torch.cat([noise.new_zeros(first - held), noise, noise[-1:] if config.shifted else noise[:0]])
        wide, weight = torch.promote_types(self.dtype, torch.float32), None
        if config.weighted_embedding:
            shares = torch.exp(-(config.process.get("gamma") or 0.0) * noise)
            weight = torch.cat([shares.new_ones(start - held), shares]).to(tokens.device, wide)
            weight = weight if given is None else torch.where(given[:, held:], 1.0, weight)
        sigma = told.unsqueeze(0).to(tokens.device, wide)
        x = self._features(tokens[:, held:], sigma, reach, attention_mask, cache, weight=weight)
        if cache is not None:
            cache.crop(first - columns)  # the window was never settled
        return self._scores(x[:, first - held : columns - config.shifted - held])

    def _features(
        self,
        tokens: Tensor,
        sigma: Tensor,
        reach: Tensor,
        attention_mask: Tensor | None,
        cache: Any,
        *,
        position_ids: Tensor | None = None,
        weight: Tensor | None = None,
    ) -> Tensor:
        """What the head reads, [batch, slots, hidden_size]: `sigma` is the noise of slots, `reach` how far they see.

        `weight` [batch or 1, slots]: the share of its own embedding that a noisy token has; the rest is MASK's.
        """
        slots, columns = tokens.shape[1], int(reach[-1]) + 1
        held = columns - slots
        if attention_mask is not None and attention_mask.ndim != 2:
            raise ValueError("attention_mask is not accepted: it must be [batch, columns]; static caches are not held")
        padded = attention_mask is not None and not bool(attention_mask[:, :columns].all())
        if position_ids is None:
            position_ids = torch.arange(held, columns, device=tokens.device).unsqueeze(0)
            if padded and attention_mask is not None:
                position_ids = (attention_mask.cumsum(1) - 1).clamp(min=0)[:, held:columns]
        column = torch.arange(columns)
        seen = column <= reach.unsqueeze(-1)  # [slots, columns]
        mask = None if seen.all() else seen.to(tokens.device).view(1, 1, slots, columns)
        if padded and attention_mask is not None:
            itself = (column == column[held:].unsqueeze(-1)).to(tokens.device)  # padding sees itself: no row is empty
            real = attention_mask[:, None, :columns].bool()
            mask = (seen.to(tokens.device) & real | itself).unsqueeze(1)
        x = self.embedding(tokens)
        if weight is not None:
            x = torch.lerp(self.embedding.weight[self.config.vocab_size], x, weight.to(x.dtype).unsqueeze(-1))
        condition = None
        if self.noise is not None:
            condition = self.noise(torch.zeros_like(sigma) if self.config.timeless else sigma)
        rope = self._rope(position_ids, x.dtype)
        for block in self.blocks:
            x = block(x, condition, rope, mask, cache)
        x = self.norm(x)
        if self.modulation is not None and condition is not None:
            shift, scale = self.modulation(condition).chunk(2, dim=-1)
            x = x * (1 + scale) + shift
        return x

    def _rope(self, position: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines [batch or 1, 1, slots, head_dim / 2] at positions [batch or 1, slots]."""
        width, device = self.config.head_dim, position.device
        exponent = torch.arange(0, width, 2, device=device, dtype=exact(device)) / width
        angle = (position.unsqueeze(-1).to(exponent.dtype) * self.config.rope_theta**-exponent).unsqueeze(1)
        wide = torch.promote_types(dtype, torch.float32)
        return angle.cos().to(wide), angle.sin().to(wide)

    def _scores(self, features: Tensor) -> Tensor:
        """The head's scores of the real tokens, [..., vocab_size]."""
        return self.head(features)[..., : self.config.vocab_size]

    @torch.no_grad()
    def generate(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        inputs: Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        *,
        hdlm_schedule: str | None = None,
        hdlm_rate: float | None = None,
        hdlm_steps: int | None = None,
        hdlm_sampler: str | None = None,
        hdlm_threshold: float | None = None,
        **kwargs: Any,
    ) -> Any:
        """Text after `inputs` [batch, columns]: token by token as always, or by `hdlm_schedule` in windows.

        `hdlm_schedule`: "block:16" writes 16 tokens together, then the next 16; "slide:16" moves a window along; "flat"
        writes all new tokens in one; a width that is left out is the trained one. `hdlm_rate`: tokens a step (1), or
        `hdlm_steps`: steps of a window. Where `inputs` hold MASK (`config.mask_token_id`), "flat" fills these and adds
        nothing, whatever `max_new_tokens`. `hdlm_sampler`: "original" unmasks at random, as masked diffusion does
        ("posterior" is the same where MASK is all the noise); "certain" where the network is surest, and at once where
        it is surer than `hdlm_threshold`. `do_sample`, `temperature`, `top_k`, `top_p`, `max_new_tokens`,
        `num_return_sequences`, `use_cache` and the special ids mean what they always do.
        """
        settings = {"hdlm_rate": hdlm_rate, "hdlm_steps": hdlm_steps}
        settings |= {"hdlm_sampler": hdlm_sampler, "hdlm_threshold": hdlm_threshold}
        named = kwargs.pop("input_ids", None)
        tokens = named if inputs is None else inputs
        if hdlm_schedule is not None:
            if others := sorted(kwargs.keys() - TAKEN):
                raise ValueError(f"{', '.join(others)}: not accepted together with hdlm_schedule")
            asked = copy.deepcopy(self.generation_config if generation_config is None else generation_config)
            assert asked is not None
            mask = kwargs.pop("attention_mask", None)
            asked.update(**kwargs)
            return Writer(self, asked, hdlm_schedule, settings).write(tokens, mask)
        if said := [name for name, value in settings.items() if value is not None]:
            raise ValueError(f"{', '.join(said)}: not accepted without hdlm_schedule")
        if not self.config.shifted:
            raise ValueError(
                "this network is aligned, so that it has no law of the next token and does not write one after the "
                'other: pass hdlm_schedule, such as "flat" or "block:16"'
            )
        if tokens is not None and self.config.mask_token_id is not None and (tokens == self.config.mask_token_id).any():
            raise ValueError('input_ids hold MASK: pass hdlm_schedule="flat" to have them filled')
        return super().generate(tokens, generation_config, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]


@dataclass(frozen=True)
class Levels:
    """A hyperschedule: column i of a text enters at step `entry[i]`, full of noise, and is clean `top` steps later."""

    entry: Tensor  # [columns], whole numbers, never falling
    top: int

    def walk(self) -> Iterator[tuple[int, int, Tensor, Tensor]]:
        """Of each step the window's begin and end, and its noise times [window] before and after."""
        for step in range(int(self.entry[-1]) + self.top):
            before = (self.entry + self.top - step).clamp(0, self.top)
            after = (self.entry + self.top - step - 1).clamp(0, self.top)
            start, stop = int((before == 0).sum()), int((self.entry <= step).sum())
            yield start, stop, before[start:stop].double() / self.top, after[start:stop].double() / self.top


class Writer:
    """One call of `generate` by a hyperschedule: what is asked for, checked, and the loop that does it.

    `asked`: how to draw, and when to stop; `said`: the settings of `generate` that begin with hdlm.
    """

    def __init__(self, model: HDLMForCausalLM, asked: GenerationConfig, schedule: str, said: dict[str, Any]) -> None:
        self.model, self.config, self.asked = model, model.config, asked
        own = {name: getattr(asked, name, None) if value is None else value for name, value in said.items()}
        self.sampler = own["hdlm_sampler"] or "posterior"
        self.threshold = own["hdlm_threshold"] if self.sampler == "certain" else said["hdlm_threshold"]
        self.rate, self.steps = own["hdlm_rate"], own["hdlm_steps"]
        # The shares of noise that replaces tokens instead of masking them.
        self.gamma, self.epsilon = (self.config.process.get(name) or 0.0 for name in ("gamma", "epsilon"))
        self.kind, mark, width = schedule.partition(":")
        trained = [one.get("width") or 0 for one in self.config.hyperschedules if one["kind"] == self.kind]
        self.width = int(width) if width.isdecimal() else 0 if mark or not trained else int(trained[0])  # 0: none
        if self.kind not in SCHEDULES or (self.kind == "flat" and mark):
            raise ValueError(f"hdlm_schedule = {schedule!r} is not accepted: write block:16, slide:16 or flat")
        if self.kind != "flat" and self.width < 1:
            raise ValueError(f"hdlm_schedule = {schedule!r} is not accepted: its window needs a width, as in block:16")
        self._check_network(schedule)
        self._check_settings()

    def _check_network(self, schedule: str) -> None:
        """Refuse what the network cannot do, by name."""
        config, own = self.config, self.config.hyperschedules[0].get("width")
        if config.mask_token_id is None:
            raise ValueError("hdlm_schedule is not accepted: this network has no MASK to begin from")
        if config.block_causal and self.kind != "flat" and (self.kind, self.width) != ("block", own):
            raise ValueError(f"hdlm_schedule = {schedule!r} is not accepted: this network has block:{own} and flat")
        fit = [name for name in SAMPLERS if name != "posterior" or not (self.gamma or self.epsilon)]
        if self.sampler not in fit:
            raise ValueError(
                f"hdlm_sampler = {self.sampler!r} is not accepted for {config.process['kind']} noise: it must be "
                f"{' or '.join(fit)} here, and the package hdlm has the others"
            )

    def _check_settings(self) -> None:
        """Refuse settings that mean nothing, by name."""
        rate, steps, threshold = self.rate, self.steps, self.threshold
        if threshold is not None and (self.sampler != "certain" or not 0 <= threshold <= 1):
            raise ValueError(f"hdlm_threshold = {threshold!r} is not accepted: it is in [0, 1], and for certain alone")
        if rate is not None and (steps is not None or not 0 < rate < math.inf):
            raise ValueError(f"hdlm_rate = {rate!r} is not accepted: it is above 0, and not together with hdlm_steps")
        if steps is not None and (not isinstance(steps, int) or steps < 1):
            raise ValueError(f"hdlm_steps = {steps!r} is not accepted: it is a whole number from 1 on")

    def write(self, tokens: Tensor | None, attention_mask: Tensor | None) -> Tensor:
        """Prompts and what follows them, or what fills their gaps: [batch, columns], padded after an end of text."""
        if tokens is None:
            tokens = torch.tensor([[self.config.bos_token_id] if self.config.shifted else []], dtype=torch.long)
        tokens = tokens.to(self.model.device)
        if self.config.shifted and tokens.shape[1] == 0:
            raise ValueError("input_ids are not accepted: this network begins with BOS, which must be there")
        real = torch.ones_like(tokens) if attention_mask is None else attention_mask.to(tokens)
        if (real.diff(dim=1) < 0).any():
            raise ValueError("attention_mask is not accepted: prompts must be padded on the left")
        each = self.asked.num_return_sequences or 1
        tokens, real = tokens.repeat_interleave(each, 0), real.repeat_interleave(each, 0)
        gaps = bool(((tokens == self.config.mask_token_id) & (real > 0)).any())
        if gaps and self.kind != "flat":
            raise ValueError('input_ids hold MASK: gaps are filled together, by hdlm_schedule="flat"')
        if not gaps and not self.config.block_causal:
            return self._continue(tokens, real)
        write, rows = self._fill if gaps else self._continue, []
        for row, there in zip(tokens, real > 0, strict=True):  # windows lie in each row in a place of its own
            rows.append(torch.cat([row[~there], write(row[there].unsqueeze(0), None)[0]]))
        return torch.stack(rows)

    def _top(self, width: int) -> int:
        """Steps in which a window of so many tokens becomes clean."""
        return self.steps or max(1, math.floor(width / (self.rate or 1.0) + 0.5))

    def _continue(self, tokens: Tensor, real: Tensor | None) -> Tensor:
        """New tokens after every row."""
        config, given = self.config, tokens.shape[1]
        context = config.max_position_embeddings + config.shifted
        length = self.asked.max_new_tokens or max(context - given, 1)  # what fills the context
        if given + length > context:
            told = f"{given + length} columns are more than the {context} that this network was trained on"
            if self.kind == "flat":
                raise ValueError(f"{told}, and flat has one window")
            logger.warning_once(told)
        begin = int(config.shifted) if self.kind == "flat" else given
        width = min(self.width or length, length)
        top = self._top(width)
        if config.block_causal and self.kind == "block":  # blocks lie where they did in training
            begin, top = given // self.width * self.width, math.floor(self.width * top / width + 0.5)
            width = self.width
        column = torch.arange(given + length - begin)
        entries = {"flat": 0 * column, "block": column // width * top, "slide": column * top // width}
        known = torch.arange(given + length, device=tokens.device).expand(len(tokens), -1) < given
        tokens = F.pad(tokens, (0, length), value=config.mask_token_id)
        real = None if real is None else F.pad(real, (0, length), value=1)
        said = self.asked.eos_token_id
        ends = torch.tensor([] if said is None else said, dtype=torch.long, device=tokens.device).flatten()
        return self._cut(self._run(tokens, known, real, begin, Levels(entries[self.kind], top), ends), given, ends)

    def _fill(self, tokens: Tensor, real: None) -> Tensor:
        """One row whose MASK tokens are filled, all in one window that holds what is right of them too."""
        config, gaps = self.config, tokens[0] == self.config.mask_token_id
        if not gaps.any():
            return tokens
        columns, begin, context = tokens.shape[1], int(gaps.nonzero()[0]), config.max_position_embeddings
        whole = any(one["kind"] == "flat" for one in config.hyperschedules)
        widest = context if whole else max((one.get("width") or 0 for one in config.hyperschedules), default=0)
        if whole:  # windows over all that the network can read are what it knows
            begin = int(config.shifted)
        elif config.block_causal:
            begin = begin // widest * widest
        if columns - begin > widest or widest <= 1:
            raise ValueError(
                f"the gap cannot be filled: its window holds {columns - begin} tokens, all that is right of the gap "
                f"among them, and the widest window that this network was trained on {widest}"
            )
        top = self.steps or max(1, round(int(gaps.sum()) / (self.rate or 1.0)))
        levels = Levels(torch.zeros(columns - begin, dtype=torch.long), top)
        return self._run(tokens, ~gaps.unsqueeze(0), real, begin, levels, tokens.new_empty(0))

    def _run(
        self, tokens: Tensor, known: Tensor, real: Tensor | None, begin: int, levels: Levels, ends: Tensor
    ) -> Tensor:
        """The loop: along the levels, from MASK to text. What is `known` [batch, columns] never changes."""
        tokens, ended = tokens.clone(), torch.zeros(len(tokens), 1, dtype=torch.bool, device=tokens.device)
        cache = None if self.kind == "flat" or self.asked.use_cache is False else DynamicCache()
        for start, stop, t, s in levels.walk():
            start, stop = begin + start, begin + stop
            ended |= (torch.isin(tokens[:, begin:start], ends) & ~known[:, begin:start]).any(1, keepdim=True)
            if ended.all():
                break
            window, last = tokens[:, start:stop], (s == 0).to(tokens.device)
            free = ~known[:, start:stop] & ~ended & (s < t).to(tokens.device)
            waiting, due = free & (window == self.config.mask_token_id), None
            if self.sampler == "certain":
                due = self._due(waiting, free, last, s)
                chosen = waiting & (due > 0)
            else:
                stay = (self._masked(s) / self._masked(t)).to(free.device, exact(free.device))
                chosen = waiting & (torch.rand(window.shape, dtype=stay.dtype, device=free.device) >= stay)
            if not chosen.any():
                continue  # nothing changes in this step, and the network need not be asked
            where = {"given": known[:, :stop], "attention_mask": real, "past_key_values": cache}
            law = self._law(self.model.denoise(tokens[:, :stop], t, start, **where), t)
            if due is not None:
                chosen = chosen & self._surest(law, chosen, due, last)
            tokens[:, start:stop] = torch.where(chosen, self._draw(law), window)
        return tokens

    def _masked(self, times: Tensor) -> Tensor:
        """The probability that a token is MASK at these times."""
        return -torch.expm1(-(1 - self.gamma) * total_noise(times, self.config.process["noise"]))

    def _law(self, scores: Tensor, times: Tensor) -> Tensor:
        """Log of the law of the clean token where MASK stands, of scores [batch, window, vocab_size]."""
        law = scores.to(torch.promote_types(scores.dtype, torch.float32)).log_softmax(-1)
        if self.gamma == 0 or self.config.parameterization in ("clean", "hdce"):
            return law
        replaced = self.gamma * total_noise(times, self.config.process["noise"]).unsqueeze(-1)
        replaced = replaced.to(law.device, exact(law.device))  # MASK's scores are that law with uniform noise mixed in
        clean = (law.to(replaced.dtype).exp() * replaced.exp() - replaced.expm1() / law.shape[-1]).clamp(min=0)
        return (clean / clean.sum(-1, keepdim=True)).log().to(law.dtype)

    def _due(self, waiting: Tensor, free: Tensor, last: Tensor, times: Tensor) -> Tensor:
        """How many MASKs [batch, 1] each row has beyond what noise leaves at these times; of a last step all."""
        share = (self._masked(times) / self._masked(torch.ones_like(times))).to(free.device, exact(free.device))
        left = ((share * free).sum(1, keepdim=True) + 0.5).floor().long()
        return (waiting.sum(1, keepdim=True) - left).maximum((waiting & last).sum(1, keepdim=True))

    def _surest(self, law: Tensor, waiting: Tensor, due: Tensor, last: Tensor) -> Tensor:
        """Which of the waiting positions [batch, window] are settled: the `due` surest, and all above the threshold."""
        certainty = law.exp().amax(-1).to(exact(law.device)).round(decimals=9).masked_fill(~waiting, -math.inf)
        order = certainty.masked_fill(waiting & last, math.inf).argsort(dim=-1, descending=True, stable=True)
        return (order.argsort(dim=-1) < due) | (certainty > (1.0 if self.threshold is None else self.threshold))

    def _draw(self, law: Tensor) -> Tensor:
        """A token for each position from log laws [batch, window, vocab_size], as `asked` says."""
        asked = self.asked
        if not asked.do_sample or asked.temperature == 0:
            return law.argmax(-1)
        law = (law / (1.0 if asked.temperature is None else asked.temperature)).log_softmax(-1)
        if asked.top_k and asked.top_k < law.shape[-1]:
            law = law.masked_fill(law < law.topk(asked.top_k, dim=-1).values[..., -1:], -math.inf).log_softmax(-1)
        weights = law.to(exact(law.device)).exp()
        if asked.top_p is not None and asked.top_p < 1:
            ordered, order = weights.sort(dim=-1, descending=True, stable=True)
            beyond = ordered.cumsum(-1) - ordered >= asked.top_p
            weights = weights.masked_fill(torch.zeros_like(beyond).scatter_(-1, order, beyond), 0.0)
        running = weights.cumsum(-1)
        point = torch.rand(running.shape[:-1], dtype=running.dtype, device=running.device).unsqueeze(-1)
        # Where rounding puts the point at the very end, the last token with any weight.
        found = (running <= point * running[..., -1:]).sum(-1)
        return found.minimum((running < running[..., -1:]).sum(-1))

    def _cut(self, tokens: Tensor, given: int, ends: Tensor) -> Tensor:
        """Padding after each row's first new end of text."""
        if ends.numel() == 0:
            return tokens
        end = torch.isin(tokens, ends) & (torch.arange(tokens.shape[1], device=tokens.device) >= given)
        pad = self.asked.pad_token_id if self.asked.pad_token_id is not None else int(ends[0])
        return tokens.masked_fill((end.cumsum(1) - end.long()) > 0, pad)
