"""CSV files with a header.

A compiled scan finds where records begin, also over quoted line ends, and how many
fields they have. Ragged records are taken out with their line numbers; PyArrow,
which follows the same rules of quoting, parses the rest block by block.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.csv as pacsv
from numpy.typing import NDArray

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
from tacit.kernels import compiled

_COMMA, _QUOTE, _LF, _CR = 44, 34, 10, 13
_LONGEST_RECORD = 1 << 20
"""A quote that is not closed after so many bytes is taken for a stray one."""


class CsvSource(Source):
    """One CSV file: UTF-8, commas, a header, fields quoted where needed."""

    unit = "bytes"

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._pieces = Pieces(path, self.name)
        self.total = self._pieces.size()
        self._kinds: dict[str, pa.DataType] | None = None
        self._begin: dict[str, int] | None = None

    def schema(self) -> pa.Schema:
        """The header's names; int64, float64, bool or text by what the first block holds."""
        return pa.schema(list(self._known().items()))

    def adopt(self, schema: pa.Schema) -> None:
        """Take over the types of an earlier file."""
        earlier = {field.name: field.type for field in schema}
        self._kinds = {name: earlier.get(name, kind) for name, kind in self._known().items()}

    def resume(self, token: Any) -> None:
        """Begin at a record when it is read next."""
        self._begin = token

    def read(self, columns: Sequence[str], keys: Sequence[str]) -> Iterator[Batch]:
        """Parse block by block."""
        known = self._known()
        parser = Parser(list(known), {name: known[name] for name in columns}, keys)
        begin, self._begin = self._begin, None
        if begin is None:
            blocks = _without_header(_blocks(self._pieces, self.name))
        else:
            blocks = _blocks(self._pieces.since(begin["offset"]), self.name, begin["line"])
        for number, block in enumerate(blocks):
            if number and self._pieces.seekable:
                begin = {"offset": block.offset, "line": block.line}
            yield replace(parser.batch(block), source=self.name, token=begin)

    def _known(self) -> dict[str, pa.DataType]:
        if self._kinds is None:
            self._kinds = _infer(self._pieces)
        return self._kinds


class Block(NamedTuple):
    """Whole records: where each begins, how many fields it has and on which line it stands."""

    data: bytes
    starts: NDArray[np.int64]
    fields: NDArray[np.int64]
    lines: NDArray[np.int64]
    line: int
    position: int
    offset: int
    """Where it begins in a file that is not compressed."""
    rejected: tuple[Rejected, ...] = ()

    def record(self, number: int) -> bytes:
        """The bytes of one record, with its line end."""
        after = number + 1
        return self.data[
            self.starts[number] : self.starts[after] if after < len(self.starts) else None
        ]

    def reject(self, number: int, reason: str) -> Rejected:
        """One record as a rejected line."""
        raw = self.record(number).decode(errors="replace").rstrip("\r\n")
        return Rejected(int(self.lines[number]), reason, raw)

    def places(self, rejected: Sequence[Rejected]) -> NDArray[np.int64]:
        """The lines of the records that were not rejected."""
        if not rejected:
            return self.lines
        return self.lines[~np.isin(self.lines, [line.place for line in rejected])]

    def only(self, keep: NDArray[np.bool_]) -> bytes:
        """The bytes of these records alone."""
        ends = np.append(self.starts[1:], len(self.data))
        edges = np.flatnonzero(np.diff(keep, prepend=False, append=False))
        return b"".join(
            self.data[self.starts[first] : ends[last - 1]]
            for first, last in zip(edges[::2], edges[1::2], strict=True)
        )


