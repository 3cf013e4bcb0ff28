"""Shape and style of a denoiser, checked. Knows no tensors."""

from dataclasses import dataclass
from typing import Any

from hdlm.config.fields import setting
from hdlm.theory import numbers

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"layers": 2, "width": 64, "heads": 4},
    "mini": {"layers": 6, "width": 384, "heads": 6},
    "small": {"layers": 12, "width": 768, "heads": 12},
    "medium": {"layers": 24, "width": 1024, "heads": 16},
}
# The largest sizes that are taken for a network's: beyond, a config is damaged, and products of sizes overflow.
LARGEST = {"vocab_size": 2**24, "layers": 2**12}
LARGEST_WIDTH = 2**18
PAD_TO = 64  # rows of the vocabulary matrices are padded to this multiple: tensor cores run odd sizes slowly


@dataclass(frozen=True)
class DenoiserConfig:
    """Shape and style of a denoiser. The defaults are the paper's block style.

    `timeless`: conditioned in form only, on no noise whatever the slots say, as published masked models are.
    `draft_width`: of the draft head's state; 0: there is none. `qkv_bias`, `qk_norm`: queries, keys and values have
    biases; each head's queries and keys are normed before they are rotated. `rope_scaling`: Llama 3's stretched rotary
    waves as (factor, low, high, length), see `nn.attention.stretched`; empty: they are as they are.
    """

    vocab_size: int
    layers: int
    width: int
    heads: int
    kv_heads: int | None = None
    head_width: int | None = None
    hidden: int | None = None
    mask_embedding: bool = True
    mask_output: bool = False
    conditioned: bool = True
    condition_width: int = 128
    conditioned_head: bool = True
    timeless: bool = False
    weighted_embedding: bool = False
    rms_norm: bool = False
    gated: bool = False
    mlp_bias: bool = True
    head_bias: bool = False
    tied: bool = False
    norm_eps: float = 1e-5
    rope_base: float = 10_000.0
    dropout: float = 0.0
    draft_width: int = setting(0, later=True)
    qkv_bias: bool = setting(False, later=True)
    qk_norm: bool = setting(False, later=True)
    rope_scaling: tuple[float, ...] = setting((), later=True)

    def __post_init__(self) -> None:
        for name in ("vocab_size", "layers", "width", "heads", "condition_width", "kv_heads", "head_width", "hidden"):
            value = getattr(self, name)
            optional = name in ("kv_heads", "head_width", "hidden") and value is None
            if not optional:
                numbers.integer(name, value, low=1, high=LARGEST.get(name, LARGEST_WIDTH))
        numbers.integer("draft_width", self.draft_width, low=0, high=LARGEST_WIDTH)
        for name in ("norm_eps", "rope_base"):
            numbers.positive(name, getattr(self, name))
        for name, value in vars(self).items():
            if isinstance(type(self).__dataclass_fields__[name].default, bool):
                numbers.boolean(name, value)
        self._check_rope_scaling()
        if self.head_width is None and self.width % self.heads:
            raise ValueError(f"heads = {self.heads} is not accepted: it must divide width = {self.width}")
        if self.heads % self.num_kv_heads:
            raise ValueError(f"kv_heads = {self.kv_heads} is not accepted: it must divide heads = {self.heads}")
        if self.head_size % 2:
            raise ValueError(f"head_width = {self.head_size} is not accepted: rotary embeddings need an even width")
        if not isinstance(self.dropout, int | float) or not 0 <= self.dropout < 1:
            raise ValueError(f"dropout = {self.dropout!r} is not accepted: it must be in [0, 1)")
        if self.tied and (self.mask_output > self.mask_embedding or self.head_bias):
            raise ValueError("tied = True is not accepted: the head must have no bias and no row that is not embedded")
        if self.weighted_embedding and not self.mask_embedding:
            raise ValueError(
                "weighted_embedding = True is not accepted: it mixes with MASK's embedding, which is not there"
            )

    def _check_rope_scaling(self) -> None:
        if not self.rope_scaling:
            return
        if len(self.rope_scaling) != 4:
            raise ValueError(
                f"rope_scaling = {self.rope_scaling!r} is not accepted: it must be empty, or factor, low, high, length"
            )
        factor, low, high, _ = (numbers.positive("rope_scaling", value) for value in self.rope_scaling)
        if factor < 1 or low >= high:
            raise ValueError(
                f"rope_scaling = {self.rope_scaling!r} is not accepted: factor must be at least 1, low below high"
            )

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.head_width if self.head_width is not None else self.width // self.heads

    @property
    def num_kv_heads(self) -> int:
        """Key and value heads: as many as query heads unless grouped."""
        return self.kv_heads if self.kv_heads is not None else self.heads

    @property
    def hidden_size(self) -> int:
        """Width inside the MLP: 4 x width unless said otherwise."""
        return self.hidden if self.hidden is not None else 4 * self.width

    @property
    def reads_noise(self) -> bool:
        """Whether outputs depend on the noise times at all, and not on the tokens alone."""
        return (self.conditioned and not self.timeless) or self.weighted_embedding

    @property
    def embeddings(self) -> int:
        """Tokens that can be read: the real ones, and MASK."""
        return self.vocab_size + self.mask_embedding

    @property
    def outputs(self) -> int:
        """Tokens that are scored: the real ones, and MASK in published heads."""
        return self.vocab_size + self.mask_output


def padded(rows: int) -> int:
    """`rows` rounded up to a multiple of PAD_TO."""
    return -(-rows // PAD_TO) * PAD_TO


def preset(name: str, vocab_size: int, **changes: Any) -> DenoiserConfig:
    """A denoiser by its size: tiny, mini, small (the paper's) or medium, with any field changed."""
    return DenoiserConfig(vocab_size=vocab_size, **(PRESETS[numbers.choice("preset", name, PRESETS)] | changes))
