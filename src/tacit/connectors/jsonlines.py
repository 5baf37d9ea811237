"""JSON lines: one object on each line.

Polars parses whole blocks. Where it refuses a block, the block is halved until the
lines at fault are found; they are rejected with their numbers, all others are kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from tacit.connectors.pieces import LONGEST_LINE, Piece, Pieces
from tacit.connectors.sources import (
    Batch,
    EmptySourceError,
    Rejected,
    Source,
    check_names,
    encode_keys,
)
from tacit.errors import SourceError

_SAMPLE = 20_000
_FEW = 512
"""So many lines are looked at one by one to find those at fault."""


class _Line(NamedTuple):
    number: int
    text: bytes


class JsonLinesSource(Source):
    """A file of JSON lines, or an open descriptor that brings them."""

    unit = "bytes"

    def __init__(self, place: Path | int, name: str | None = None) -> None:
        self.name = name or (str(place) if isinstance(place, Path) else "standard input")
        self.once = isinstance(place, int)
        self._pieces = Pieces(place, self.name)
        self.total = self._pieces.size()
        self._kinds: dict[str, pl.DataType] | None = None
        self._begin: dict[str, int] | None = None

    def schema(self) -> pa.Schema:
        """The keys of the first objects; a type that holds all of a key's values."""
        frame: pl.DataFrame = pl.Schema(self._known()).to_frame()
        return frame.to_arrow().schema

    def adopt(self, schema: pa.Schema) -> None:
        """Take over the types of an earlier file."""
        earlier = pl.DataFrame(schema.empty_table()).schema
        self._kinds = {name: earlier.get(name, kind) for name, kind in self._known().items()}

    def resume(self, token: Any) -> None:
        """Begin at a line when it is read next."""
        self._begin = token

    def read(self, columns: Sequence[str], keys: Sequence[str]) -> Iterator[Batch]:
        """Parse block by block; missing keys are null, other keys are passed over."""
        parser = Parser({name: self._known()[name] for name in columns}, keys)
        begin, self._begin = self._begin, None
        pieces = self._pieces if begin is None else self._pieces.since(begin["offset"])
        line = 1 if begin is None else begin["line"]
        for block, position, after in blocks(pieces, self.name):
            batch = parser.batch(block, line, columns)
            yield replace(batch, position=position, source=self.name, token=begin)
            line += block.count(b"\n")
            begin = {"offset": after, "line": line} if self._pieces.seekable else None

    def _known(self) -> dict[str, pl.DataType]:
        if self._kinds is None:
            self._kinds = infer(self.name, self._pieces.head())
        return self._kinds


