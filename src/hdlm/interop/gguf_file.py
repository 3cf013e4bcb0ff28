"""GGUF files: what they say of themselves, and their tensors as floats. Knows no architecture.

A file may come from anybody, and may lie about every size in it. The header is read here, piece by piece, and each
count is held against what is left of the file before anything of that size is asked for; a tensor is read only where it
lies inside of the file. The `gguf` package knows how numbers are packed, and is given such bytes alone.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from hdlm.errors import first_line
from hdlm.folders import regular_file, unreadable
from hdlm.theory import numbers

MAGIC = b"GGUF"
_LARGEST_HEADER = 2**27  # bytes
_MOST = {"entries": 2**16, "tensors": 2**16, "items": 2**21}
_MAX_DIMENSIONS = 4
_ALIGNMENT = 32
_PIECE = 2**20  # bytes that are unpacked at a time
# Kinds of values by their number in the file: those of one size, texts, and arrays.
_PLAIN = dict(enumerate(("<u1", "<i1", "<u2", "<i2", "<u4", "<i4", "<f4", "?"))) | {10: "<u8", 11: "<i8", 12: "<f8"}
_TEXT, _ARRAY = 8, 9


@dataclass(frozen=True)
class Place:
    """Where a tensor lies: its shape as torch has it, how it is packed, and its bytes."""

    shape: tuple[int, ...]
    kind: int
    start: int
    size: int

    @property
    def count(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class GGUF:
    """A file's header, checked: `metadata` by key, and where each tensor lies."""

    path: Path
    metadata: Mapping[str, Any]
    places: Mapping[str, Place]

    def outline(self) -> dict[str, Tensor]:
        """The tensors on the meta device: their shapes, and none of their numbers."""
        return {name: torch.empty(place.shape, device="meta") for name, place in self.places.items()}

    def tensor(self, name: str) -> Tensor:
        """One tensor, unpacked to float32."""
        place = self.places[name]
        numbers.fits_memory(f"{name} of {self.path}", 4 * place.count)
        try:
            return _unpack(self.path, place).view(place.shape)
        except NotImplementedError:
            kind = _package().GGMLQuantizationType(place.kind).name
            raise ValueError(f"{self.path} is not accepted: {name} is packed as {kind}, which is not read") from None
        except (OSError, ValueError) as error:
            raise ValueError(f"{self.path} has {name} that cannot be read: {first_line(error)}") from None


