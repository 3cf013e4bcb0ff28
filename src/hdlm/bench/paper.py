"""The paper's two tables of speed (appendix F: tab:cache and tab:train_throughput), and which of our rows stand beside.

Its figures are of an A100 80 GB: beside ours they say what the code makes of a machine, not which machine is better.
"""

from dataclasses import dataclass

from hdlm.bench.sampling import SampleRow
from hdlm.bench.training import TrainRow


@dataclass(frozen=True)
class Line:
    """A line of a table: its name there, the paper's figures, and the label of ours (None: we have no such thing)."""

    name: str
    paper: tuple[float, ...]
    ours: str | None


CACHE = (
    Line("SEDD", (68,), None),
    Line("MDLM", (59,), None),
    Line("MDLM + caching", (36,), "absorbing (MDLM), flat"),
    Line("gamma-hybrid, flat, aligned", (131,), "gamma, flat"),
    Line("gamma-hybrid, block d/4, aligned", (79,), "gamma, block {width}, no cache"),
    Line("gamma-hybrid, block d/4, aligned + KV-caching", (38,), "gamma, block {width}"),
)
TRAINING = (
    Line(
        "epsilon-hybrid, block d/4, aligned (non-efficient)",
        (100.31, 25.07),
        "epsilon, block {width}, aligned, one window a row",
    ),
    Line("epsilon-hybrid, block d/4, aligned (efficient)", (88.04, 44.02), "epsilon, block {width}, aligned"),
    Line("MDLM", (97.64, 54.42), "MDLM (absorbing, flat)"),
    Line("SEDD", (99.29, 56.01), "SEDD (absorbing scores, flat)"),
    Line("AR", (127.65, 127.65), "AR"),
)


def cache_table(rows: list[SampleRow], width: int) -> list[tuple[str, float, float | None]]:
    """tab:cache: name, the paper's seconds, ours."""
    ours = {row.label: row.seconds for row in rows}
    return [(line.name, line.paper[0], ours.get((line.ours or "").format(width=width))) for line in CACHE]


def throughput_table(rows: list[TrainRow], width: int) -> list[tuple[str, tuple[float, ...], tuple[float, ...] | None]]:
    """tab:train_throughput: name, the paper's slots and active tokens a ms, ours."""
    ours = {row.label: (row.slots_per_ms, row.active_per_ms) for row in rows}
    return [(line.name, line.paper, ours.get((line.ours or "").format(width=width))) for line in TRAINING]
