"""What cases begin from, made once for all of them: small models of every kind, and a run to go on with."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from support.bundles import LETTERS, PROCESSES, letters
from support.gguf_files import gguf_bytes, metadata_of, tensors_of

from fuzz.sandbox import TEXT
from hdlm.bundle import Bundle
from hdlm.config import recipes
from hdlm.config.bundle import BundleConfig
from hdlm.config.model import DenoiserConfig
from hdlm.config.recipe import Recipe
from hdlm.config.schedule import ScheduleConfig
from hdlm.data.prepare import prepare
from hdlm.interop.export import export
from hdlm.nn.transformer import Denoiser

CONTEXT = 16
MODELS = ("gamma", "absorbing", "uniform", "epsilon", "score", "quench", "tokens")
FOREIGN = ("published", "llama", "qwen2", "qwen3", "dream", "gguf", "exported")
TINY = {
    "tokenizer": "bytes",
    "length": "8",
    "model.layers": "1",
    "model.width": "8",
    "model.heads": "2",
    "model.condition_width": "4",
    "schedules.0.width": "4",
    "global_batch": "2",
    "micro_batch": "2",
    "eval_rows": "2",
}


def make_templates(folder: Path) -> None:
    """All of them, readable for everybody."""
    torch.manual_seed(0)
    for name in MODELS:
        _model(name).save(folder / name)
    _published(folder / "published")
    for kind in ("llama", "qwen2", "qwen3", "Dream"):
        _llama(folder / kind.lower(), kind)
    _gguf(folder / "gguf", folder / "llama")
    export(_model("gamma"), folder / "exported")
    _run(folder)
    (folder / "text.txt").write_text(TEXT * 60)
    prepare(str(folder / "text.txt"), folder / "prepared", tokenizer="bytes", workers=1)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def _model(name: str) -> Bundle:
    process = PROCESSES["gamma" if name == "score" else name if name in PROCESSES else "absorbing"]
    aligned = name in ("absorbing", "uniform")
    shape = {"layers": 1, "width": 8, "heads": 2, "condition_width": 4, "conditioned": name == "gamma"}
    model = DenoiserConfig(len(LETTERS), mask_embedding=name != "uniform", **shape)
    kind = {"absorbing": "flat", "uniform": "flat", "quench": "quench"}.get(name, "block")
    config = BundleConfig(
        model,
        process,
        ScheduleConfig(kind, CONTEXT, width=4 if kind == "block" else None),
        shifted=not aligned,
        parameterization="score" if name == "score" else "clean",
        bos_id=3,
        next_token=not aligned,
        mixture=(ScheduleConfig("flat", CONTEXT),) if kind == "block" else (),
    )
    network = Denoiser(model)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape))
    return Bundle(network, config, None if name == "tokens" else letters())


def _save_foreign(folder: Path, config: dict, shapes: dict[str, tuple[int, ...]]) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: 0.5 * torch.randn(shape) for name, shape in shapes.items()}, folder / "model.safetensors")
    letters().save(str(folder / "tokenizer.json"))


def _published(folder: Path, width: int = 8) -> None:
    """A folder in the layout of the published checkpoints."""
    states = len(LETTERS) + 1
    config = {
        "model_type": "epsilon_hybrid",
        "type": "shifted",
        "training": {"epsilon": 0.01},
        "annealing": {"type": "block", "width": 4},
        "model": {"hidden_size": width, "n_blocks": 1, "n_heads": 2, "length": CONTEXT},
    }
    shapes: dict[str, tuple[int, ...]] = {
        "vocab_embed.embedding": (states, width),
        "blocks.0.norm1.weight": (width,),
        "blocks.0.attn_qkv.weight": (3 * width, width),
        "blocks.0.attn_out.weight": (width, width),
        "blocks.0.norm2.weight": (width,),
        "blocks.0.mlp.0.weight": (4 * width, width),
        "blocks.0.mlp.0.bias": (4 * width,),
        "blocks.0.mlp.2.weight": (width, 4 * width),
        "blocks.0.mlp.2.bias": (width,),
        "output_layer.norm_final.weight": (width,),
        "output_layer.linear.weight": (states, width),
        "output_layer.linear.bias": (states,),
    }
    _save_foreign(folder, config, shapes)


def _llama(folder: Path, kind: str, width: int = 8, hidden: int = 12) -> None:
    """A folder in the layout of Llama, of one of the Qwens, or of Dream, whose mask is the last letter."""
    config = {
        "model_type": kind,
        "vocab_size": len(LETTERS),
        "hidden_size": width,
        "intermediate_size": hidden,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": width // 2,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "bos_token_id": 3,
        "eos_token_id": None,
        "mask_token_id": len(LETTERS) - 1,
    }
    layer = "model.layers.0."
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (len(LETTERS), width),
        "model.norm.weight": (width,),
        "lm_head.weight": (len(LETTERS), width),
        f"{layer}input_layernorm.weight": (width,),
        f"{layer}post_attention_layernorm.weight": (width,),
        f"{layer}self_attn.q_proj.weight": (width, width),
        f"{layer}self_attn.k_proj.weight": (width // 2, width),
        f"{layer}self_attn.v_proj.weight": (width // 2, width),
        f"{layer}self_attn.o_proj.weight": (width, width),
        f"{layer}mlp.gate_proj.weight": (hidden, width),
        f"{layer}mlp.up_proj.weight": (hidden, width),
        f"{layer}mlp.down_proj.weight": (width, hidden),
    }
    if kind in ("qwen2", "Dream"):
        for name, rows in (("q", width), ("k", width // 2), ("v", width // 2)):
            shapes[f"{layer}self_attn.{name}_proj.bias"] = (rows,)
    if kind == "qwen3":
        shapes |= {f"{layer}self_attn.{name}_norm.weight": (width // 2,) for name in "qk"}
    _save_foreign(folder, config, shapes)


def _gguf(folder: Path, llama: Path) -> None:
    """The same as one file, whose tokens are those letters in a GGUF's spelling, and a pair of them for a merge."""
    config = json.loads((llama / "config.json").read_text())
    folder.mkdir()
    tokens = [*LETTERS.replace(" ", "Ġ")[:-2], "Ġ", "ab"]
    (folder / "model.gguf").write_bytes(gguf_bytes(metadata_of(config, tokens), tensors_of(llama)))


def tiny_recipe(**changes: Any) -> Recipe:
    """A recipe of a few milliseconds a step, as TINY makes of the laptop's, for the text that lies beside it."""
    laptop = recipes.laptop()
    settings = {
        "data": "text.txt",
        "tokenizer": "bytes",
        "length": 8,
        "model": replace(laptop.model, layers=1, width=8, heads=2, condition_width=4),
        "schedules": (replace(laptop.schedules[0], width=4),),
        "steps": 2,
        "save_every": 1,
        "global_batch": 2,
        "micro_batch": 2,
        "eval_rows": 2,
    }
    return replace(laptop, **(settings | changes))


def _run(folder: Path) -> None:
    """A run of two steps whose recipe wants a third, in `run`, and its text beside it."""
    from hdlm.train.loop import train

    os.environ["HDLM_CACHE"] = str(folder / "cache")
    os.chdir(folder)
    Path("text.txt").write_text(TEXT * 60)
    train(tiny_recipe(), "run", quiet=True)
    recipe = Path("run/trainer/recipe.json")
    recipe.write_text(json.dumps(json.loads(recipe.read_text()) | {"steps": 3}))
