"""Running many cases over a few processes, and what came of them: by section, and failure by failure."""

import argparse
import json
import os
import re
import sys
import traceback
from collections import defaultdict
from pathlib import Path
from typing import Any

from fuzz import server
from fuzz.sandbox import Box
from fuzz.sections import SECTIONS, case

AGAIN = 25  # every so many cases one is made and run a second time
ROOT = Path(__file__).parents[2]
FIGURES, PAGE = ROOT / "benchmarks" / "results" / "fuzz.json", ROOT / "docs" / "reliability.md"
MARKED = re.compile(r"<!-- figures -->.*?<!-- end -->", re.DOTALL)
RECORDED = 10_000  # figures of fewer cases are not kept
KINDS = ("right", "refused", "stopped", "failed")


def run_all(top: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """All cases, dealt out over the processes; one row each, in order."""
    workers = {}
    for job in range(args.jobs):
        worker = os.fork()
        if worker == 0:
            status = 1
            try:
                _work(top, args, job)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        workers[worker] = job
    failed = [job for worker, job in workers.items() if os.waitpid(worker, 0)[1] != 0]
    if failed:
        raise RuntimeError(f"processes {failed} of the suite itself failed")
    lines = [line for job in range(args.jobs) for line in (top / f"{job}.jsonl").read_text().splitlines()]
    return sorted(map(json.loads, lines), key=lambda row: row["case"])


def _work(top: Path, args: argparse.Namespace, job: int) -> None:
    with (top / f"{job}.jsonl").open("w") as file:
        for number in range(args.first + job, args.first + args.cases, args.jobs):
            row = _row(top, args, number)
            if number % AGAIN == 0 and _row(top, args, number)["title"] != row["title"]:
                raise RuntimeError(f"case {number} is not the same case when it is made again")
            file.write(json.dumps(row) + "\n")
            if row["kind"] == "failed":
                print(f"case {number} ({row['section']}): {row['why'][:160]} {row['where']}", file=sys.stderr)


def _row(top: Path, args: argparse.Namespace, number: int) -> dict[str, Any]:
    """Run a case; what is kept of it."""
    section, make = case(args.seed, number, args.section)
    box = Box(top / f"case-{number}", top / "templates")
    found = server.run(number, section, make, box)
    title = found.plan["title"].replace(str(box.work), "$PWD")
    return {"case": number, "section": section, "seconds": round(found.outcome.seconds, 3), "title": title} | vars(
        found.verdict
    )


def show_one(top: Path, seed: int, number: int, only: str | None) -> int:
    """Run one case, and show what it did, said and changed."""
    section, make = case(seed, number, only)
    found = server.run(number, section, make, Box(top / f"case-{number}", top / "templates"))
    outcome = found.outcome
    print(f"case {number} of seed {seed}, {section}: {found.plan['title']}")
    for name in ("argv", "expect", "writes", "endless"):
        print(f"{name}: {found.plan[name]!r}".encode("utf-8", "backslashreplace").decode())
    print(f"exit status {outcome.status} after {outcome.seconds:.2f} s; changed: {list(outcome.changed)}")
    print(f"--- standard output ---\n{outcome.stdout[-3000:]}\n--- standard error ---\n{outcome.stderr[-6000:]}")
    print(f"--- {found.verdict.kind} {found.verdict.why} {found.verdict.where}")
    return int(found.verdict.kind == "failed")


def figures(rows: list[dict[str, Any]], *, seed: int, seconds: float) -> dict[str, Any]:
    """Counts by section."""
    sections = {name: dict.fromkeys(("cases", *KINDS), 0) for name in SECTIONS}
    for row in rows:
        sections[row["section"]]["cases"] += 1
        sections[row["section"]][row["kind"]] += 1
    return {"cases": len(rows), "seed": seed, "seconds": round(seconds), "sections": sections}


def table(found: dict[str, Any]) -> str:
    """The figures as a table of Markdown."""
    lines = ["| section | cases | right | refused | stopped | failed |", "| --- | --- | --- | --- | --- | --- |"]
    rows = dict(found["sections"])
    rows["all"] = {name: sum(row[name] for row in rows.values()) for name in ("cases", *KINDS)}
    for name, row in rows.items():
        lines.append(f"| {name} | " + " | ".join(f"{row[kind]:,}" for kind in ("cases", *KINDS)) + " |")
    return "\n".join(lines)


def print_failures(rows: list[dict[str, Any]]) -> None:
    """Failures, those of one cause together."""
    causes = defaultdict(list)
    for row in rows:
        if row["kind"] == "failed":
            causes[row["where"] or row["why"][:60]].append(row)
    for where, found in sorted(causes.items()):
        print(f"\n{where}: {len(found)} cases, {', '.join(str(row['case']) for row in found[:6])}")
        print(f"  {found[0]['why']}\n  {found[0]['title']}")


def record(found: dict[str, Any]) -> None:
    """Write the figures, and the page's table of them."""
    FIGURES.write_text(json.dumps(found, indent=2) + "\n")
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(MARKED.sub(lambda _: marked(found), text), encoding="utf-8")


def marked(found: dict[str, Any]) -> str:
    """The part of the page that the figures make."""
    minutes = max(1, round(found["seconds"] / 60))
    said = f"{found['cases']:,} cases of seed {found['seed']}, {minutes} minutes on two cores:"
    return f"<!-- figures -->\n{said}\n\n{table(found)}\n<!-- end -->"