class Parser:
    """Turns blocks of records into tables of these columns."""

    def __init__(
        self, names: list[str], kinds: dict[str, pa.DataType], keys: Sequence[str]
    ) -> None:
        self._names = names
        self._kinds = kinds
        self._keys = keys
        self._late = [name for name, kind in kinds.items() if pa.types.is_null(kind)]

    def batch(self, block: Block) -> Batch:
        """The rows of a block; the file's name is for the caller to say."""
        rejected = list(block.rejected)
        table = self.parse(block, rejected).combine_chunks()
        batch = (table.to_batches() or [pa.RecordBatch.from_pylist([], table.schema)])[0]
        places = block.places(rejected)
        first = int(places[0]) if len(places) else block.line
        counting = len(places) == 0 or int(places[-1]) - first == len(places) - 1
        return Batch(
            encode_keys(batch, self._keys),
            first,
            block.position,
            "",
            tuple(sorted(rejected, key=lambda line: line.place)),
            None if counting else places,
        )

    def parse(self, block: Block, rejected: list[Rejected]) -> pa.Table:
        """The records with the right number of fields; the others are added to `rejected`."""
        keep = block.fields == len(self._names)
        for number in np.flatnonzero(~keep):
            reason = f"{block.fields[number]} fields where the header has {len(self._names)}"
            rejected.append(block.reject(int(number), reason))
        data = block.only(keep)
        try:
            return self._convert(data, self._kinds | _infer_kinds(data, self._names, self._late))
        except pa.ArrowInvalid:
            return self._lenient(_decodable(block, keep, rejected))

    def _convert(self, data: bytes, kinds: dict[str, pa.DataType]) -> pa.Table:
        if not data:
            return pa.schema(list(kinds.items())).empty_table()
        return _parse(
            data, self._names, pacsv.ConvertOptions(column_types=kinds, include_columns=list(kinds))
        )

    def _lenient(self, data: bytes) -> pa.Table:
        """Read as text, then convert what fits; other cells become null."""
        table = self._convert(data, dict.fromkeys(self._kinds, pa.string()))
        for number, (name, kind) in enumerate(self._kinds.items()):
            fitted = _fit(pl.Series(table.column(number)), kind, name in self._keys)
            table = table.set_column(number, name, fitted.to_arrow())
        return table


def _decodable(block: Block, keep: NDArray[np.bool_], rejected: list[Rejected]) -> bytes:
    """The records to keep, without those that are no UTF-8 text."""
    if not _is_utf8(block.only(keep)):
        for number in np.flatnonzero(keep):
            if not _is_utf8(block.record(int(number))):
                keep[number] = False
                rejected.append(block.reject(int(number), "not UTF-8 text"))
    return block.only(keep)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _fit(column: pl.Series, kind: pa.DataType, key: bool) -> pl.Series:
    """Convert text cell by cell; what does not fit becomes null."""
    if pa.types.is_string(kind) or pa.types.is_null(kind):
        return column
    text = column.str.strip_chars()
    if pa.types.is_boolean(kind):
        lower = text.str.to_lowercase()
        known = lower.is_in(["true", "1", "false", "0"])
        return lower.is_in(["true", "1"]).set(~known, None)
    numbers = text.cast(pl.Float64, strict=False).fill_nan(None)
    if pa.types.is_floating(kind):
        return numbers
    whole = text.cast(pl.Int64, strict=False)
    return numbers if not key and numbers.null_count() < whole.null_count() else whole


def _parse(data: bytes, names: list[str], options: pacsv.ConvertOptions) -> pa.Table:
    quoted = b'"' in data
    return pacsv.read_csv(
        pa.BufferReader(data),
        pacsv.ReadOptions(column_names=names),
        pacsv.ParseOptions(newlines_in_values=quoted),
        options,
    )


def _infer_kinds(data: bytes, names: list[str], wanted: list[str]) -> dict[str, pa.DataType]:
    """int64, float64, bool, null or text: times stay text, to be read with care later."""
    if not data or not wanted:
        return dict.fromkeys(wanted, pa.null())
    table = _parse(data, names, pacsv.ConvertOptions(include_columns=wanted, timestamp_parsers=[]))
    plain = (pa.int64(), pa.float64(), pa.bool_(), pa.null())
    return {f.name: f.type if f.type in plain else pa.string() for f in table.schema}


def _infer(pieces: Pieces) -> dict[str, pa.DataType]:
    block = next((block for block in _blocks(pieces, pieces.name) if len(block.starts)), None)
    if block is None:
        raise EmptySourceError(f"{pieces.name} is empty: a CSV file begins with a header")
    return infer(pieces.name, block)


