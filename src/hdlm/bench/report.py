"""What `hdlm bench` prints and writes: a row a case with its share of the roofline, and the paper's tables."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from hdlm.bench.paper import cache_table, throughput_table
from hdlm.bench.roofline import Ceiling
from hdlm.bench.sampling import SampleRow, net_of_attention
from hdlm.bench.training import TrainRow
from hdlm.files import written_aside


def setting(device: torch.device, ceiling: Ceiling, **more: Any) -> dict[str, Any]:
    """Where and how figures came about: command, commit, versions, device and what it was measured to do."""
    cuda = device.type == "cuda"
    return {
        "command": shlex.join(["hdlm", *sys.argv[1:]]),
        "commit": _commit(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if cuda else f"CPU, {torch.get_num_threads()} threads",
        "matrix_tflops": ceiling.operations / 1e12,
        "copy_tb_per_s": ceiling.bandwidth / 1e12,
        **more,
    }


def _commit() -> str | None:
    """The commit of the code that runs: HDLM_COMMIT where it was copied without its history."""
    if "HDLM_COMMIT" in os.environ:
        return os.environ["HDLM_COMMIT"]
    here = Path(__file__).parent
    try:
        return subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def write_json(path: Path, where: dict[str, Any], rows: list[Any]) -> None:
    """Setting and rows into a file."""
    with written_aside(path) as aside:
        aside.write_text(json.dumps({"setting": where, "rows": [row.to_json() for row in rows]}, indent=1) + "\n")


def print_training(console: Console, rows: list[TrainRow], width: int) -> None:
    """The rows, and the paper's table."""
    first = rows[0].slots_per_ms
    table = Table(title="training steps")
    _columns(
        table, "", "batch", "slots", "ms", "spread", "slots/ms", f"to {rows[0].label}", "active/ms", "GiB", "floor ms"
    )
    table.add_column("share", justify="right", style="bold")
    for row in rows:
        table.add_row(
            row.label,
            f"{row.batch}",
            f"{row.slots:,}",
            f"{row.step_ms:.1f}",
            f"{row.spread[0]:.1f}-{row.spread[1]:.1f}",
            f"{row.slots_per_ms:.1f}",
            f"{row.slots_per_ms / first:.2f}",
            f"{row.active_per_ms:.1f}",
            f"{row.memory_gib:.1f}" if row.memory_gib is not None else "",
            f"{row.floor_ms:.1f}",
            f"{row.share:.0%}",
        )
    console.print(table)
    paper = Table(title="tab:train_throughput: tokens/ms and active tokens/ms; the paper's at 12 x 768 on an A100")
    _columns(paper, "", "paper", "", "here", "")
    for name, theirs, ours in throughput_table(rows, width):
        found = [f"{value:.1f}" for value in ours] if ours is not None else ["", ""]
        paper.add_row(name, *(f"{value:.1f}" for value in theirs), *found)
    console.print(paper)


def print_sampling(console: Console, rows: list[SampleRow], width: int) -> None:
    """The rows, and the paper's table."""
    console.print(_sample_table("samples", rows))
    paper = Table(title="tab:cache: seconds; the paper's are for 8 samples of 1,024 tokens on an A100")
    _columns(paper, "", "paper", f"here, {rows[0].samples} x {rows[0].length:,}")
    for name, theirs, ours in cache_table(rows, width):
        paper.add_row(name, f"{theirs:.0f}", f"{ours:.2f}" if ours is not None else "")
    console.print(paper)


def print_growth(console: Console, rows: list[SampleRow]) -> None:
    """The rows, and what a call takes apart from attention to a longer past."""
    console.print(_sample_table("growing texts, rate 4", rows))
    table = Table(title="milliseconds a call")
    _columns(table, "", "tokens", "all", "less attention's linear part", "to the first")
    for label in dict.fromkeys(row.label for row in rows):
        own = [row for row in rows if row.label == label]
        net = net_of_attention(own) if "no cache" not in label else [None] * len(own)
        for row, rest in zip(own, net, strict=True):
            ratio = rest / net[0] if rest is not None and net[0] else None
            table.add_row(
                label,
                f"{row.length:,}",
                f"{1e3 * row.seconds / row.stats['network_calls']:.3f}",
                f"{1e3 * rest:.3f}" if rest is not None else "",
                f"{ratio:.2f}" if ratio is not None else "",
            )
    console.print(table)


def _sample_table(title: str, rows: list[SampleRow]) -> Table:
    table = Table(title=f"{title}: {rows[0].samples} at a time")
    _columns(table, "", "tokens", "steps", "s", "spread", "first", "tokens/s", "calls", "floor s")
    table.add_column("share", justify="right", style="bold")
    for row in rows:
        table.add_row(
            row.label,
            f"{row.length:,}",
            f"{row.steps:,}",
            f"{row.seconds:.3f}",
            f"{row.spread[0]:.3f}-{row.spread[1]:.3f}",
            f"{row.first_s:.2f}",
            f"{row.tokens_per_s:,.0f}",
            f"{row.stats['network_calls']:,}",
            f"{row.floor_s:.3f}",
            f"{row.share:.0%}",
        )
    return table


def _columns(table: Table, *names: str) -> None:
    for number, name in enumerate(names):
        table.add_column(name, justify="right" if number else "left")
