"""The configuration of an HDLM language model for transformers: config.json as an object.

Needs transformers alone. `modeling_hdlm.py` beside it is the network.
"""

from typing import Any

from transformers import PretrainedConfig


class HDLMConfig(PretrainedConfig):
    """The shape of a network, the noise that it was trained on, and the order in which it may write.

    The network:

    - `vocab_size`: real tokens; MASK, where there is one, has the next id, `mask_token_id`, and is never predicted.
    - `hidden_size`, `intermediate_size` (4 x hidden_size), `num_hidden_layers`, `num_attention_heads`,
      `num_key_value_heads` (as many as heads), `head_dim` (hidden_size / heads), `rope_theta`, `norm_eps`, `dropout`.
    - `rms_norm` or LayerNorm; `gated_mlp`: SwiGLU, else GELU; `mlp_bias`, `head_bias`; `tie_word_embeddings`.
    - `conditioned`: blocks are told how noisy a position is (adaLN), through `condition_size` numbers; `timeless`: in
      form only; `conditioned_head`: the head is told too; `weighted_embedding`: a noisy token fades into MASK.
    - `mask_embedding`, `mask_output`: whether MASK can be read, and whether the head has a row for it, never used.
    - `draft_width`: of a draft head that lies beside the network for the package hdlm; nothing here reads it.

    What its outputs mean:

    - `shifted`: a slot predicts the next token, else its own; `next_token`: the text so far learned to do so too, as
      in autoregression; `block_causal`: a token of the text so far sees its whole block.
    - `process`: its `kind` (absorbing, gamma, epsilon or uniform), the share of uniform noise under that name, and its
      `noise` over time; `parameterization`: what the outputs are, `clean` being logits of the clean token.
    - `hyperschedules`: those that it was trained on, its own first; `max_position_embeddings`: tokens it was trained on
      at once, BOS not counted.
    """

    model_type = "hdlm"

    def __init__(
        self,
        vocab_size: int = 256,
        hidden_size: int = 64,
        intermediate_size: int | None = None,
        num_hidden_layers: int = 2,
        num_attention_heads: int = 4,
        num_key_value_heads: int | None = None,
        head_dim: int | None = None,
        max_position_embeddings: int = 256,
        rope_theta: float = 10_000.0,
        norm_eps: float = 1e-5,
        dropout: float = 0.0,
        rms_norm: bool = False,
        gated_mlp: bool = False,
        mlp_bias: bool = True,
        head_bias: bool = False,
        conditioned: bool = True,
        condition_size: int = 128,
        conditioned_head: bool = True,
        timeless: bool = False,
        weighted_embedding: bool = False,
        mask_embedding: bool = True,
        mask_output: bool = False,
        draft_width: int = 0,
        shifted: bool = True,
        next_token: bool = True,
        block_causal: bool = False,
        parameterization: str = "clean",
        process: dict[str, Any] | None = None,
        hyperschedules: list[dict[str, Any]] | None = None,
        bos_token_id: int | None = None,
        eos_token_id: int | None = None,
        pad_token_id: int | None = None,
        tie_word_embeddings: bool = False,
        **kwargs: Any,
    ) -> None:
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.intermediate_size = 4 * hidden_size if intermediate_size is None else intermediate_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.num_key_value_heads = num_attention_heads if num_key_value_heads is None else num_key_value_heads
        self.head_dim = hidden_size // num_attention_heads if head_dim is None else head_dim
        self.max_position_embeddings = max_position_embeddings
        self.rope_theta = rope_theta
        self.norm_eps = norm_eps
        self.dropout = dropout
        self.rms_norm = rms_norm
        self.gated_mlp = gated_mlp
        self.mlp_bias = mlp_bias
        self.head_bias = head_bias
        self.conditioned = conditioned
        self.condition_size = condition_size
        self.conditioned_head = conditioned_head
        self.timeless = timeless
        self.weighted_embedding = weighted_embedding
        self.mask_embedding = mask_embedding
        self.mask_output = mask_output
        self.draft_width = draft_width
        self.shifted = shifted
        self.next_token = next_token
        self.block_causal = block_causal
        self.parameterization = parameterization
        noise = {"kind": "linear", "settings": {}}
        self.process = {"kind": "absorbing", "noise": noise} if process is None else process
        own = {"kind": "block", "length": max_position_embeddings, "width": 16}
        self.hyperschedules = [own] if hyperschedules is None else hyperschedules
        ids = {"bos_token_id": bos_token_id, "eos_token_id": eos_token_id, "pad_token_id": pad_token_id}
        super().__init__(**ids, **{"tie_word_embeddings": tie_word_embeddings}, **kwargs)

    @property
    def mask_token_id(self) -> int | None:
        """The id under which MASK is read, one past the tokens that can be written; None where there is none."""
        masks = self.process["kind"] != "uniform" and self.process.get("gamma") != 1
        return self.vocab_size if self.mask_embedding and masks else None
