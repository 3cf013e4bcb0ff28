"""Data from anywhere: text in other encodings, broken archives, odd tables and matrices; trained on and scored."""

import gzip
import io
import json
import lzma
import random
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

import hdlm
from fuzz import pool
from fuzz.answers import check_numbers
from fuzz.commands import command_plan
from fuzz.damage import damage, damage_bytes, damage_kind
from fuzz.plan import Plan
from fuzz.sandbox import Box
from fuzz.templates import TINY

LINE = "abc def ghij "
CLEAN = LINE * 100


def _text(rng: random.Random, box: Box) -> tuple[str, str | None]:
    """A text file; of what is no text, only a refusal is right."""
    data, expect = rng.choice(
        (
            (CLEAN.encode(), "right"),
            (CLEAN.replace(" ", "\r\n").encode(), None),
            (b"\xef\xbb\xbf" + CLEAN.encode(), None),
            (CLEAN.encode("utf-16"), None),
            (CLEAN.encode("utf-16-le"), None),
            ((CLEAN + "é").encode("latin-1"), "refused"),
            (b"\xff\x00\x80" * 300, "refused"),
            (b"", "refused"),
            (b" \n\t\n" * 50, None),
            (b"a", None),
            (b"\0" * 500, None),
            (b"a" * 300_000, None),
            ((LINE * 20 + "\n").encode() * 10, None),
            ((CLEAN + "\ufffd").encode(), None),
            (CLEAN.encode()[:-1] + "😀".encode()[:2], "refused"),
        )
    )
    name = rng.choice(
        ("text.txt", "text.txt", "text.md", "text.py", "text.raw", "text.log", "text", ".txt", "a.txt.txt")
    )
    (box.work / name).write_bytes(data)
    return name, expect if name.endswith((".txt", ".md", ".py", ".raw")) and name != ".txt" else None


def _lines(rng: random.Random, box: Box) -> tuple[str, str | None]:
    """JSON lines, one of them perhaps odd."""
    rows = [json.dumps({"text": LINE * 3}) for _ in range(60)]
    odd = rng.choice(
        ("{}", "[]", "null", "3", '"abc"', '{"text": 3}', '{"text": null}', '{"text": ""}', '{"text": "\\ud800"}',
         '{"text": NaN}', "{", "", " ", '{"text": ["a"]}', '{"Text": "abc"}', '{"text": "abc", "nats": 3}',
         '{"text": "abc", "nats": "x"}', "[" * 50_000, '{"text": "a", "text": "b"}', "\ufeff" + rows[0],
         '{"text": ' + "9" * 5000 + "}", None, None)
    )  # fmt: skip
    if odd is not None:
        rows[rng.choice((0, 1, len(rows) - 1))] = odd
    (box.work / "text.jsonl").write_text("\n".join(rows), encoding="utf-8", errors="surrogatepass")
    return "text.jsonl", "right" if odd is None else None


def _table(rng: random.Random, box: Box) -> tuple[str, str | None]:
    """CSV, with and without the column that is read."""
    head, row = rng.choice(
        (("text", LINE), ("id,text", f"1,{LINE}"), ("id", "1"), ("", ""), ("text,text", "a,b"), ("\0", "a"))
    )
    rows = [row] * 60
    rows[rng.randrange(60)] = rng.choice((row, '"abc', '"a\nb"', ",,,,", "", "\0", '""""', "x" * 200_000))
    (box.work / "text.csv").write_text("\n".join([head, *rows]))
    return "text.csv", None


def _archive(rng: random.Random, box: Box) -> tuple[str, str | None]:
    """Compressed text and tar archives, some of them cut."""
    kind = rng.choice((".txt.gz", ".txt.xz", ".tar", ".tar.gz", ".tar.xz", ".jsonl.xz"))
    data = CLEAN.encode() if "jsonl" not in kind else (json.dumps({"text": CLEAN}) + "\n").encode() * 3
    if ".tar" in kind:
        store = io.BytesIO()
        with tarfile.open(fileobj=store, mode="w") as archive:
            for number in range(3):
                member = tarfile.TarInfo(rng.choice(("a.txt", "../../up.txt", "/etc/x", "")) + str(number))
                member.size = len(data)
                member.type = tarfile.REGTYPE if number < 2 else rng.choice((tarfile.SYMTYPE, tarfile.FIFOTYPE, b"0"))
                archive.addfile(member, io.BytesIO(data))
        data = store.getvalue()
    data = (
        gzip.compress(data, mtime=0) if kind.endswith(".gz") else lzma.compress(data) if kind.endswith(".xz") else data
    )
    path, whole = box.work / f"text{kind}", rng.random() < 0.3
    path.write_bytes(data)
    if not whole:
        damage_bytes(rng, path)
    return path.name, "right" if whole and ".tar" not in kind else None


