"""Read bytes from a file or from standard input, in pieces of bounded size."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tacit.buffers import allocate
from tacit.errors import SourceError

PIECE = 1 << 23
"""Bytes in a piece: with less, the parsers' threads do not pay off."""
_ROOM = 1 << 12
"""The most bytes before a piece, for the end of the one before it."""
LONGEST_LINE = 1 << 26
"""A longer line means that the file is not a text file."""
CODECS = {".gz": "gzip", ".zst": "zstd"}
_WAIT = 0.5
"""Seconds to wait for more bytes from a slow pipe."""
BOM = b"\xef\xbb\xbf"
UTF_16_BOMS = (b"\xff\xfe", b"\xfe\xff")


class FilePiece(NamedTuple):
    """Bytes, and the position in the stored file after them."""

    data: bytes | memoryview
    position: int
    buffer: NDArray[np.uint8] | None = None
    """The memory that ends with these bytes, with some room before them."""

    def after(self, rest: bytes) -> bytes | memoryview:
        """Return the rest of the piece before and these bytes; without a copy if it is short."""
        if self.buffer is None or len(rest) > len(self.buffer) - len(self.data):
            return rest + self.data
        start = len(self.buffer) - len(self.data) - len(rest)
        self.buffer[start : start + len(rest)] = np.frombuffer(rest, np.uint8)
        return self.buffer.data[start:]


class FilePieces:
    """The bytes of a file, readable many times, or of an open descriptor, readable once."""

    def __init__(self, place: Path | int, name: str, smaller: int = 1) -> None:
        """Pieces of a file are `smaller` times smaller than usual."""
        self.name = name
        self._smaller = smaller
        self._place = place
        self._heads: list[FilePiece] = []
        self._reader: Iterator[FilePiece] | None = None
        self._spent = False

    def size(self) -> int | None:
        """Return the size of the file; None for a pipe."""
        with translate_read_errors(self.name):
            return None if isinstance(self._place, int) else self._place.stat().st_size

    @property
    def seekable(self) -> bool:
        """Whether it can be read from an offset."""
        return isinstance(self._place, Path) and self._place.suffix.lower() not in CODECS

    def read_from(self, offset: int) -> Iterator[FilePiece]:
        """Yield the bytes of a file from an offset on."""
        if not isinstance(self._place, Path) or not self.seekable:
            raise SourceError(
                f"{self.name} cannot be resumed in the middle; start from the beginning"
            )
        with translate_read_errors(self.name):
            if self._place.stat().st_size < offset:
                raise SourceError(
                    f"{self.name} is shorter than it was: it was cut short, or is another file. "
                    "Restore it"
                )
            yield from _read_file(self._place, max(1, PIECE // self._smaller), offset)

    def peek(self) -> bytes:
        """Return the start, up to the first non-blank line at least, without consuming it."""
        flow = self._open() if self._reader is None else self._reader
        data = b"".join(piece.data for piece in self._heads)
        while b"\n" not in data.lstrip() and len(data) <= LONGEST_LINE:
            piece = next(flow, None)
            if piece is None:
                break
            self._heads.append(piece)
            data += piece.data
        if isinstance(self._place, Path):
            self._heads.clear()
        else:
            self._reader = flow
        return data

    def __iter__(self) -> Iterator[FilePiece]:
        if isinstance(self._place, Path):
            yield from self._open()
            return
        self.peek()
        if self._reader is None or self._spent:
            raise SourceError(f"{self.name} can be read only once")
        self._spent = True
        yield from self._heads
        yield from self._reader

    def _open(self) -> Iterator[FilePiece]:
        pieces = self._raw()
        first = next(pieces, None)
        if first is None:
            return
        while len(first.data) < len(BOM) and (more := next(pieces, None)) is not None:
            first = FilePiece(bytes(first.data) + bytes(more.data), more.position)
        head = bytes(first.data[: len(BOM)])
        if head.startswith(UTF_16_BOMS):
            raise SourceError(f"{self.name} is UTF-16 text; convert it to UTF-8")
        yield first._replace(data=first.data[len(BOM) :]) if head == BOM else first
        yield from pieces

    def _raw(self) -> Iterator[FilePiece]:
        with translate_read_errors(self.name):
            if isinstance(self._place, int):
                yield from _read_pipe(self._place)
            else:
                yield from _read_file(self._place, max(1, PIECE // self._smaller))


def _read_file(path: Path, size: int, offset: int = 0) -> Iterator[FilePiece]:
    codec = CODECS.get(path.suffix.lower())
    with pa.OSFile(str(path)) as file:
        file.seek(offset)
        stream = pa.CompressedInputStream(file, codec) if codec else file
        with closing(stream):
            room = min(_ROOM, size // 8)
            while True:
                buffer = allocate(size, np.uint8)
                found = stream.readinto(buffer[room:])
                if not found:
                    return
                buffer = buffer[: room + found]
                yield FilePiece(buffer.data[room:], file.tell(), buffer)


def _read_pipe(descriptor: int) -> Iterator[FilePiece]:
    """Read a pipe: yield a full piece, or what arrives shortly after the first byte."""
    position = 0
    ended = False
    while not ended:
        parts: list[bytes] = []
        size = 0
        deadline: float | None = None
        while size < PIECE and not ended:
            left = None if deadline is None else deadline - time.monotonic()
            # a read would not be interrupted by Ctrl-C, since Polars' handler restarts it
            if not select.select([descriptor], [], [], left and max(left, 0))[0]:
                break
            part = os.read(descriptor, PIECE - size)
            ended = not part
            parts.append(part)
            size += len(part)
            deadline = deadline or time.monotonic() + _WAIT
        if size:
            position += size
            yield FilePiece(b"".join(parts), position)


@contextmanager
def translate_read_errors(name: str) -> Iterator[None]:
    """Turn a failed read into a SourceError with the file and what to do."""
    try:
        yield
    except FileNotFoundError as error:
        raise SourceError(f"{name} does not exist; check the path") from error
    except (OSError, pa.ArrowException) as error:
        number = getattr(error, "errno", None)
        what = os.strerror(number) if number else "it is damaged or was cut short"
        raise SourceError(f"{name} cannot be read: {what}. Check or copy it again.") from error
