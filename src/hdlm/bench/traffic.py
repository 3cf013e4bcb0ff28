"""What travels between processes in a step of training, counted from how a network is spread over them.

A ring's arithmetic: of `size` bytes that n processes add up and share, each sends 2 (n - 1) / n; gathering or adding up
alone is half of that. Nothing here was measured: bandwidths are inputs.
"""

from dataclasses import dataclass

WEIGHT, GRADIENT, WHOLE = 2, 4, 4  # bytes: a block's weights as they are gathered, gradients, embedding and head


@dataclass(frozen=True)
class Traffic:
    """Bytes that a process sends in a step: to those of its own machine, and to those of others."""

    inside: float
    between: float

    def seconds(self, *, inside: float, between: float) -> float:
        """The time of it at so many bytes a second, if nothing is computed meanwhile."""
        return self.inside / inside + self.between / between


def traffic(
    blocks: int, rest: int, *, nodes: int, gpus: int, micro_batches: int, sharded: bool, hybrid: bool
) -> Traffic:
    """The traffic of `blocks` parameters in blocks and `rest` in embedding and head, on `gpus` of each of `nodes`.

    A ring that crosses machines is as fast as its slowest part: all of it counts as between them. Blocks are gathered
    forward and backward (no more for being recomputed there), the rest once, both for every micro-batch.
    """
    gradient = GRADIENT * (blocks + rest)
    weights = micro_batches * (2 * WEIGHT * blocks + WHOLE * rest)
    if not sharded:
        found = 2 * _share(nodes * gpus) * gradient
    elif hybrid and nodes > 1:
        return Traffic(_share(gpus) * (weights + gradient), 2 * _share(nodes) * gradient / gpus)
    else:
        found = _share(nodes * gpus) * (weights + gradient)
    return Traffic(found, 0.0) if nodes == 1 else Traffic(0.0, found)


def _share(count: int) -> float:
    """Of what a ring of so many processes gathers, the share that each must send."""
    return (count - 1) / count
