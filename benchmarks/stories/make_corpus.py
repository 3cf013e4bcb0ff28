"""Draw the corpus of stories: rows whose exact probability is known, in the model's tokens.

    PYTHONPATH=src python benchmarks/stories/make_corpus.py --source ../shared/weights/stories15m --out stories

Everything follows from the seeds; train, valid and test are streams of their own. The tokenizer (`tokenizer.json`, made
from the first rows where there is none) reads a row's text, byte by byte if need be, so that no piece of the source is
left out. A row of more than LENGTH tokens ends there, and what was cut off is summed over: the probability that is kept
with a held-out row is that of drawing its pieces up to there and then any that goes on as the row does.

Writes train.npy [rows, LENGTH] (65535 after a row's end), valid and test as .npz (tokens, nats, bytes, pieces) and
.jsonl (text, nats, pieces), tokenizer.json, and corpus.json with the entropy of the source and its error.
"""

import argparse
import json
import multiprocessing
import time
from bisect import bisect_left
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from source import BOS, END, ROW, Source
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

from hdlm.evaluate.texts import size_of

LENGTH = 256
SEEDS = {"train": 1_000, "valid": 1, "test": 2}  # the first of a stream; train's parts are numbered from there


@dataclass(frozen=True)
class Cut:
    """A row up to its last token: tokens, how many whole pieces that is, and what it has of the next one."""

    tokens: list[int]
    pieces: int
    begun: str
    text: str

    @property
    def size(self) -> int:
        """Bytes of text, the end of a story being one."""
        return size_of(self.text, [END])


def train_tokenizer(texts: list[str], size: int) -> Tokenizer:
    """Byte-level BPE of `size` entries, END the first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


class Cutter:
    """Rows of pieces to rows of tokens. Knows pieces and tokenizer, no network."""

    def __init__(self, source: Source, tokenizer: Tokenizer) -> None:
        self._source, self._tokenizer = source, tokenizer

    def __call__(self, rows: np.ndarray) -> list[Cut | None]:
        """Each row cut; None for the few whose last token would end inside a character."""
        texts = [self._source.text(row) for row in rows.tolist()]
        encoded = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        return [self._cut(row, text, found) for row, text, found in zip(rows.tolist(), texts, encoded, strict=True)]

    def _cut(self, row: list[int], text: str, found) -> Cut | None:
        if len(found.ids) <= LENGTH:
            return Cut(found.ids, len(row), "", text)
        end = found.offsets[LENGTH - 1][1]
        if found.offsets[LENGTH][0] < end:
            return None
        place, fresh = 0, True
        for number, piece in enumerate(row):
            said = END if piece == BOS else self._source.pieces[piece]
            said = said.removeprefix(" ") if fresh else said
            fresh = piece == BOS
            if place + len(said) > end:
                return Cut(found.ids[:LENGTH], number, said[: end - place], text[:end])
            place += len(said)
        raise AssertionError("a row's pieces are its text")


_cutter: Cutter | None = None


def _start(folder: Path, tokenizer: str) -> None:
    global _cutter
    torch.set_num_threads(1)
    _cutter = Cutter(Source(folder), Tokenizer.from_str(tokenizer))


def _work(rows: np.ndarray) -> np.ndarray:
    assert _cutter is not None
    return matrix([cut for cut in _cutter(rows) if cut is not None])


def matrix(cuts: list[Cut]) -> np.ndarray:
    """Tokens [rows, LENGTH], after a row's end the largest number that there is."""
    found = np.full((len(cuts), LENGTH), np.iinfo(np.uint16).max, dtype=np.uint16)
    for row, cut in zip(found, cuts, strict=True):
        row[: len(cut.tokens)] = cut.tokens
    return found


def nats_of(source: Source, rows: Tensor, cuts: list[Cut]) -> Tensor:
    """-log p of each row as far as it was cut, [rows]."""
    ends = torch.tensor([min(cut.pieces, ROW - 1) for cut in cuts])
    log_p, after = source.log_p(rows, ends)
    order = sorted((piece, number) for number, piece in enumerate(source.pieces))
    words = [piece for piece, _ in order]
    nats = torch.empty(len(rows), dtype=torch.float64)
    for number, cut in enumerate(cuts):
        nats[number] = -log_p[number, : cut.pieces].sum()
        if not cut.begun:
            continue
        first = cut.pieces == 0 or rows[number, cut.pieces - 1] == BOS
        start = " " + cut.begun if first else cut.begun  # a story's first space was left out
        low, high = bisect_left(words, start), bisect_left(words, start + "\U0010ffff")
        able = torch.tensor([order[i][1] for i in range(low, high)])
        nats[number] -= after[number, able].logsumexp(0)
    return nats


