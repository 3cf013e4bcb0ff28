"""Small random models in other people's layouts, and what ours says of the same tokens."""

import torch

from hdlm.theory.layout import build_layout

LAYOUTS = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 24,
}


def tiny(folder, kind="llama", **changes):
    """A small random model of transformers, saved in a folder."""
    settings = {
        "vocab_size": 50,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    import transformers

    torch.manual_seed(1)
    config = getattr(transformers, f"{LAYOUTS[kind]}Config")(**(settings | changes))
    model = getattr(transformers, f"{LAYOUTS[kind]}ForCausalLM")(config).eval()
    with torch.no_grad():  # norms and biases that differ from what they begin as
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn(parameter.shape))
            else:
                parameter.mul_(3 if "proj" in name else 1)
    model.save_pretrained(folder)
    return model


def our_logits(bundle, tokens):
    """Next-token logits of rows that start with BOS, through the causal layout."""
    x = tokens[:, 1:]
    layout = build_layout(x.shape[1], [], shifted=True)
    slots = layout.fill(x, x, torch.zeros_like(x, dtype=torch.float32), bundle.process, bos_id=bundle.config.bos_id)
    with torch.no_grad():
        return bundle.model(slots)
