"""What forward passes and training steps cost: the operations and bytes that nobody can avoid.

The one model of cost: `bench` holds measured times against it, `plan` prices recipes by it. Operations are those of the
matrix products and of attention, 2 for a multiplication and an addition, and of attention only pairs that the layout
allows. Bytes are the fewest that must move: each weight once a pass, each cached key and value once a pass, and in
training what the optimiser and the averages read and write. Neither counts activations, so that no program gets there.
Padding slots, of which a training slide may have a few, count as slots. Knows no machine: see `roofline.py`.
"""

from dataclasses import dataclass

from hdlm.config.model import DenoiserConfig, padded
from hdlm.theory.layout import NOTHING, SETTLED, Layout


@dataclass(frozen=True)
class Work:
    """Operations and bytes that cannot be avoided."""

    operations: float
    bytes: float


@dataclass(frozen=True)
class RowCount:
    """One row of a training batch: its slots, the pairs of them that attend, and how many are scored for a loss."""

    slots: int
    pairs: int
    head_slots: int


def count_row(layout: Layout, *, settled_loss: bool) -> RowCount:
    """Count a training layout. Settled slots are scored if they have a loss, or if there are no others."""
    scored, active = layout.predicts != NOTHING, layout.window != SETTLED
    if not settled_loss and bool(active.any()):
        scored = scored & active
    return RowCount(len(layout), int(layout.mask().sum()), int(scored.sum()))


def trunk_parameters(config: DenoiserConfig) -> int:
    """Weights of the matrix products that every slot goes through."""
    size, width = config.head_size, config.width
    attention = width * (config.heads + 2 * config.num_kv_heads) * size + config.heads * size * width
    mlp = width * config.hidden_size * (1 + config.gated) + config.hidden_size * width
    return config.layers * (attention + mlp)


def head_parameters(config: DenoiserConfig) -> int:
    """Weights of the last matrix product."""
    return config.width * padded(config.outputs)


def forward_work(
    config: DenoiserConfig, *, calls: int, slots: int, pairs: int, keys: int, head_slots: int, width: int
) -> Work:
    """Forward passes: `pairs` of slots that attend, `keys` read from a cache, weights of `width` bytes."""
    per_pair = 4 * config.layers * config.heads * config.head_size
    operations = 2 * trunk_parameters(config) * slots + per_pair * pairs + 2 * head_parameters(config) * head_slots
    cached = 2 * config.layers * config.num_kv_heads * config.head_size * keys
    moved = calls * (trunk_parameters(config) + head_parameters(config)) + cached
    return Work(operations, width * moved)


def step_work(config: DenoiserConfig, row: RowCount, *, rows: int, parameters: int) -> Work:
    """One training step: forward and twice as much backward; the optimiser in float32, with an average of weights."""
    count = {name: rows * value for name, value in vars(row).items()}
    forward = forward_work(config, calls=1, keys=0, width=2, **count)
    # AdamW reads weight, gradient and two moments and writes three of them; the average is read and written.
    return Work(3 * forward.operations, 3 * forward.bytes + 4 * 9 * parameters)