class Parser:
    """Turns blocks of lines into frames of these columns."""

    def __init__(self, kinds: dict[str, pl.DataType], keys: Sequence[str]) -> None:
        text = pl.String()
        self._late = [name for name, kind in kinds.items() if kind == pl.Null]
        self.kinds = {name: text if kind == pl.Null else kind for name, kind in kinds.items()}
        self._whole = [n for n, kind in kinds.items() if kind == pl.Int64 and n not in keys]
        self._keys = keys

    def batch(self, block: bytes, line: int, columns: Sequence[str]) -> Batch:
        """The rows of a block that begins with this line; its place is for the caller to say."""
        frame, places, rejected = self.parse(block, line)
        table = frame.select(columns).rechunk().to_arrow()
        batch, *_ = table.to_batches() or [pa.RecordBatch.from_pylist([], table.schema)]
        return Batch(encode_keys(batch, self._keys), line, 0, "", tuple(rejected), places)

    def parse(
        self, block: bytes, first: int
    ) -> tuple[pl.DataFrame, np.ndarray[Any, np.dtype[np.int64]] | None, list[Rejected]]:
        """The rows of a block, their lines where these do not count up, and what was rejected."""
        frame = self._strict(block)
        count = block.count(b"\n") + (not block.endswith(b"\n"))
        if frame is not None and frame.height == count:
            return self.typed(frame), None, []
        lines = [
            _Line(first + number, text)
            for number, text in enumerate(block.split(b"\n"))
            if text and not text.isspace()
        ]
        rejected: list[Rejected] = []
        if frame is None or frame.height != len(lines):
            frame = self._salvage(lines, rejected)
        bad = {line.place for line in rejected}
        places = np.array([line.number for line in lines if line.number not in bad], np.int64)
        return self.typed(frame), places, rejected

    def _strict(self, block: bytes) -> pl.DataFrame | None:
        try:
            return pl.read_ndjson(block, schema=self.kinds)
        except pl.exceptions.PolarsError:
            return None

    def _lenient(self, block: bytes) -> pl.DataFrame | None:
        """Read with null for what does not fit, and fractions in columns of whole numbers."""
        wide: dict[str, pl.DataType] = dict.fromkeys(self._whole, pl.Float64())
        try:
            frame = pl.read_ndjson(block, schema=self.kinds, ignore_errors=True)
            if self._whole:
                wider = pl.read_ndjson(block, schema=self.kinds | wide, ignore_errors=True)
                better = [n for n in wide if wider[n].null_count() < frame[n].null_count()]
                frame = frame.with_columns(wider[name] for name in better)
            return frame
        except pl.exceptions.PolarsError:
            return None

    def _salvage(self, lines: list[_Line], rejected: list[Rejected]) -> pl.DataFrame:
        """The rows of all lines that can be read; the others are added to `rejected`."""
        if len(lines) <= _FEW:
            return self._one_by_one(lines, rejected)
        half = len(lines) // 2
        frames = []
        for part in (lines[:half], lines[half:]):
            block = b"\n".join(line.text for line in part)
            frame = self._strict(block)
            if frame is None:
                frame = self._lenient(block)
                if frame is not None and _has_empty_row(frame):
                    frame = None  # a line that is no object looks like this
            if frame is None or frame.height != len(part):
                frame = self._salvage(part, rejected)
            frames.append(frame)
        return pl.concat(frames, how="vertical_relaxed")

    def _one_by_one(self, lines: list[_Line], rejected: list[Rejected]) -> pl.DataFrame:
        objects = []
        for line in lines:
            value = _load(line.text)
            if isinstance(value, dict):
                objects.append(json.dumps(value))
            else:
                rejected.append(Rejected(line.number, value, line.text.decode(errors="replace")))
        frame = self._lenient("\n".join(objects).encode())
        if frame is None or frame.height != len(objects):
            raise AssertionError("lines that are JSON objects could not be parsed again")
        return frame

    def typed(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Give columns that were empty at the beginning the type of what they hold now."""
        return frame.with_columns(_retyped(frame[name]) for name in self._late)


def blocks(pieces: Iterable[Piece], name: str) -> Iterator[tuple[bytes, int, int]]:
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


def infer(source: str, head: bytes) -> dict[str, pl.DataType]:
    """The keys of the objects on the first lines, each with a type that holds its values."""
    lines = [text for text in head.split(b"\n", _SAMPLE)[:_SAMPLE] if text and not text.isspace()]
    if not lines:
        raise EmptySourceError(
            f"{source} is empty: it holds no tuple, so its columns are not known"
        )
    rows = [row for row in map(_load, lines) if isinstance(row, dict)]
    if not rows:
        raise SourceError(
            f"{source} is not JSON lines: none of its first {len(lines)} lines is a JSON object"
        )
    check_names(source, _names(lines))
    frame = pl.DataFrame(rows, infer_schema_length=None, strict=False)
    return {
        name: pl.Float64() if kind.is_integer() and kind != pl.Int64 else kind
        for name, kind in frame.schema.items()
    }


def _names(lines: list[bytes]) -> list[str]:
    """The keys of the first object, as often as they stand there."""
    for text in lines:
        if isinstance(_load(text), dict):
            pairs: list[tuple[str, Any]] = json.loads(text, object_pairs_hook=list)
            return [name for name, _ in pairs]
    return []


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
    found = dict(pairs)
    if len(found) < len(pairs):  # a key that stands twice: as Polars does
        found.update(reversed(pairs))
    return found


def _has_empty_row(frame: pl.DataFrame) -> bool:
    return bool(frame.select(pl.all_horizontal(pl.all().is_null()).any()).item())


def _retyped(column: pl.Series) -> pl.Series:
    kinds: tuple[pl.DataType, ...] = (pl.Null(), pl.Int64(), pl.Float64())
    for kind in kinds:
        if kind == pl.Null and column.null_count() < column.len():
            continue
        typed = column.cast(kind, strict=False)
        if typed.null_count() == column.null_count():
            return typed
    return column
