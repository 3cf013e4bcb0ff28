"""What `hdlm bench` prints and writes: a row a case with its share of the roofline, and the paper's tables."""

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
from hdlm.files import json_text, written_aside
from hdlm.viz.table import formatted, table


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
    try:
        return subprocess.check_output(
            ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, stderr=subprocess.DEVNULL, text=True
        ).strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def to_json(where: dict[str, Any], rows: list[Any]) -> dict[str, Any]:
    """All figures, and how they came about."""
    return {"setting": where, "rows": [vars(row) for row in rows]}


def write_json(path: Path, where: dict[str, Any], rows: list[Any]) -> None:
    """The same as a file."""
    with written_aside(path) as aside:
        aside.write_text(json_text(to_json(where, rows), indent=1) + "\n")


def print_training(console: Console, rows: list[TrainRow], width: int) -> None:
    """The rows, and the paper's table."""
    first = rows[0]
    columns = {
        "": "{label}",
        "batch": "{batch}",
        "slots": "{slots:,}",
        "ms": "{step_ms:.1f}",
        "spread": "{spread[0]:.1f}-{spread[1]:.1f}",
        "slots/ms": "{slots_per_ms:.1f}",
        f"to {first.label}": "{to_first:.2f}",
        "active/ms": "{active_per_ms:.1f}",
        "GiB": "{memory}",
        "floor ms": "{floor_ms:.1f}",
        "share": "[bold]{share:.0%}",
    }
    numbers = [
        vars(row) | {"to_first": row.slots_per_ms / first.slots_per_ms, "memory": _number(row.memory_gib, 1)}
        for row in rows
    ]
    console.print(formatted(columns, numbers, title="training steps"))
    title = "tab:train_throughput: tokens/ms and active tokens/ms; the paper's at 12 x 768 on an A100"
    lines = throughput_table(rows, width)
    shown = [(name, *(_number(value, 1) for value in (*paper, *(ours or (None, None))))) for name, paper, ours in lines]
    console.print(table(["", "paper", "", "here", ""], shown, title=title))


def print_sampling(console: Console, rows: list[SampleRow], width: int) -> None:
    """The rows, and the paper's table."""
    console.print(_sample_table("samples", rows))
    title = "tab:cache: seconds; the paper's are for 8 samples of 1,024 tokens on an A100"
    shown = [(name, f"{paper:.0f}", _number(ours, 2)) for name, paper, ours in cache_table(rows, width)]
    console.print(table(["", "paper", f"here, {rows[0].samples} x {rows[0].length:,}"], shown, title=title))


def print_growth(console: Console, rows: list[SampleRow]) -> None:
    """The rows, and what a call takes apart from attention to a longer past."""
    console.print(_sample_table("growing texts, rate 4", rows))
    shown = []
    for label in dict.fromkeys(row.label for row in rows):
        own = [row for row in rows if row.label == label]
        net = net_of_attention(own) if "no cache" not in label else [None] * len(own)
        first = net[0]
        for row, rest in zip(own, net, strict=True):
            per_call = 1e3 * row.seconds / row.stats["network_calls"]
            apart = (f"{1e3 * rest:.3f}", f"{rest / first:.2f}") if rest is not None and first else ("", "")
            shown.append((label, f"{row.length:,}", f"{per_call:.3f}", *apart))
    names = ["", "tokens", "all", "less attention's linear part", "to the first"]
    console.print(table(names, shown, title="milliseconds a call"))


def _sample_table(title: str, rows: list[SampleRow]) -> Table:
    columns = {
        "": "{label}",
        "tokens": "{length:,}",
        "steps": "{steps:,}",
        "s": "{seconds:.3f}",
        "spread": "{spread[0]:.3f}-{spread[1]:.3f}",
        "first": "{first_s:.2f}",
        "tokens/s": "{tokens_per_s:,.0f}",
        "calls": "{stats[network_calls]:,}",
        "floor s": "{floor_s:.3f}",
        "share": "[bold]{share:.0%}",
    }
    return formatted(columns, map(vars, rows), title=f"{title}: {rows[0].samples} at a time")


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
