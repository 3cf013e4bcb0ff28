"""The model card of a folder for transformers. Knows no file."""

from hdlm.bundle import Bundle
from hdlm.interop.huggingface.names import mask_id

_HEAD = "---\nlibrary_name: transformers\npipeline_tag: text-generation\ntags: [diffusion-language-model, hdlm]\n---\n"
_FOLDER = "path/to/this/folder"


def card(bundle: Bundle) -> str:
    """What this is and how to use it; what was measured of it comes after."""
    facts = "\n".join(line for line in bundle.card().splitlines() if line.startswith("- "))
    return (
        f"{_HEAD}\n# A language model by hdlm, for transformers\n\n{facts}\n\n```python\n{_usage(bundle)}```\n\n"
        "The network is `modeling_hdlm.py` in this folder, which needs torch and transformers alone and is the same in "
        "every such folder: that is what `trust_remote_code` lets run. The package hdlm reads the folder back:\n\n"
        f'```python\nimport hdlm\n\nbundle = hdlm.load("{_FOLDER}")\n```\n'
    )


def _usage(bundle: Bundle) -> str:
    """Lines of Python that write with it."""
    config, named = bundle.config, bundle.tokenizer is not None
    lines = [f"from transformers import AutoModelForCausalLM{', AutoTokenizer' if named else ''}", ""]
    lines += [f'model = AutoModelForCausalLM.from_pretrained("{_FOLDER}", trust_remote_code=True)']
    inputs, show = "", "print(out)"
    if named:
        lines += [f'tokenizer = AutoTokenizer.from_pretrained("{_FOLDER}", trust_remote_code=True)']
        lines += ['inputs = tokenizer("Once upon a time", return_tensors="pt")']
        inputs, show = "**inputs, ", "print(tokenizer.decode(out[0], skip_special_tokens=True))"
    if config.shifted:
        lines += [f"out = model.generate({inputs}max_new_tokens=32)  # one token after the other", show]
    if mask_id(config) is not None:
        own = config.hyperschedule
        schedule = own.name.replace(" ", ":") if own.kind in ("block", "slide", "flat") else "block:16"
        sampler = "" if bundle.process.masks_only else ', hdlm_sampler="certain"'
        lines += [f'out = model.generate({inputs}max_new_tokens=32, hdlm_schedule="{schedule}"{sampler})', show]
    return "\n".join(lines) + "\n"
