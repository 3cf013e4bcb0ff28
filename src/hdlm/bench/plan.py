"""What a recipe will cost, without allocating it: parameters, tokens, FLOPs, memory and hours.

FLOPs are those of `cost.py`. Hours follow from a stated share of the GPU's peak (MFU), and between them and the hours
with all traffic (`traffic.py`) beside lies what overlap leaves. Memory is an estimate of what stays: weights, moments,
average, and activations of a micro-batch.
"""

from dataclasses import dataclass
from pathlib import Path

import torch

from hdlm.bench.cost import RowCount, count_row, step_work
from hdlm.bench.traffic import traffic
from hdlm.config.model import DenoiserConfig
from hdlm.config.recipe import MixtureMember, Recipe
from hdlm.data.tokenizer import make_tokenizer
from hdlm.nn.transformer import Denoiser
from hdlm.theory import numbers
from hdlm.theory.layout import inference_layout, training_layout

# Dense bf16 peak in TFLOP/s, from the makers' data sheets.
GPUS = {"h200": 989.0, "h100": 989.0, "a100": 312.0, "l40s": 362.0, "4090": 165.0}
VOCABULARIES = {"gpt2": 50_257, "bert-base-uncased": 30_522, "bytes": 257, "chars": 28}
_SHIPPED = Path(__file__).parents[1] / "models"
_BYTES_PER_PARAMETER = 4 + 4 + 8 + 4  # weight, gradient, two moments, average
_ACTIVATION_BYTES = 34  # per slot, unit of width and layer, bf16, what the backward pass of one block keeps


@dataclass(frozen=True)
class Cost:
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
    nodes: int
    sent_inside: float  # bytes of a step, of each GPU
    sent_between: float
    hours_at_most: float  # where nothing is computed while something travels
    tokens_per_s: float
    price_per_billion: float | None  # tokens, in the money of `price`


def vocabulary_of(tokenizer: str) -> int:
    """The size that a tokenizer's word stands for: known by name, or read from a tokenizer.json, also a shipped one."""
    if tokenizer.startswith("bpe-") and tokenizer.removeprefix("bpe-").isdigit():
        return int(tokenizer.removeprefix("bpe-"))
    if tokenizer in VOCABULARIES:
        return VOCABULARIES[tokenizer]
    for path in (Path(tokenizer).expanduser(), _SHIPPED / tokenizer):
        if path.is_file():
            return make_tokenizer(str(path), []).vocab_size
    raise ValueError(
        f"tokenizer = {tokenizer!r}: its size is not known here; plan with a tokenizer.json, or with one of "
        f"{', '.join(VOCABULARIES)}, bpe-SIZE"
    )


def plan(
    recipe: Recipe,
    *,
    gpus: int = 1,
    gpu: str = "h200",
    mfu: float = 0.4,
    nodes: int = 1,
    link: float = 450.0,
    network: float = 50.0,
    price: float | None = None,
) -> Cost:
    """The costs of a recipe on `gpus` GPUs in each of `nodes` machines.

    `link`, `network`: what a GPU sends to others inside and outside of its machine, GB/s. `price`: of a GPU, an hour.
    """
    if gpu not in GPUS:
        raise ValueError(f"gpu = {gpu!r} is not accepted: it must be one of {', '.join(GPUS)}")
    if gpus < 1 or not 0 < mfu <= 1:
        raise ValueError(f"gpus = {gpus}, mfu = {mfu} is not accepted: gpus must be >= 1 and mfu in (0, 1]")
    numbers.integer("nodes", nodes, low=1)
    for name, value in (("link", link), ("network", network), ("price", 1.0 if price is None else price)):
        numbers.positive(name, value)
    everywhere = nodes * gpus
    config = DenoiserConfig(vocab_size=vocabulary_of(recipe.tokenizer), **vars(recipe.model))
    with torch.device("meta"):
        model = Denoiser(config)
    stored = sum(parameter.numel() for parameter in model.parameters())
    flops = slots = active = 0.0
    for member, share in recipe.members:
        row, predicted = _row(recipe, member)
        flops += share * step_work(config, row, rows=recipe.global_batch, parameters=stored).operations
        slots += share * row.slots
        active += share * predicted
    total = flops * recipe.steps * (4 / 3 if recipe.recompute else 1)  # forward once more, of three parts
    shards = everywhere if recipe.sharded and not recipe.hybrid else gpus if recipe.sharded else 1
    micro_batches = -(-recipe.global_batch // (everywhere * recipe.micro_batch))
    states = _BYTES_PER_PARAMETER * stored / shards
    blocks = sum(parameter.numel() for parameter in model.blocks.parameters())
    sent = traffic(
        blocks,
        stored - blocks,
        nodes=nodes,
        gpus=gpus,
        micro_batches=micro_batches,
        sharded=recipe.sharded,
        hybrid=recipe.hybrid,
    )
    hours = total / (GPUS[gpu] * 1e12 * mfu * everywhere) / 3600
    at_most = hours + recipe.steps * sent.seconds(inside=link * 1e9, between=network * 1e9) / 3600
    tokens = recipe.steps * recipe.global_batch * recipe.length
    if shards > 1 and micro_batches > 1:
        states += 4 * stored  # a whole gradient, from one micro-batch to the next
    kept = _ACTIVATION_BYTES * (1 if recipe.recompute else config.layers) + 2 * config.layers * recipe.recompute
    activations = recipe.micro_batch * slots * config.width * kept
    return Cost(
        recipe=recipe.name,
        parameters=model.num_parameters,
        vocab_size=config.vocab_size,
        slots=round(slots),
        active=round(active),
        steps=recipe.steps,
        tokens=tokens,
        flops=total,
        gpus=gpus,
        gpu=gpu,
        mfu=mfu,
        memory_gib=(states + activations) / 2**30,
        hours=hours,
        nodes=nodes,
        sent_inside=sent.inside,
        sent_between=sent.between,
        hours_at_most=at_most,
        tokens_per_s=tokens / (3600 * at_most),
        price_per_billion=None if price is None else at_most * everywhere * price / (tokens / 1e9),
    )


def _row(recipe: Recipe, member: MixtureMember) -> tuple[RowCount, int]:
    """What the trainer feeds for one row of a member of the mixture, and how many active tokens that is.

    Where windows move, at a typical offset; where one is trained at a time, the middle one.
    """
    schedule, settled_loss = member.schedule(recipe.length).build(), recipe.loss.beta1 > 0
    offset = schedule.draw_offset(0.5)
    windows = schedule.training_windows(offset)
    if recipe.doubled or len(windows) < 2:
        layout = training_layout(schedule, shifted=recipe.shifted, offset=offset, settled_loss=settled_loss)
    else:
        slots = schedule.length + int(recipe.shifted)
        layout = inference_layout(*windows[len(windows) // 2], shifted=recipe.shifted, slots=slots)
    return count_row(layout, settled_loss=settled_loss), count_row(layout, settled_loss=False).head_slots
