"""What a recipe will cost, without allocating it: parameters, tokens, FLOPs, memory and hours.

FLOPs of a step: 6 per parameter of the trunk and slot, 12 x width per layer and pair of slots that see each other, 6
x width x vocabulary per token that carries a loss; a forward pass is a third of it. Hours follow from a stated share of
the GPU's peak (MFU). Memory is an estimate of what stays: weights, moments, average, and activations of a micro-batch.
"""

from dataclasses import asdict, dataclass

import torch

from hdlm.nn.config import DenoiserConfig
from hdlm.nn.transformer import Denoiser
from hdlm.recipe import Recipe
from hdlm.theory.hyperschedule import Slide
from hdlm.theory.layout import NOTHING, SETTLED, training_layout

# Dense bf16 peak in TFLOP/s and memory in GiB, from the makers' data sheets.
GPUS = {"h200": (989.0, 141), "h100": (989.0, 80), "a100": (312.0, 80), "l40s": (362.0, 48), "4090": (165.0, 24)}
VOCABULARIES = {"gpt2": 50_257, "bert-base-uncased": 30_522, "bytes": 257, "chars": 28}
_BYTES_PER_PARAMETER = 4 + 4 + 8 + 4  # weight, gradient, two moments, average
_ACTIVATION_BYTES = 34  # per slot, unit of width and layer, bf16, what the backward pass of one block keeps


@dataclass(frozen=True)
class Plan:
    """The costs of a run."""

    recipe: str
    parameters: int
    vocab_size: int
    slots: int
    active: int
    steps: int
    tokens: int
    flops: float
    gpus: int
    gpu: str
    mfu: float
    memory_gib: float
    hours: float

    def to_json(self) -> dict:
        """All numbers."""
        return asdict(self)


def vocabulary_of(tokenizer: str) -> int:
    """The size that a tokenizer's word stands for."""
    if tokenizer.startswith("bpe-") and tokenizer.removeprefix("bpe-").isdigit():
        return int(tokenizer.removeprefix("bpe-"))
    if tokenizer not in VOCABULARIES:
        raise ValueError(
            f"tokenizer = {tokenizer!r}: its size is not known here; plan with one of {', '.join(VOCABULARIES)}"
        )
    return VOCABULARIES[tokenizer]


def plan(recipe: Recipe, *, gpus: int = 1, gpu: str = "h200", mfu: float = 0.4) -> Plan:
    """The costs of a recipe on some GPUs."""
    if gpu not in GPUS:
        raise ValueError(f"gpu = {gpu!r} is not accepted: it must be one of {', '.join(GPUS)}")
    if gpus < 1 or not 0 < mfu <= 1:
        raise ValueError(f"gpus = {gpus}, mfu = {mfu} is not accepted: gpus must be >= 1 and mfu in (0, 1]")
    vocab = vocabulary_of(recipe.tokenizer)
    config = DenoiserConfig(vocab_size=vocab, **vars(recipe.model))
    with torch.device("meta"):
        model = Denoiser(config)
    ends = model.embedding.numel() + model.head.weight.numel()
    trunk = sum(p.numel() for p in model.parameters()) - ends
    flops = slots = active = 0.0
    total_share = sum(member.share for member in recipe.schedules)
    for member in recipe.schedules:
        schedule = member.schedule(recipe.length).build()
        offset = schedule.width if isinstance(schedule, Slide) else None
        settled_loss = recipe.loss.beta1 > 0
        layout = training_layout(schedule, shifted=recipe.shifted, offset=offset, settled_loss=settled_loss)
        carries = layout.predicts != NOTHING
        if not settled_loss and member.kind != "quench":
            carries &= layout.window != SETTLED
        pairs = float(layout.mask().sum())
        share = member.share / total_share
        row = 6 * trunk * len(layout) + 12 * config.layers * config.width * pairs
        flops += share * (row + 6 * config.width * vocab * float(carries.sum()))
        slots += share * len(layout)
        active += share * recipe.length
    total = flops * recipe.global_batch * recipe.steps
    peak, _ = GPUS[gpu]
    shared = gpus if recipe.sharded else 1
    states = _BYTES_PER_PARAMETER * sum(p.numel() for p in model.parameters()) / shared
    activations = recipe.micro_batch * slots * config.width * config.layers * _ACTIVATION_BYTES
    return Plan(
        recipe=recipe.name,
        parameters=model.num_parameters,
        vocab_size=vocab,
        slots=round(slots),
        active=round(active),
        steps=recipe.steps,
        tokens=recipe.steps * recipe.global_batch * recipe.length,
        flops=total,
        gpus=gpus,
        gpu=gpu,
        mfu=mfu,
        memory_gib=(states + activations) / 2**30,
        hours=total / (peak * 1e12 * mfu * gpus) / 3600,
    )
