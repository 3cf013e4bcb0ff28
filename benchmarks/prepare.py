"""What preparing data costs: one worker against two, side by side, memory over time, and what kill -9 loses.

    python benchmarks/prepare.py --megabytes 1000 --folder DIR --out benchmarks/results/cpu/prepare.json

The text is what $HDLM_DATA has of running English, repeated to that size, as JSON lines. Each number of workers is run
in turns, a few times; folders are compared byte by byte with each other, and with the documents encoded one after the
other. Memory is that of all processes together (PSS), sampled four times a second. The exit status is 1 if bytes differ
or a kill loses more than the shards in work.
"""

import argparse
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from itertools import islice
from pathlib import Path

SETS = ("wiki", "hotpot-wiki", "novels")
DOCUMENT = 4000  # characters
# Prepares and says after every step how many tokens are there, so that a killer knows what is lost.
RUN = """
import sys

from hdlm.data.prepare import prepare

data, out, tokenizer, workers = sys.argv[1:]
tell = lambda progress: print(progress.tokens, flush=True)
prepare(data, out, tokenizer=tokenizer, workers=int(workers), tell=tell)
"""


def make_text(path, size):
    """A file of JSON lines of about so many bytes of text."""
    from hdlm.data.corpus import open_corpus

    written = 0
    with path.open("w", encoding="utf-8") as file:
        while written < size:
            for name in SETS:
                for text in open_corpus(name).documents("train"):
                    for start in range(0, len(text), DOCUMENT):
                        piece = text[start : start + DOCUMENT]
                        file.write(json.dumps({"text": piece}, ensure_ascii=False) + "\n")
                        written += len(piece.encode())
                        if written >= size:
                            return


