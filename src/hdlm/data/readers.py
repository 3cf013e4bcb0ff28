"""Files to documents: text, JSON lines, CSV and Parquet, plain or compressed. Knows no corpus and no tokenizer."""

import csv
import gzip
import io
import json
import lzma
import math
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

TEXT = (".txt", ".raw", ".md", ".py")
OTHERS = (".jsonl", ".csv", ".parquet", ".tar")
COMPRESSED = {".gz": gzip.open, ".xz": lzma.open}


def kind_of(path: Path) -> str:
    """The suffix that tells how to read a file, compression set aside."""
    suffixes = [suffix for suffix in path.suffixes if suffix not in COMPRESSED]
    return suffixes[-1] if suffixes else ""


def is_readable(path: Path) -> bool:
    """Whether `read` knows what to do with a file of this name."""
    return kind_of(path) in (*TEXT, *OTHERS)


def read(path: Path, *, lines: bool = False) -> Iterator[str]:
    """The documents of one file. A text file is one document, or one a line with `lines`."""
    if not is_readable(path):
        raise ValueError(f"{path} is not accepted: text is read from {', '.join((*TEXT, *OTHERS[:-1]))} or .tar")
    kind = kind_of(path)
    with _refused_if_damaged(path):
        if kind == ".parquet":
            yield from _read_parquet(path)
        elif kind == ".tar":
            yield from _read_tar(path)
        else:
            with _open(path) as file:
                yield from _read_text(file, kind, path, lines)


def read_nats(path: Path) -> list[float] | None:
    """What the source of each document of a JSON lines file needs for it ("nats"), where every line says so."""
    if kind_of(path) != ".jsonl" or not path.is_file():
        return None
    with _refused_if_damaged(path), _open(path) as file:
        found = [_nats_of(line) for line in file if line.strip()]
    return found if found and all(map(math.isfinite, found)) else None


@contextmanager
def _refused_if_damaged(path: Path) -> Iterator[None]:
    try:
        yield
    except (EOFError, lzma.LZMAError, tarfile.TarError, gzip.BadGzipFile, csv.Error) as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def _open(path: Path) -> TextIO:
    return COMPRESSED.get(path.suffix, open)(path, "rt", encoding="utf-8", errors="replace", newline="")


def _read_text(file: TextIO, kind: str, path: Path, lines: bool) -> Iterator[str]:
    if kind == ".csv":
        rows = csv.DictReader(file)
        if "text" not in (rows.fieldnames or ()):
            raise ValueError(f'{path} is not accepted: it has the columns {rows.fieldnames} and no "text"')
        yield from (row["text"] or "" for row in rows)
    elif kind == ".jsonl":
        yield from (_text_of(line, path, number) for number, line in enumerate(file, start=1) if line.strip())
    elif lines:
        yield from (line.strip() for line in file if line.strip())
    else:
        text = file.read()
        if text.strip():
            yield text


def _nats_of(line: str) -> float:
    """A line's number of nats; NaN where it has none."""
    try:
        value = json.loads(line)["nats"]
        return math.nan if isinstance(value, bool) else float(value)
    except (ValueError, KeyError, TypeError, OverflowError):
        return math.nan


def _text_of(line: str, path: Path, number: int) -> str:
    try:
        text = json.loads(line)["text"]
    except (ValueError, KeyError, TypeError):
        text = None
    if not isinstance(text, str):
        raise ValueError(f'{path}, line {number}: it must be a JSON object with the key "text"')
    return text


def read_columns(path: Path) -> Iterator[str]:
    """A CSV file without header whose first column is a class: the other columns, one a line (AG News)."""
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.reader(file):
            yield "\n".join(row[1:])


def _read_parquet(path: Path) -> Iterator[str]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise ValueError(f"{path} needs: pip install 'hdlm[datasets]'") from None
    file = parquet.ParquetFile(path)
    if "text" not in file.schema.names:
        raise ValueError(f'{path} is not accepted: it has the columns {file.schema.names} and no "text"')
    for batch in file.iter_batches(columns=["text"]):
        yield from (text or "" for text in batch.column("text").to_pylist())


def _read_tar(path: Path) -> Iterator[str]:
    with tarfile.open(path) as archive:
        for member in archive:
            extracted = archive.extractfile(member) if member.isfile() else None
            if extracted is not None:
                yield io.TextIOWrapper(extracted, encoding="utf-8", errors="replace").read()