def _matrix(rng: random.Random, box: Box) -> tuple[str, str | None]:
    """A matrix of tokens, of any type and shape."""
    shape = rng.choice(((80, 16), (80, 16), (80, 16), (80, 7), (1, 16), (0, 16), (80, 0), (80,), (4, 4, 16), ()))
    dtype = rng.choice(("int64", "int32", "uint16", "int16", "uint8", "int8", "float32", "bool", "uint64", "complex64"))
    tokens = np.random.default_rng(0).integers(0, 100, shape).astype(dtype)
    plain = np.real(tokens).astype("int64")
    value = rng.choice((None, None, None, -1, -2, 300, 2**15 - 1))
    if value is not None and tokens.size:
        tokens.flat[rng.randrange(tokens.size)] = np.array(value).astype(dtype)
    valid = value is None and shape == (80, 16) and dtype in ("int64", "int32", "uint16", "int16")
    if rng.random() < 0.6:
        np.save(box.work / "rows.npy", tokens)
        name = "rows.npy"
    else:
        name, known = "rows.safetensors", tokens.dtype.name in ("int64", "int32", "int16", "uint8", "float32", "bool")
        key = "tokens" if valid else rng.choice(("tokens", "tokens", "x"))
        save_file({key: torch.tensor(tokens if known else plain)}, box.work / name)
        valid = valid and known
    if not valid and rng.random() < 0.3:
        damage_bytes(rng, box.work / name)
    return name, "right" if valid else None


def _pickled_matrix(rng: random.Random, box: Box) -> tuple[str, str | None]:
    np.save(box.work / "rows.npy", np.array([[object()] * 16] * 80), allow_pickle=True)
    return "rows.npy", "refused"


def _folder(rng: random.Random, box: Box) -> tuple[str, str | None]:
    """A folder of files, good and bad ones."""
    folder = box.work / "texts"
    folder.mkdir()
    for number in range(rng.choice((0, 1, 3, 45))):
        (folder / f"{number}.txt").write_text(CLEAN[:400])
    if rng.random() < 0.7:
        (folder / "odd.txt").write_text(CLEAN)
        (damage_kind if rng.random() < 0.5 else damage_bytes)(rng, folder / "odd.txt")
    return "texts", None


def _prepared(rng: random.Random, box: Box) -> tuple[str, str | None]:
    """Prepared tokens, as they are or with one of their files damaged; not all damage is in what a run reads."""
    folder = box.work / box.copy("prepared")
    if rng.random() < 0.3:
        return "prepared", None
    path = rng.choice(sorted(folder.iterdir()))
    damage(rng, path)
    return "prepared", None


def _anything(rng: random.Random, box: Box) -> tuple[str, str | None]:
    return (box.place(rng) if rng.random() < 0.7 else pool.word(rng)), None


KINDS: tuple[Callable[[random.Random, Box], tuple[str, str | None]], ...] = (
    _text, _text, _text, _lines, _lines, _table, _archive, _archive, _matrix, _matrix, _pickled_matrix, _folder,
    _prepared, _anything,
)  # fmt: skip


def _is_large(data: str) -> bool:
    """Whether to score all of it would take a minute."""
    try:
        return Path(data).stat().st_size > 100_000
    except (OSError, ValueError):
        return False


def make(rng: random.Random, box: Box) -> Plan:
    """A file or folder of data, and one way to read it."""
    data, expect = rng.choice(KINDS)(rng, box)
    matrix = Path(data).suffix in (".npy", ".safetensors")
    if rng.random() < 0.6 or matrix:
        fields = [part for name, word in TINY.items() for part in (f"--{name}", word)]
        argv = ["train", "laptop", "--data", data, "--out", "run", "--steps", "1", *fields, "--json"]
        plan = command_plan(argv, box)
    elif rng.random() < 0.5 or _is_large(data):
        model = box.copy("gamma", "model")
        argv = ["evaluate", model, "--data", data, "--metrics", "bound", "--draws", "1", "--tokens", "16", "--json"]
        plan = command_plan(argv, box)
    else:
        model = box.copy("gamma", "model")
        plan = Plan(
            f'hdlm.load("model").perplexity(Path({data!r}), samples=1)',
            call=lambda: hdlm.load(model).perplexity(Path(data), samples=1).to_json(),
            check=check_numbers,
        )
    plan.expect = expect
    return plan
