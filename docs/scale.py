"""Print the plans of docs/scale.md, beside what was measured: `python docs/scale.py`. `--update` writes them there."""

import argparse
import contextlib
import io
import json
import shlex
from dataclasses import replace
from pathlib import Path

from hdlm.bench.plan import plan
from hdlm.bench.training import gpu_cases
from hdlm.cli.main import main as hdlm

HERE = Path(__file__).parent
BENCH = HERE.parent / "benchmarks" / "results" / "h200" / "bench_train.json"
COMMAND = "plan owt-gamma-flat --gpus 8 --price 3"


def planned() -> str:
    """What the command line says of a run."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        hdlm(shlex.split(COMMAND))
    return f"```text\n$ hdlm {COMMAND}\n{said.getvalue()}```"


def truth() -> str:
    """A step as it is planned and as it was measured, case by case."""
    measured = {row["label"]: row for row in json.loads(BENCH.read_text())["rows"]}
    lines = ["| | planned, ms | measured, ms | error | memory planned, GiB | measured |", "| --- " * 6 + "|"]
    for case in gpu_cases():
        if case.label not in measured:
            continue
        found = plan(replace(case.recipe, global_batch=case.batch, micro_batch=case.batch, steps=1))
        row, step = measured[case.label], found.hours * 3.6e6
        memory = f"{found.memory_gib:.0f} | {row['memory_gib']:.0f}"
        lines.append(
            f"| {case.label} | {step:.0f} | {row['step_ms']:.0f} | {step / row['step_ms'] - 1:+.0%} | {memory} |"
        )
    return "\n".join(lines)


def written(page: str) -> str:
    """The page with what is planned now."""
    for name, text in (("plan", planned()), ("truth", truth())):
        before, rest = page.split(f"<!-- {name} -->\n")
        page = f"{before}<!-- {name} -->\n{text}\n<!-- end {name} -->{rest.split(f'<!-- end {name} -->')[1]}"
    return page


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--update", action="store_true", help="write them into docs/scale.md")
    if parser.parse_args().update:
        (HERE / "scale.md").write_text(written((HERE / "scale.md").read_text()))
    print(planned(), truth(), sep="\n\n")
