"""Read JSON lines: an object on each line, parsed by Polars in blocks.

Every value is read as text; columns are converted afterwards. How a line is read does not depend on
other lines.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from tacit.connectors.file_pieces import LONGEST_LINE, FilePiece, FilePieces
from tacit.connectors.salvage import salvage
from tacit.errors import SourceError
from tacit.pipeline.sources import Batch, EmptySourceError, Rejected, Source, encode_keys

_SAMPLE: Final = 1000
"""The number of lines to search for keys."""
_SPECIAL: Final = re.compile(rb"NaN|Infinity|\\u[dD][89a-fA-F]")
"""Text that Polars reads differently from JSON or from other programs."""
_SUSPECT: Final = (b"NaN", b"Infinity", b"\\u")
"""Text without any of these has nothing special; looking for them is faster."""
_UNREADABLE: Final = b"\xff"


class JsonLinesSource(Source):
    """Reads a file of JSON lines, or an open descriptor."""

    unit = "bytes"
    textual = True
    keyed = True

    def __init__(self, place: Path | int, name: str | None = None) -> None:
        self.name = name or (str(place) if isinstance(place, Path) else "standard input")
        self.once = isinstance(place, int)
        self._pieces = FilePieces(place, self.name)
        self.total = self._pieces.size()
        self._begin: dict[str, int] | None = None

    def schema(self) -> pa.Schema:
        """Return an empty schema: objects name their own columns; raise if there is none."""
        if not self._pieces.peek().strip():
            raise EmptySourceError(f"{self.name} is empty: it has no tuples")
        return pa.schema([])

    def first_keys(self) -> list[str]:
        """Return the keys of the objects on the first lines."""
        lines = self._pieces.peek().split(b"\n", _SAMPLE)[:_SAMPLE]
        rows = [row for row in map(_load, lines) if isinstance(row, dict)]
        return list(dict.fromkeys(key for row in rows for key in row))

    def resume(self, token: Any) -> None:
        """Start at a line when it is read next."""
        self._begin = token

    def read(self, columns: Sequence[str], keys: Sequence[str]) -> Iterator[Batch]:
        """Parse block by block; missing keys are null, other keys are ignored."""
        begin, self._begin = self._begin, None
        pieces = self._pieces if begin is None else self._pieces.read_from(begin["offset"])
        line = 1 if begin is None else begin["line"]
        for block, position, after in split_blocks(pieces, self.name):
            batch = parse_batch(block, line, columns, keys)
            yield replace(batch, position=position, source=self.name, token=begin)
            line += block.count(b"\n")
            begin = {"offset": after, "line": line} if self._pieces.seekable else None


def parse_batch(block: bytes, line: int, columns: Sequence[str], keys: Sequence[str]) -> Batch:
    """Parse the rows of a block that starts with this line; the caller sets the position."""
    frame, places, rejected = parse_block(block, line, columns)
    table = frame.select(columns).rechunk().to_arrow()
    batch, *_ = table.to_batches() or [pa.RecordBatch.from_pylist([], table.schema)]
    return Batch(encode_keys(batch, keys), line, 0, "", tuple(rejected), places)


def parse_block(
    block: bytes, first: int, columns: Sequence[str]
) -> tuple[pl.DataFrame, NDArray[np.int64] | None, list[Rejected]]:
    """Parse a block: rows, line numbers if they are not consecutive, and rejected lines."""
    frame = _read_plain(block, block.count(b"\n") + (not block.endswith(b"\n")), columns)
    if frame is not None:
        return frame, None, []
    lines = [
        (first + number, text)
        for number, text in enumerate(block.split(b"\n"))
        if text and not text.isspace()
    ]
    found = parse_objects([text for _, text in lines], columns)
    rejected = [
        Rejected(lines[number][0], reason, lines[number][1].decode(errors="replace"))
        for number, reason in found.rejected
    ]
    places = np.array([number for number, _ in lines], np.int64)[found.origin]
    return found.frame, places, rejected


def read_plain_objects(payloads: Sequence[bytes], columns: Sequence[str]) -> pl.DataFrame | None:
    """Read payloads that are an object each, without line breaks; None if some are not."""
    block = b"\n".join([b"", *payloads])
    if not block.count(b"\n") == block.count(b"\n{") == len(payloads):
        return None
    return _read_plain(block[1:], len(payloads), columns)


def _read_plain(block: bytes, count: int, columns: Sequence[str]) -> pl.DataFrame | None:
    """Read so many lines at once; None if some need a closer look."""
    if any(text in block for text in _SUSPECT) and _SPECIAL.search(block):
        return None
    try:
        frame = read_objects(block, columns)
    except pl.exceptions.PolarsError:
        return None
    return frame if frame.height == count else None


class ParsedItems:
    """The rows of lines or payloads, in order."""

    __slots__ = ("frame", "origin", "rejected")

    def __init__(
        self,
        frame: pl.DataFrame,
        origin: NDArray[np.int64],
        rejected: Sequence[tuple[int, str]],
    ) -> None:
        self.frame = frame
        self.origin = origin
        """The item that each row comes from."""
        self.rejected = rejected
        """Unreadable items, and why."""


def parse_objects(lines: Sequence[bytes], columns: Sequence[str]) -> ParsedItems:
    """Parse the objects on these lines, none of which is blank."""

    def parse(chosen: Sequence[bytes]) -> tuple[pl.DataFrame, NDArray[np.int64]]:
        return read_objects(b"\n".join(chosen), columns), np.ones(len(chosen), np.int64)

    plain = [_normalize(line) if _SPECIAL.search(line) else line for line in lines]
    found = salvage(plain, parse, lambda line: isinstance(_load(line), str))
    return ParsedItems(
        found.frame, found.origin, [(number, _reason(lines[number])) for number in found.failed]
    )


def read_objects(block: bytes, columns: Sequence[str]) -> pl.DataFrame:
    """Read the values of these keys as text, one row per line; raise if a line is no object."""
    if not block:
        return pl.DataFrame(schema=dict.fromkeys(columns, pl.String()))
    return pl.read_ndjson(block, schema=dict.fromkeys(columns, pl.String()))


def split_blocks(pieces: Iterable[FilePiece], name: str) -> Iterator[tuple[bytes, int, int]]:
    """Split pieces at the ends of lines; yield bytes, the file position, and their end."""
    rest = b""
    position = 0
    for piece in pieces:
        data = rest + piece.data
        position = piece.position
        end = data.rfind(b"\n") + 1
        rest = data[end:]
        if len(rest) > LONGEST_LINE:
            raise SourceError(f"{name} has a line of more than {LONGEST_LINE >> 20} MiB")
        if end:
            yield data[:end], position, position - len(rest)
    if rest:
        yield rest, position, position


def _normalize(line: bytes) -> bytes:
    """Rewrite an object with null for NaN and infinity, and without surrogate escapes.

    A line with a lone surrogate becomes unreadable.
    """
    value = _load(line)
    if isinstance(value, str):
        return line
    try:
        return json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return _UNREADABLE


def _reason(line: bytes) -> str:
    """Return why a line is unreadable."""
    problem = _load(line)
    if isinstance(problem, str):
        return problem
    if _normalize(line) == _UNREADABLE:
        return "half of a character (a lone surrogate) in a text"
    return "not JSON that can be read: a number too large, or nested too deep"


def _load(text: bytes) -> dict[str, Any] | str:
    """Parse the object on a line, or return the reason why there is none."""
    try:
        value = json.loads(text, object_pairs_hook=_first_of_each, parse_constant=lambda _: None)
    except UnicodeDecodeError:
        return "not UTF-8 text"
    except json.JSONDecodeError:
        return "not JSON"
    except (ValueError, RecursionError):
        return "not JSON that can be read: a number too long, or nested too deep"
    return value if isinstance(value, dict) else "not a JSON object"


def _first_of_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Keep the first of two equal keys, like Polars."""
    found = dict(pairs)
    if len(found) < len(pairs):
        found.update(reversed(pairs))
    return found
