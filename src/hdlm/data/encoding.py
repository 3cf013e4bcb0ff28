"""Bytes to text, strictly: what a codec cannot decode is refused with its place, or replaced where that is asked for.

Knows no kinds of files.
"""

import codecs
import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TextIO, cast

REPLACEMENT = "\ufffd"  # what stands in a text for what could not be decoded
_REPLACE = "replace"


@dataclass(frozen=True)
class Encoding:
    """A text codec of Python's, and whether what it cannot decode becomes U+FFFD instead of being refused."""

    codec: str
    replaces: bool = False

    @classmethod
    def named(cls, word: str) -> "Encoding":
        """`latin-1`, or `latin-1:replace`."""
        name, mark, rule = str(word).partition(":")
        try:
            "".encode(name)  # unlike `codecs.lookup`, this refuses codecs that are not for text
            known = rule == _REPLACE if mark else True
        except (LookupError, ValueError):
            known = False
        if not known:
            raise ValueError(
                f"encoding = {word!r} is not accepted: it must be a text codec of Python (utf-8, latin-1, utf-16 ...), "
                f"or one with :{_REPLACE} after it"
            )
        return cls(codecs.lookup(name).name, bool(mark))

    def __str__(self) -> str:
        return f"{self.codec}:{_REPLACE}" if self.replaces else self.codec

    @property
    def has_nul(self) -> bool:
        """Whether a zero byte may be part of a text: where it is no character by itself, or where all is taken."""
        try:
            return self.replaces or b"\0".decode(self.codec) != "\0"
        except UnicodeError:
            return True


UTF_8 = Encoding("utf-8")


class _Watched(io.BufferedIOBase):
    """A stream of bytes that knows how many were read of it, and refuses zero bytes where text has none."""

    def __init__(self, stream: IO[bytes], place: str, encoding: Encoding) -> None:
        self._stream, self._place, self._has_nul = stream, place, encoding.has_nul
        self.position = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        return self._seen(self._stream.read(-1 if size is None else size))

    def read1(self, size: int = -1, /) -> bytes:
        return self._seen(self._stream.read1(size))  # pyright: ignore[reportAttributeAccessIssue]

    def _seen(self, data: bytes) -> bytes:
        at = -1 if self._has_nul else data.find(b"\0")
        if at >= 0:
            raise ValueError(
                f"{self._place} is no text: byte {self.position + at} is NUL; if it is UTF-16, say so: "
                "--encoding utf-16"
            )
        self.position += len(data)
        return data


@contextmanager
def decoded(stream: IO[bytes], place: str, encoding: Encoding) -> Iterator[TextIO]:
    """A stream of bytes as text, newlines as they are and without a byte order mark; `place` names it in refusals."""
    watched = _Watched(stream, place, encoding)
    codec = "utf-8-sig" if encoding.codec == UTF_8.codec else encoding.codec
    errors = _REPLACE if encoding.replaces else "strict"
    try:
        yield io.TextIOWrapper(cast(IO[bytes], watched), encoding=codec, errors=errors, newline="")
    except UnicodeDecodeError as error:
        at = watched.position - len(error.object) + error.start
        raise ValueError(
            f"{place} is not {encoding.codec}: byte {at} (0x{error.object[error.start]:02x}) cannot be decoded; name "
            f"its encoding (--encoding latin-1, utf-16 ...), or have what cannot be decoded replaced (--encoding "
            f"{encoding.codec}:{_REPLACE})"
        ) from None
    except UnicodeError as error:
        raise ValueError(f"{place} is not {encoding.codec}: {error}") from None