def family(pid):
    """A process and all below it."""
    found, below = [pid], {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            below.setdefault(parent, []).append(int(entry.name))
    for one in found:
        found += below.get(one, [])
    return found


def memory(pid):
    """Bytes that a process and all below it hold, what they share counted once."""
    total = 0
    for one in family(pid):
        try:
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


def cpu_seconds():
    """What all processes that have ended took of the cores."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Run:
    """One run in processes of its own, with what it says and what memory it takes."""

    def __init__(self, args, script, out, workers):
        words = [sys.executable, str(script), str(args.text), str(out), args.tokenizer, str(workers)]
        self.began, self.tokens, self.samples = time.perf_counter(), 0, []
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
        threading.Thread(target=self._listen, daemon=True).start()
        threading.Thread(target=self._watch, daemon=True).start()

    def _listen(self):
        for line in self.process.stdout:
            self.tokens = int(line)

    def _watch(self):
        while self.process.poll() is None:
            self.samples.append(memory(self.process.pid))
            time.sleep(0.25)

    def kill(self):
        """All of its processes at once, as if the machine had gone."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def end(self):
        """Seconds that it took."""
        if self.process.wait():
            raise SystemExit(f"a run ended with {self.process.returncode}")
        return time.perf_counter() - self.began


def contents(folder):
    """Every file by its digest."""
    found = {}
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def timed(args, script):
    """Runs in turns: seconds and memory by number of workers, and the folder that each number made."""
    rows = {
        workers: {"seconds": [], "cpu_seconds": [], "peak": [], "middle": [], "last": []} for workers in args.workers
    }
    folders = {}
    for turn in range(args.turns):
        for workers in args.workers if turn % 2 == 0 else args.workers[::-1]:
            out = args.folder / f"tokens-{workers}"
            shutil.rmtree(out, ignore_errors=True)
            used = cpu_seconds()
            run = Run(args, script, out, workers)
            seconds, third = run.end(), len(run.samples) // 3
            row = rows[workers]
            row["seconds"].append(seconds)
            row["cpu_seconds"].append(cpu_seconds() - used)
            row["peak"].append(max(run.samples))
            row["middle"].append(max(run.samples[third : 2 * third] or [0]))
            row["last"].append(max(run.samples[2 * third :]))
            folders[workers] = contents(out)
            print(f"{workers} workers: {seconds:.1f} s, peak {max(run.samples) / 2**20:,.0f} MiB", flush=True)
    return rows, folders


def whole(args, out):
    """Whether the shards, one after the other, are what the tokenizer makes of the documents, one after the other."""
    import numpy as np

    from hdlm.data.corpus import open_corpus
    from hdlm.data.prepared import read_prepared

    made = read_prepared(out)
    read, tokenizer = open_corpus(str(args.text)), made.tokenizer
    for split, shards in made.splits.items():
        files, texts = hashlib.sha256(), hashlib.sha256()
        for shard in shards:
            files.update((out / shard.file).read_bytes())
        documents = read.documents(split)
        while batch := list(islice(documents, 256)):
            for encoded in tokenizer.tokenizer.encode_batch(batch, add_special_tokens=False):
                texts.update(np.asarray([*encoded.ids, tokenizer.eos_id], made.dtype).tobytes())
        if files.digest() != texts.digest():
            return False
    return True


def killed(args, script, wanted, seconds):
    """A run killed at random moments until it is done: tokens lost each time, in shards."""
    out, chance, lost = args.folder / "tokens-killed", random.Random(args.seed), []
    shutil.rmtree(out, ignore_errors=True)
    for _ in range(args.kills):
        run = Run(args, script, out, max(args.workers))
        try:
            run.process.wait(2 + chance.random() * seconds / args.kills)
            break
        except subprocess.TimeoutExpired:
            run.kill()
        records = [json.loads(path.read_text()) for path in (out / "making").glob("*.bin.json")]
        kept = sum(record["tokens"] for record in records)
        largest = max((record["tokens"] for record in records), default=0)
        lost.append({"kept_shards": len(records), "kept": kept, "lost": max(0, run.tokens - kept), "largest": largest})
        print(f"killed: {len(records)} shards kept, {lost[-1]['lost']:,} tokens lost", flush=True)
    Run(args, script, out, max(args.workers)).end()
    return lost, contents(out) == wanted


def main():
    """Measure, print, and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=40)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--tokenizer", default="gpt2")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, required=True, help="for text and tokens; what is there is replaced")
    parser.add_argument("--out", type=Path, help="JSON of all figures")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    args.text, script = args.folder / "text.jsonl", args.folder / "run.py"
    script.write_text(RUN)
    make_text(args.text, args.megabytes * 10**6)
    load = os.getloadavg()[0]
    rows, folders = timed(args, script)
    least, most = min(args.workers), max(args.workers)
    speedup = statistics.median(rows[least]["seconds"]) / statistics.median(rows[most]["seconds"])
    lost, again = killed(args, script, folders[most], statistics.median(rows[most]["seconds"]))
    largest = max((one["largest"] for one in lost), default=0)
    found = {
        "command": " ".join(["python", *sys.argv]),
        "cores": len(os.sched_getaffinity(0)),
        "load_before": load,
        "megabytes": args.megabytes,
        "tokenizer": args.tokenizer,
        "workers": rows,
        "speedup": speedup,
        "same_bytes": all(folder == folders[least] for folder in folders.values()),
        "same_as_one_after_the_other": whole(args, args.folder / f"tokens-{least}"),
        "kills": lost,
        "same_bytes_after_kills": again,
        "at_most_the_shards_in_work": all(one["lost"] <= most * max(largest, 1) or not largest for one in lost),
    }
    text = json.dumps(found, indent=1)
    print(text)
    if args.out is not None:
        args.out.write_text(text + "\n")
    good = ("same_bytes", "same_as_one_after_the_other", "same_bytes_after_kills", "at_most_the_shards_in_work")
    raise SystemExit(0 if all(found[name] for name in good) else 1)


if __name__ == "__main__":
    main()
