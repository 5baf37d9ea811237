"""JSON lines: an object on each line, parsed by Polars in blocks.

Every value is read as text; types are given to columns afterwards. Whether a line can be read,
and what it holds, does not depend on other lines.
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

from tacit.connectors.pieces import LONGEST_LINE, FilePiece, FilePieces
from tacit.connectors.salvage import salvage
from tacit.errors import SourceError
from tacit.pipeline.sources import Batch, EmptySourceError, Rejected, Source, encode_keys

_SAMPLE: Final = 1000
"""Lines whose keys are looked at."""
_SPECIAL: Final = re.compile(rb"NaN|Infinity|\\u[dD][89a-fA-F]")
"""What Polars does not read as JSON has it, or as other programs write it."""
_UNREADABLE: Final = b"\xff"


class JsonLinesSource(Source):
    """A file of JSON lines, or an open descriptor that brings them."""

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
        """None: objects name their own columns. Raises EmptySourceError if there are no objects."""
        if not self._pieces.peek().strip():
            raise EmptySourceError(f"{self.name} is empty: it holds no tuple")
        return pa.schema([])

    def first_keys(self) -> list[str]:
        """The keys of the objects on the first lines."""
        lines = self._pieces.peek().split(b"\n", _SAMPLE)[:_SAMPLE]
        rows = [row for row in map(_load, lines) if isinstance(row, dict)]
        return list(dict.fromkeys(key for row in rows for key in row))

    def resume(self, token: Any) -> None:
        """Begin at a line when it is read next."""
        self._begin = token

    def read(self, columns: Sequence[str], keys: Sequence[str]) -> Iterator[Batch]:
        """Parse block by block; missing keys are null, other keys are ignored."""
        begin, self._begin = self._begin, None
        pieces = self._pieces if begin is None else self._pieces.read_from(begin["offset"])
        line = 1 if begin is None else begin["line"]
        for block, position, after in blocks(pieces, self.name):
            batch = parse_batch(block, line, columns, keys)
            yield replace(batch, position=position, source=self.name, token=begin)
            line += block.count(b"\n")
            begin = {"offset": after, "line": line} if self._pieces.seekable else None


def parse_batch(block: bytes, line: int, columns: Sequence[str], keys: Sequence[str]) -> Batch:
    """The rows of a block that begins with this line; its place is for the caller to say."""
    frame, places, rejected = parse_block(block, line, columns)
    table = frame.select(columns).rechunk().to_arrow()
    batch, *_ = table.to_batches() or [pa.RecordBatch.from_pylist([], table.schema)]
    return Batch(encode_keys(batch, keys), line, 0, "", tuple(rejected), places)


def parse_block(
    block: bytes, first: int, columns: Sequence[str]
) -> tuple[pl.DataFrame, NDArray[np.int64] | None, list[Rejected]]:
    """The rows of a block, their lines where these do not count up, and what was rejected."""
    if not _SPECIAL.search(block):
        count = block.count(b"\n") + (not block.endswith(b"\n"))
        try:
            frame = read_objects(block, columns)
        except pl.exceptions.PolarsError:
            frame = None
        if frame is not None and frame.height == count:
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
        """The item that each row is from."""
        self.rejected = rejected
        """Items that could not be read, and why."""


def parse_objects(lines: Sequence[bytes], columns: Sequence[str]) -> ParsedItems:
    """The objects on these lines, none of which is blank."""

    def parse(chosen: Sequence[bytes]) -> tuple[pl.DataFrame, NDArray[np.int64]]:
        return read_objects(b"\n".join(chosen), columns), np.ones(len(chosen), np.int64)

    plain = [_plain(line) if _SPECIAL.search(line) else line for line in lines]
    found = salvage(plain, parse, lambda line: isinstance(_load(line), str))
    return ParsedItems(
        found.frame, found.origin, [(number, _reason(lines[number])) for number in found.failed]
    )


def read_objects(block: bytes, columns: Sequence[str]) -> pl.DataFrame:
    """The values of these keys as text, one row for each line; raises if one is no object."""
    if not block:
        return pl.DataFrame(schema=dict.fromkeys(columns, pl.String()))
    return pl.read_ndjson(block, schema=dict.fromkeys(columns, pl.String()))


def blocks(pieces: Iterable[FilePiece], name: str) -> Iterator[tuple[bytes, int, int]]:
    """Cut pieces at the ends of lines: bytes, how far the file is read, and where they end."""
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


def _plain(line: bytes) -> bytes:
    """The same object with null for NaN and infinity, and whole characters in its texts.

    A line with half of a character (a lone surrogate) becomes unreadable.
    """
    value = _load(line)
    if isinstance(value, str):
        return line
    try:
        return json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return _UNREADABLE


def _reason(line: bytes) -> str:
    """Why a line could not be read."""
    problem = _load(line)
    if isinstance(problem, str):
        return problem
    if _plain(line) == _UNREADABLE:
        return "half of a character (a lone surrogate) in a text"
    return "not JSON that can be read: a number too large, or nested too deep"


def _load(text: bytes) -> dict[str, Any] | str:
    """The object on a line, or the reason why there is none."""
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
    """Of a key that stands twice the first counts, as in Polars."""
    found = dict(pairs)
    if len(found) < len(pairs):
        found.update(reversed(pairs))
    return found