def infer(source: str, block: Block) -> dict[str, pa.DataType]:
    """The names in the header, and the types of what the first block holds besides."""
    if not _is_utf8(block.data) or b"\0" in block.data:
        raise SourceError(
            f"{source} is not UTF-8 text; convert it, for example with iconv -t UTF-8"
        )
    names = header(block)
    check_names(source, names)
    keep = block.fields == len(names)
    keep[0] = False
    return _infer_kinds(block.only(keep), names, names)


def header(block: Block) -> list[str]:
    """The names in a file's first record."""
    return next(csv.reader(io.StringIO(block.record(0).decode(), newline="")))


def headless(block: Block) -> Block:
    """A block without its first record."""
    return block._replace(starts=block.starts[1:], fields=block.fields[1:], lines=block.lines[1:])


def _without_header(blocks: Iterator[Block]) -> Iterator[Block]:
    for block in blocks:
        if len(block.starts):
            yield headless(block)
            break
        yield block
    yield from blocks


def _blocks(pieces: Iterable[Piece], name: str, line: int = 1) -> Iterator[Block]:
    """Cut pieces at the ends of records."""
    rest = b""
    position = 0
    for data, position in pieces:
        rest += data
        blocks, rest, line = records(rest, line, position, last=False)
        yield from blocks
        if len(rest) > LONGEST_LINE:
            raise SourceError(f"{name} has a line of more than {LONGEST_LINE >> 20} MiB")
    yield from records(rest, line, position, last=True)[0]


def records(data: bytes, line: int, position: int, *, last: bool) -> tuple[list[Block], bytes, int]:
    """The whole records in `data`, which ends at `position`; what is left over, and its line."""
    blocks = []
    while data:
        octets = np.frombuffer(data, np.uint8)
        places = np.empty((3, _ends(octets) + 1), np.int64)
        found, used, after, stray = scan(octets, line, last, places)
        starts, fields, lines = places[:, :found]
        block = Block(data[:used], starts, fields, lines, line, position, position - len(data))
        data, line = data[used:], after
        if stray:
            bad, _, data = data.partition(b"\n")
            lost = Rejected(line, "a quote that is not closed", bad.decode(errors="replace"))
            block = block._replace(rejected=(lost,))
            line += 1
        if found or stray:
            blocks.append(block)
        if not stray:
            break
    return blocks, data, line


@compiled
def _ends(data: NDArray[np.uint8]) -> int:
    """How many bytes may end a line."""
    found = 0
    for byte in data:
        found += (byte == _LF) | (byte == _CR)
    return found


@compiled
def scan(
    data: NDArray[np.uint8], line: int, last: bool, records: NDArray[np.int64]
) -> tuple[int, int, int, bool]:
    """Find the records in `data` that are whole.

    Fills `records` with the start, number of fields and line of each. Returns how
    many there are, where the first unfinished one begins and on which line, and
    whether that one has a stray quote: it is closed neither within the longest
    record nor before the end, if `last` says that this is the end.
    """
    found = 0
    start = 0
    at = 0
    while start < len(data):
        first = line
        fields = 1
        quoted = False
        fresh = True
        ended = False
        while at < len(data) and not ended:
            while data[at] > _COMMA:  # nothing above a comma means anything
                at += 1
                fresh = False
                if at == len(data):
                    break
            if at == len(data):
                break
            byte = data[at]
            at += 1
            if quoted:
                if byte == _QUOTE:
                    if at < len(data) and data[at] == _QUOTE:
                        at += 1
                    else:
                        quoted = False
                elif byte == _LF:
                    line += 1
                    if at - start > _LONGEST_RECORD:
                        return found, start, first, True
            elif byte == _COMMA:
                fields += 1
                fresh = True
                continue
            elif byte == _QUOTE and fresh:
                quoted = True
            elif byte == _LF:
                ended = True
            elif byte == _CR:
                if at == len(data) and not last:
                    break
                if at < len(data) and data[at] == _LF:
                    at += 1
                ended = True
            fresh = False
        if not ended and (quoted or not last):
            return found, start, first, quoted and last
        line += ended
        if data[start] != _LF and data[start] != _CR:
            records[0, found] = start
            records[1, found] = fields
            records[2, found] = first
            found += 1
        start = at
    return found, start, line, False
