"""How the folders beside this file were made: random weights of ours in the published modelling code, and its outputs.

    python tests/interop/parity/make.py PACKAGES

PACKAGES holds `dream` and `llada`, the folders `dream/model` and `llada/model` of github.com/NVlabs/Fast-dLLM under
these names; they need transformers 4.48 and einops. `outputs.safetensors` has token ids, some of them the mask, and the
logits that the published network gives for all of them. Nothing of that code is here.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

VOCABULARY, MASK, START, END = 64, 50, 1, 3
FOLDER = Path(__file__).parent
DREAM = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": False,
    "bos_token_id": START,
}
LLADA = {
    "vocab_size": VOCABULARY,
    "embedding_size": VOCABULARY,
    "d_model": 32,
    "mlp_hidden_size": 48,
    "n_layers": 2,
    "n_heads": 4,
    "n_kv_heads": 4,
    "max_sequence_length": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "weight_tying": False,
    "block_type": "llama",
    "layer_norm_type": "rms",
    "activation_type": "silu",
    "rope": True,
    "alibi": False,
    "include_bias": False,
    "include_qkv_bias": False,
}
SHARED = {"mask_token_id": MASK, "pad_token_id": END, "eos_token_id": END}
NO_DROPOUT = {"attention_dropout": 0.0, "residual_dropout": 0.0, "embedding_dropout": 0.0}


def dream():
    from dream.configuration_dream import DreamConfig
    from dream.modeling_dream import DreamModel

    return DreamModel(DreamConfig(**DREAM, **SHARED)), {"model_type": "Dream", **DREAM, **SHARED}


def llada():
    from llada.configuration_llada import LLaDAConfig
    from llada.modeling_llada import LLaDAModelLM

    settings = LLADA | SHARED | NO_DROPOUT | {"init_device": "cpu", "flash_attention": False}
    return LLaDAModelLM(LLaDAConfig(**settings), init_params=True), {"model_type": "llada", **LLADA, **SHARED}


def main():
    sys.path.insert(0, sys.argv[1])
    for make in (dream, llada):
        torch.manual_seed(0)
        model, config = make()
        with torch.no_grad():
            for name, parameter in model.eval().named_parameters():
                norm = parameter.ndim == 1 and not name.endswith("bias")
                parameter.copy_(float(norm) + (0.3 if parameter.ndim == 1 else 0.2) * torch.randn(parameter.shape))
            tokens = torch.randint(VOCABULARY - 1, (3, 24))
            tokens += tokens >= MASK  # any but the mask
            tokens[:, 0] = START
            hidden = torch.rand(tokens.shape) < 0.5
            hidden[:, 0] = False
            tokens[hidden] = MASK
            logits = model(tokens).logits
        folder = FOLDER / make.__name__
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
        save_file(state, folder / "model.safetensors")
        save_file({"tokens": tokens, "logits": logits}, folder / "outputs.safetensors")


if __name__ == "__main__":
    main()
