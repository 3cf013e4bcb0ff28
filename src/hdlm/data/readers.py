"""Files to documents: text, JSON lines, CSV and Parquet, plain or compressed. Knows no corpus and no tokenizer.

What cannot be decoded is refused with its place, so that nothing is read as something else than it is.
"""

import csv
import gzip
import io
import json
import lzma
import math
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import IO, TYPE_CHECKING, TextIO

from hdlm.data.encoding import UTF_8, Encoding, decoded
from hdlm.data.meter import Meter
from hdlm.errors import first_line

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

TEXT = (".txt", ".raw", ".md", ".py")
OTHERS = (".jsonl", ".csv", ".parquet", ".tar")
_BLOCK = 2**20  # bytes read at a time where nothing is done with them
_TABLE_ROWS = 4096  # of Parquet, held at a time
COMPRESSED = {".gz": gzip.open, ".xz": lzma.open}


def kind_of(path: PurePath) -> str:
    """The suffix that tells how to read a file, compression set aside."""
    suffixes = [suffix for suffix in path.suffixes if suffix not in COMPRESSED]
    return suffixes[-1] if suffixes else ""


def is_readable(path: PurePath) -> bool:
    """Whether `read` knows what to do with a file of this name."""
    return kind_of(path) in (*TEXT, *OTHERS)


def is_hidden(path: PurePath) -> bool:
    """Whether a file, or a folder that it is in, has a name that begins with a dot."""
    return any(part.startswith(".") for part in path.parts)


def check_readable(path: Path) -> None:
    """Refuse a file of another kind."""
    if not is_readable(path):
        raise ValueError(f"{path} is not accepted: text is read from {', '.join((*TEXT, *OTHERS[:-1]))} or .tar")


def read(path: Path, *, lines: bool = False, encoding: Encoding = UTF_8, meter: Meter | None = None) -> Iterator[str]:
    """The documents of one file. A text file is one document, or one a line with `lines`. `meter` is told how far."""
    check_readable(path)
    kind, meter = kind_of(path), meter or Meter()
    with _refused_if_damaged(path):
        if kind == ".parquet":
            yield from _read_parquet(path, meter)
        elif kind == ".tar":
            yield from _read_tar(path, encoding, meter)
        else:
            with _bytes_of(path, meter) as stream:
                yield from _read_text(stream, kind, str(path), encoding, lines=lines)


def read_nats(path: Path, *, encoding: Encoding = UTF_8) -> list[float] | None:
    """What the source of each document of a JSON lines file needs for it ("nats"), where every line says so."""
    if kind_of(path) != ".jsonl" or not path.is_file():
        return None
    with _refused_if_damaged(path), _bytes_of(path, Meter()) as stream, decoded(stream, str(path), encoding) as file:
        found = [_nats_of(line) for line in file if line.strip()]
    return found if found and all(map(math.isfinite, found)) else None


@contextmanager
def _refused_if_damaged(path: Path) -> Iterator[None]:
    try:
        yield
    except (EOFError, lzma.LZMAError, zlib.error, tarfile.TarError, gzip.BadGzipFile, csv.Error) as error:
        raise ValueError(f"{path} is damaged or was cut off: {first_line(error)}") from None


@contextmanager
def _bytes_of(path: Path, meter: Meter) -> Iterator[IO[bytes]]:
    """The content of a file, unpacked."""
    with path.open("rb") as packed, meter.following(packed.tell, path.stat().st_size):
        unpack = COMPRESSED.get(path.suffix)
        if unpack is None:
            yield packed
            return
        with unpack(packed) as stream:
            yield stream


def _read_text(stream: IO[bytes], kind: str, place: str, encoding: Encoding, *, lines: bool = False) -> Iterator[str]:
    """The documents of a stream of bytes; `place` names it where it is refused."""
    with decoded(stream, place, encoding) as file:
        if kind == ".jsonl":
            numbered = enumerate(file, start=1)
            yield from (_text_of(line, f"{place}, line {number}") for number, line in numbered if line.strip())
        elif kind == ".csv":
            yield from (_unicode(text, place) for text in _column(file, place))
        else:
            texts = (line.strip() for line in file) if lines else iter([file.read()])
            yield from (_unicode(text, place) for text in texts if text.strip())