def main() -> None:
    """Draw, cut, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=400_000, help="of train")
    parser.add_argument("--held-out", type=int, default=2_048, help="rows of valid and of test")
    parser.add_argument("--vocabulary", type=int, default=2_047, help="with MASK a power of two")
    parser.add_argument("--batch", type=int, default=8_192, help="rows drawn together; a part of train")
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    source = Source(args.source, device=args.device)
    began = time.perf_counter()
    first = source.draw(min(args.rows, args.batch), seed=SEEDS["train"], batch=args.batch)
    print(f"{len(first)} rows in {time.perf_counter() - began:.1f} s", flush=True)
    path = args.out / "tokenizer.json"
    if not path.exists():
        train_tokenizer([source.text(row) for row in first.tolist()], args.vocabulary).save(str(path))
    tokenizer = Tokenizer.from_file(str(path))

    cutter, summary = Cutter(source, tokenizer), {}
    for split in ("valid", "test"):
        summary[split] = _held_out(source, cutter, split, args)
        print(split, summary[split], flush=True)

    began, drawn = time.perf_counter(), len(first)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(args.workers, context, _start, (args.source, tokenizer.to_str())) as pool:
        parts: list[Future] = [pool.submit(_work, part) for part in np.array_split(first.numpy(), args.workers)]
        for number, start in enumerate(range(len(first), args.rows, args.batch), start=1):
            rows = source.draw(min(args.batch, args.rows - start), seed=SEEDS["train"] + number, batch=args.batch)
            parts += [pool.submit(_work, part) for part in np.array_split(rows.numpy(), args.workers)]
            drawn += len(rows)
            print(f"{drawn} rows, {time.perf_counter() - began:.0f} s", end="\r", flush=True)
        seconds = time.perf_counter() - began
        train = np.concatenate([part.result() for part in parts])
    np.save(args.out / "train.npy", train)
    fresh = (drawn - len(first)) * ROW
    summary["train"] = {
        "rows": len(train),
        "drawn": drawn,
        "pieces_per_s": fresh / seconds,
        "seconds": time.perf_counter() - began,
        "distinct_pieces": len(first.unique()),
    }
    (args.out / "corpus.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(json.dumps(summary["train"]))


def _held_out(source: Source, cutter: Cutter, split: str, args: argparse.Namespace) -> dict[str, float]:
    rows = source.draw(args.held_out, seed=SEEDS[split], batch=args.batch)
    log_p, _ = source.log_p(rows, torch.zeros(len(rows), dtype=torch.int64))
    found = cutter(rows.numpy())
    good = [number for number, cut in enumerate(found) if cut is not None]
    cuts = [cut for cut in found if cut is not None]
    nats = nats_of(source, rows[good], cuts)
    pieces = torch.tensor(
        [
            cut.pieces + (len(cut.begun) / len(source.pieces[row[cut.pieces]].strip() or " ") if cut.begun else 0.0)
            for cut, row in zip(cuts, rows[good].tolist(), strict=True)
        ],
        dtype=torch.float64,
    )
    size = torch.tensor([cut.size for cut in cuts], dtype=torch.float64)
    np.savez(args.out / f"{split}.npz", tokens=matrix(cuts), nats=nats, bytes=size, pieces=pieces)
    lines = [
        {"text": cut.text, "nats": value, "pieces": n}
        for cut, value, n in zip(cuts, nats.tolist(), pieces.tolist(), strict=True)
    ]
    (args.out / f"{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    per_row = -log_p.mean(1)
    return {
        "rows": len(good),
        "dropped": len(rows) - len(good),
        "entropy_per_piece": per_row.mean().item(),
        "entropy_error": (per_row.std() / len(per_row) ** 0.5).item(),
        "cut_nats_per_piece": (nats.sum() / pieces.sum()).item(),
        "cut_nats_per_byte": (nats.sum() / size.sum()).item(),
        "bytes_per_token": size.sum().item() / sum(len(cut.tokens) for cut in cuts),
        "pieces_per_row": pieces.mean().item(),
    }


if __name__ == "__main__":
    main()
