"""Run cases: `python -m fuzz --cases 300`, one again with `--case 1234`."""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"
os.environ |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "100"}


def main() -> int:
    """All cases asked for; the exit status says whether all of them ended as they should."""
    parser = argparse.ArgumentParser(prog="fuzz", description="Random input for everything that takes input.")
    parser.add_argument("--cases", type=int, default=300, metavar="N", help="how many (300)")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="the number of the first (0)")
    parser.add_argument("--seed", type=int, default=0, help="of all of them (0)")
    parser.add_argument("--case", type=int, metavar="N", help="this one alone, and show all of it")
    parser.add_argument("--section", help="draw all cases from this section")
    parser.add_argument("--planted", action="store_true", help="run cases that must fail, and say whether they do")
    parser.add_argument("--jobs", type=int, default=2, metavar="J", help="processes (2)")
    parser.add_argument("--record", action="store_true", help="of 10,000 cases or more: write the figures and the page")
    parser.add_argument("--log", type=Path, metavar="FILE", help="write every case here as a line of JSON")
    args = parser.parse_args()

    with tempfile.TemporaryDirectory(prefix="hdlm-fuzz-") as folder:
        top = Path(folder)
        top.chmod(0o755)
        os.environ |= {"MPLCONFIGDIR": folder, "HOME": folder, "HF_HOME": folder, "TMPDIR": folder}
        from fuzz import planted, report, server
        from fuzz.templates import make_templates

        server.prepare_process()
        if args.planted:
            return planted.run_all(top)
        server.isolated(lambda: make_templates(top / "templates"))
        if args.case is not None:
            return report.show_one(top, args.seed, args.case, args.section)
        began = time.monotonic()
        rows = report.run_all(top, args)
        figures = report.figures(rows, seed=args.seed, seconds=time.monotonic() - began)
    if args.log is not None:
        args.log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(report.table(figures))
    report.print_failures(rows)
    if args.record and args.section is None and args.cases >= report.RECORDED:
        report.record(figures)
    return 1 if any(row["kind"] == "failed" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