def _column(file: TextIO, place: str) -> Iterator[str]:
    rows = csv.DictReader(file)
    if "text" not in (rows.fieldnames or ()):
        raise ValueError(f'{place} is not accepted: it has the columns {rows.fieldnames} and no "text"')
    yield from (row["text"] or "" for row in rows)


def _nats_of(line: str) -> float:
    """A line's number of nats; NaN where it has none."""
    try:
        value = json.loads(line)["nats"]
        return math.nan if isinstance(value, bool) else float(value)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return math.nan


def _text_of(line: str, place: str) -> str:
    try:
        text = json.loads(line)["text"]
    except (ValueError, KeyError, TypeError, RecursionError):
        text = None
    if not isinstance(text, str):
        raise ValueError(f'{place}: it must be a JSON object with the key "text"')
    return _unicode(text, place)


def _unicode(text: str, place: str) -> str:
    """The text, refused where it holds half of a surrogate pair, which is no character."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{place}: {text[error.start]!r} is half a character, and no text") from None
    return text


def read_columns(path: Path, *, meter: Meter) -> Iterator[str]:
    """A CSV file without header whose first column is a class: the other columns, one a line (AG News)."""
    with _refused_if_damaged(path), _bytes_of(path, meter) as stream, decoded(stream, str(path), UTF_8) as file:
        for row in csv.reader(file):
            yield "\n".join(row[1:])


def count(path: Path) -> int:
    """How many documents a file has; a table of Parquet says so itself, all else is read."""
    if kind_of(path) != ".parquet":
        return sum(1 for _ in read(path))
    with _refused_if_damaged(path):
        return _table(path).metadata.num_rows


def _table(path: Path) -> "ParquetFile":
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise ValueError(f"{path} needs: pip install 'hdlm[datasets]'") from None
    try:
        return parquet.ParquetFile(path)
    except ArrowException as error:
        raise ValueError(f"{path} is damaged or was cut off: {first_line(error)}") from None


def _read_parquet(path: Path, meter: Meter) -> Iterator[str]:
    file, size, read = _table(path), path.stat().st_size, 0
    from pyarrow import ArrowException

    if "text" not in file.schema.names:
        raise ValueError(f'{path} is not accepted: it has the columns {file.schema.names} and no "text"')
    try:
        with meter.following(lambda: size * read // max(1, file.metadata.num_rows), size):
            for batch in file.iter_batches(columns=["text"], batch_size=_TABLE_ROWS):
                yield from (_cell(text, path) for text in batch.column("text").to_pylist())
                read += batch.num_rows
    except (ArrowException, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is damaged or was cut off: {first_line(error)}") from None


def _cell(text: object, path: Path) -> str:
    if not isinstance(text, str | None):
        raise ValueError(f'{path} is not accepted: its column "text" holds {type(text).__name__}, and no text')
    return text or ""


def _read_tar(path: Path, encoding: Encoding, meter: Meter) -> Iterator[str]:
    """The files of an archive, each by its own kind; those that are hidden do not count."""
    with _bytes_of(path, meter) as stream, tarfile.open(fileobj=io.BufferedReader(stream)) as archive:  # pyright: ignore
        for member in archive:
            place = PurePath(member.name)
            extracted = archive.extractfile(member) if member.isfile() and not is_hidden(place) else None
            if extracted is not None:
                yield from _read_text(extracted, kind_of(place), f"{path}, {place}", encoding)
        _check_end(archive)


def _check_end(archive: tarfile.TarFile) -> None:
    """Refuse an archive in which something else than the mark of its end comes after what could be read.

    What follows the mark is read as well: only its last byte shows that a compressed archive is whole.
    """
    assert archive.fileobj is not None
    archive.fileobj.seek(archive.offset)
    if archive.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError(f"no file and no end at byte {archive.offset}")
    while archive.fileobj.read(_BLOCK):
        pass
