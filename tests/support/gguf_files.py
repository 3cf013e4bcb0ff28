"""GGUF files written for tests, number by number: those of a Hugging Face folder, and false ones."""

import json
import struct
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

TEXT, ARRAY = 8, 9
FORMATS = {4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q"}
KINDS = {"F32": 0, "F16": 1, "Q8_0": 8}
ALIGNMENT = 32
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
BLOCK = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def text(value):
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def value(kind, given):
    """One value; that of an array is its items' kind and the items."""
    if kind == TEXT:
        return text(given)
    if kind == ARRAY:
        inner, items = given
        return struct.pack("<IQ", inner, len(items)) + b"".join(value(inner, item) for item in items)
    return struct.pack(FORMATS[kind], given)


def gguf_bytes(metadata, tensors, *, version=3, counts=None, dimensions=None, offsets=None):
    """A file of metadata by key as (kind, value), and of tensors by name as (array, packing).

    What it says of itself may be false: `counts` of tensors and entries, `dimensions` and `offsets` of tensors by name.
    """
    header = b"GGUF" + struct.pack("<IQQ", version, *(counts or (len(tensors), len(metadata))))
    for key, (kind, given) in metadata.items():
        header += text(key) + struct.pack("<I", kind) + value(kind, given)
    body = b""
    for name, (array, packing) in tensors.items():
        shape = (dimensions or {}).get(name, array.shape[::-1])
        offset = (offsets or {}).get(name, len(body))
        header += text(name) + struct.pack(
            f"<I{len(shape)}QIQ", len(shape), *shape, KINDS.get(packing, packing), offset
        )
        packed = pack(array, packing)
        body += packed + bytes(-len(packed) % ALIGNMENT)
    return header + bytes(-len(header) % ALIGNMENT) + body


def pack(array, packing):
    """The bytes of an array; Q8_0: blocks of 32 with a scale each."""
    if packing in ("F32", "F16"):
        return array.astype({"F32": "<f4", "F16": "<f2"}[packing]).tobytes()
    if packing != "Q8_0":
        return b"\0" * array.size
    blocks = array.reshape(-1, 32)
    scale = np.abs(blocks).max(1, keepdims=True) / 127
    whole = np.round(blocks / np.where(scale == 0, 1, scale)).astype(np.int8)
    return b"".join(one.astype("<f2").tobytes() + row.tobytes() for one, row in zip(scale, whole, strict=True))


def metadata_of(config, tokens=None, merges=("a b",), *, cut="gpt-2", **more):
    """What a file says of the network of a config.json, and of a byte-level BPE."""
    kind = config["model_type"]
    rope = config.get("rope_parameters") or config
    own = {
        "context_length": (4, config["max_position_embeddings"]),
        "block_count": (4, config["num_hidden_layers"]),
        "embedding_length": (4, config["hidden_size"]),
        "feed_forward_length": (4, config["intermediate_size"]),
        "attention.head_count": (4, config["num_attention_heads"]),
        "attention.head_count_kv": (4, config["num_key_value_heads"]),
        "attention.layer_norm_rms_epsilon": (6, config["rms_norm_eps"]),
        "rope.freq_base": (6, rope.get("rope_theta", 10_000.0)),
    }
    if config.get("head_dim") is not None:
        own |= {"attention.key_length": (4, config["head_dim"]), "attention.value_length": (4, config["head_dim"])}
    found = {"general.architecture": (TEXT, kind)} | {f"{kind}.{name}": said for name, said in own.items()}
    if tokens is not None:
        kinds = [3 if token.startswith("<|") else 1 for token in tokens]
        found |= {
            "tokenizer.ggml.model": (TEXT, "gpt2"),
            "tokenizer.ggml.pre": (TEXT, cut),
            "tokenizer.ggml.tokens": (ARRAY, (TEXT, tokens)),
            "tokenizer.ggml.token_type": (ARRAY, (5, kinds)),
            "tokenizer.ggml.merges": (ARRAY, (TEXT, merges)),
        }
    for name in ("bos", "eos"):
        if config.get(f"{name}_token_id") is not None:
            found[f"tokenizer.ggml.{name}_token_id"] = (4, config[f"{name}_token_id"])
    return found | more


def tensors_of(folder, packing="F32"):
    """The weights of a folder under a GGUF's names; norms and biases stay F32, Llama's heads are interleaved."""
    config = json.loads((Path(folder) / "config.json").read_text())
    found = {}
    for name, array in load_file(Path(folder) / "model.safetensors").items():
        stem, kind = name.rsplit(".", 1)
        if stem not in TOP:
            _, _, layer, part = stem.split(".", 3)
            stem = f"blk.{layer}.{BLOCK[part]}"
            if config["model_type"] == "llama" and part in ("self_attn.q_proj", "self_attn.k_proj"):
                size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
                array = array.reshape(-1, 2, size // 2, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
        found[f"{TOP.get(stem, stem)}.{kind}"] = (array, packing if array.ndim > 1 else "F32")
    return found