def _unpack(path: Path, place: Place) -> Tensor:
    """The numbers of one tensor in a row, float32; a piece at a time, since each takes several times its room."""
    package = _package()
    kind = package.GGMLQuantizationType(place.kind)
    block, width = package.GGML_QUANT_SIZES[kind]
    found, blocks = np.empty(place.count, np.float32), _PIECE // width
    with open(path, "rb") as file:
        file.seek(place.start)
        for start in range(0, place.count, blocks * block):
            part = found[start : start + blocks * block]
            packed = np.frombuffer(file.read(len(part) // block * width), np.uint8).reshape(1, -1)
            with np.errstate(all="ignore"):  # what is no number is refused by name, when the network is filled
                part[:] = package.quants.dequantize(packed, kind)[0]
    return torch.from_numpy(found)


def read_header(path: str | Path) -> GGUF:
    """The header of a GGUF file."""
    path = regular_file(path)
    package = _package()
    try:
        with open(path, "rb") as file:
            return _Header(path, file, package.GGML_QUANT_SIZES).read()
    except OSError as error:
        raise unreadable(path, error) from None


def _package() -> Any:
    try:
        import gguf
    except ImportError:
        raise ValueError("reading a GGUF file needs: pip install 'hdlm[gguf]'") from None
    return gguf


class _Header:
    """One walk over the beginning of a file."""

    def __init__(self, path: Path, file: BinaryIO, sizes: Mapping[Any, tuple[int, int]]) -> None:
        self._path, self._file, self._sizes = path, file, {int(kind): size for kind, size in sizes.items()}
        self._total = path.stat().st_size
        self._left = min(self._total, _LARGEST_HEADER)

    def read(self) -> GGUF:
        if self._total < len(MAGIC) or self._bytes(len(MAGIC)) != MAGIC:
            raise ValueError(f"{self._path} is no GGUF file")
        version = self._number("<u4")
        if version not in (2, 3):
            raise self._refusal(f"it is of version {version}, and 2 and 3 are read")
        tensors = self._count("<u8", "tensors", least=24)
        entries = self._count("<u8", "entries", least=12)
        metadata: dict[str, Any] = {}
        for _ in range(entries):
            key = self._text()
            if key in metadata:
                raise self._refusal(f"it says {numbers.shown(key)} twice")
            metadata[key] = self._value(self._number("<u4"), key)
        parts = metadata.get("split.count", 1)
        if parts not in (0, 1):
            raise self._refusal(f"it is one of {parts} parts of a model: join them first (llama-gguf-split --merge)")
        found = [self._tensor() for _ in range(tensors)]
        alignment = metadata.get("general.alignment", _ALIGNMENT)
        if not isinstance(alignment, int) or not 1 <= alignment <= 2**16 or alignment & (alignment - 1):
            raise self._refusal(f"general.alignment is {numbers.shown(alignment)}, which is no power of two")
        start = -(-self._file.tell() // alignment) * alignment
        places: dict[str, Place] = {}
        for name, shape, kind, offset in found:
            if name in places:
                raise self._refusal(f"it holds {numbers.shown(name)} twice")
            places[name] = self._place(name, shape, kind, start + offset)
        return GGUF(self._path, metadata, places)

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        """Name, shape, packing and offset of one tensor."""
        name, count = self._text(), self._number("<u4")
        if not 1 <= count <= _MAX_DIMENSIONS:
            raise self._refusal(f"{numbers.shown(name)} has {count} dimensions, and 1 to {_MAX_DIMENSIONS} are read")
        shape = tuple(int(size) for size in reversed(self._numbers("<u8", count)))
        return name, shape, self._number("<u4"), self._number("<u8")

    def _place(self, name: str, shape: tuple[int, ...], kind: int, start: int) -> Place:
        if kind not in self._sizes:
            raise self._refusal(f"{numbers.shown(name)} is packed in a way, {kind}, that is not known")
        block, width = self._sizes[kind]
        if not all(shape) or shape[-1] % block:
            raise self._refusal(f"{numbers.shown(name)} has the shape {shape}, in blocks of {block}")
        size = math.prod(shape) // block * width
        if start + size > self._total:
            raise self._refusal(f"{numbers.shown(name)} would end after the file does: it is truncated")
        return Place(shape, kind, start, size)

    def _value(self, kind: int, key: str) -> Any:
        if kind in _PLAIN:
            return self._number(_PLAIN[kind])
        if kind == _TEXT:
            return self._text()
        if kind != _ARRAY:
            raise self._refusal(f"{numbers.shown(key)} is of a kind, {kind}, that is not known")
        inner = self._number("<u4")
        if inner != _TEXT and inner not in _PLAIN:
            raise self._refusal(f"{numbers.shown(key)} is an array of a kind, {inner}, that is not read")
        if inner == _TEXT:
            return [self._text() for _ in range(self._count("<u8", "items", least=8))]
        return self._numbers(_PLAIN[inner], self._count("<u8", "items", least=np.dtype(_PLAIN[inner]).itemsize))

    def _count(self, kind: str, what: str, *, least: int) -> int:
        """A number of things of at least so many bytes each, refused where the file cannot hold them."""
        count = self._number(kind)
        if count > _MOST[what] or count * least > self._left:
            raise self._refusal(f"it would have {count:,} {what}: it is truncated or damaged")
        return count

    def _text(self) -> str:
        size = self._number("<u8")
        if size > self._left:
            raise self._refusal(f"it would have a text of {size:,} bytes: it is truncated or damaged")
        try:
            return self._bytes(size).decode("utf-8")
        except UnicodeDecodeError:
            raise self._refusal("it holds a text that is not UTF-8") from None

    def _number(self, kind: str) -> Any:
        return self._numbers(kind, 1)[0]

    def _numbers(self, kind: str, count: int) -> list[Any]:
        dtype = np.dtype(kind)
        return np.frombuffer(self._bytes(dtype.itemsize * count), dtype).tolist()

    def _bytes(self, count: int) -> bytes:
        """The next bytes of the header."""
        found = self._file.read(count) if count <= self._left else b""
        if len(found) < count:
            raise self._refusal("its header ends too soon: it is truncated or damaged")
        self._left -= count
        return found

    def _refusal(self, why: str) -> ValueError:
        return ValueError(f"{self._path} is not accepted: {why}")
