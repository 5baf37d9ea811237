"""CSV files with a header.

A record is always one line: a quote that is not closed on its line makes that line unreadable, so
a record cannot include the ones after it. A compiled scan finds the lines and their numbers of
fields. Unreadable lines are removed with their numbers. The rest is parsed block by block, every
field as text: by a compiled loop if there are no quotes and only ASCII characters, else by PyArrow,
which has the same quoting rules.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.csv as pacsv
from numpy.typing import NDArray

from tacit.buffers import allocate
from tacit.connectors.file_pieces import BOM, LONGEST_LINE, FilePiece, FilePieces
from tacit.connectors.salvage import salvage
from tacit.errors import SourceError
from tacit.events.columns import freeze
from tacit.kernels import compiled
from tacit.pipeline.sources import (
    Batch,
    EmptySourceError,
    Rejected,
    Source,
    check_names,
    encode_keys,
)

_QUOTE, _LF, _CR = 34, 10, 13
_OTHER_DELIMITERS: Final = {";": "semicolons", "\t": "tabs", "|": "bars"}
_SMALLER: Final = 4
"""How many times smaller pieces of a file are than usual: they stay in the processor's cache."""
_UNCLOSED: Final = -1
"""The number of fields of a line with an unclosed quote."""


class CsvSource(Source):
    """Reads a CSV file: UTF-8, a header, quoted fields."""

    unit = "bytes"
    textual = True

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._pieces = FilePieces(path, self.name, _SMALLER)
        self.total = self._pieces.size()
        self._names: list[str] | None = None
        self._begin: dict[str, int] | None = None
        self._delimiter = ","

    def separate_by(self, delimiter: str) -> None:
        """Set the character between fields."""
        self._delimiter = delimiter

    def schema(self) -> pa.Schema:
        """Return the names of the header."""
        if self._names is None:
            blocks = _blocks(self._pieces, self.name, self._delimiter)
            first = next((block for block in blocks if len(block.starts)), None)
            if first is None:
                raise EmptySourceError(f"{self.name} is empty: a CSV file starts with a header")
            self._names = parse_header(self.name, first, self._delimiter)
        return pa.schema([(name, pa.string()) for name in self._names])

    def resume(self, token: Any) -> None:
        """Start at a record when it is read next."""
        self._begin = token

    def read(self, columns: Sequence[str], keys: Sequence[str]) -> Iterator[Batch]:
        """Parse block by block."""
        parser = CsvParser(self.schema().names, columns, keys, self._delimiter)
        begin, self._begin = self._begin, None
        if begin is None:
            blocks = _without_header(_blocks(self._pieces, self.name, self._delimiter))
        else:
            pieces = self._pieces.read_from(begin["offset"])
            blocks = _blocks(pieces, self.name, self._delimiter, begin["line"])
        for number, block in enumerate(blocks):
            if number and self._pieces.seekable:
                begin = {"offset": block.offset, "line": block.line}
            yield replace(parser.parse(block), source=self.name, token=begin)


class CsvBlock(NamedTuple):
    """Whole lines: their starts, numbers of fields, and line numbers."""

    data: memoryview
    starts: NDArray[np.int64]
    fields: NDArray[np.int64]
    lines: NDArray[np.int64]
    line: int
    position: int
    offset: int
    """Its start in an uncompressed file."""

    def record(self, number: int) -> bytes:
        """Return the bytes of one line, with its line break."""
        after = number + 1
        end = self.starts[after] if after < len(self.starts) else None
        return bytes(self.data[self.starts[number] : end])

    def only(self, keep: NDArray[np.bool_]) -> bytes | memoryview:
        """Return the bytes of these lines only; without a copy if these are all lines."""
        if len(keep) and keep.all():
            return self.data[self.starts[0] :]
        ends = np.append(self.starts[1:], len(self.data))
        edges = np.flatnonzero(np.diff(keep, prepend=False, append=False))
        return b"".join(
            self.data[self.starts[first] : ends[last - 1]]
            for first, last in zip(edges[::2], edges[1::2], strict=True)
        )


class CsvParser:
    """Turns blocks of lines into tables of these columns, all of them text."""

    def __init__(
        self,
        names: Sequence[str],
        columns: Sequence[str],
        keys: Sequence[str],
        delimiter: str = ",",
    ) -> None:
        self._names = list(names)
        self._columns = list(columns)
        self._keys = keys
        self._parsing = pacsv.ParseOptions(delimiter=delimiter)
        self._delimiter = ord(delimiter)
        self._wanted = freeze(np.array([_find(name, self._columns) for name in names], np.int64))
        """For each field of a line, the place of its column; negative if it is not wanted."""

    def parse(self, block: CsvBlock) -> Batch:
        """Parse the rows of a block; the caller sets the file's name."""
        keep = block.fields == len(self._names)
        try:
            frame = self._read(block.only(keep))
        except pa.ArrowInvalid:
            frame = self._salvage(block, keep)
        table = frame.combine_chunks()
        batch = (table.to_batches() or [pa.RecordBatch.from_pylist([], table.schema)])[0]
        places = block.lines[keep]
        first = int(places[0]) if len(places) else block.line
        counting = len(places) == 0 or int(places[-1]) - first == len(places) - 1
        return Batch(
            encode_keys(batch, self._keys),
            first,
            block.position,
            "",
            tuple(self._reject(block, int(number)) for number in np.flatnonzero(~keep)),
            None if counting else places,
        )

    def _read(self, data: bytes | memoryview) -> pa.Table:
        schema = pa.schema([(name, pa.string()) for name in self._columns])
        if not data:
            return schema.empty_table()
        octets = freeze(np.frombuffer(data, np.uint8))
        ends, plain = _count_ends(octets)
        if plain and self._columns:
            return self._split(octets, ends, schema)
        if bytes(data[: len(BOM)]) == BOM:  # PyArrow leaves one out, wherever a block begins
            data = BOM + data
        options = pacsv.ConvertOptions(column_types=schema, include_columns=self._columns)
        named = pacsv.ReadOptions(column_names=self._names)
        return pacsv.read_csv(pa.BufferReader(data), named, self._parsing, options)

    def _split(self, data: NDArray[np.uint8], breaks: int, schema: pa.Schema) -> pa.Table:
        """Parse whole lines without quotes, each of which has all fields."""
        columns = len(self._columns)
        ends = allocate((columns, breaks + 2), np.int32)
        texts = allocate((columns, len(data)), np.uint8)
        rows = _split_fields(data, self._delimiter, self._wanted, ends, texts)
        arrays = []
        for place in range(columns):
            buffers = [None, pa.py_buffer(ends[place]), pa.py_buffer(texts[place])]
            arrays.append(pa.Array.from_buffers(pa.string(), rows, buffers))
        return pa.Table.from_arrays(arrays, schema=schema)

    def _salvage(self, block: CsvBlock, keep: NDArray[np.bool_]) -> pa.Table:
        """Parse the readable lines; clear `keep` for the others."""
        numbers = np.flatnonzero(keep)

        def parse(lines: Sequence[bytes]) -> tuple[pl.DataFrame, NDArray[np.int64]]:
            table = self._read(b"".join(lines))
            frame = pl.DataFrame(table.rename_columns([str(n) for n in range(table.num_columns)]))
            return frame, np.ones(len(lines), np.int64)

        found = salvage([block.record(int(n)) for n in numbers], parse, lambda r: not _is_utf8(r))
        keep[numbers[found.failed]] = False
        table = found.frame.to_arrow(compat_level=pl.CompatLevel.oldest())
        return table.rename_columns(self._columns).cast(
            pa.schema([(name, pa.string()) for name in self._columns])
        )

    def _reject(self, block: CsvBlock, number: int) -> Rejected:
        fields, record = int(block.fields[number]), block.record(number)
        if fields == _UNCLOSED:
            reason = "a quote that is not closed on its line"
        elif fields != len(self._names):
            reason = f"{fields} fields where the header has {len(self._names)}"
        else:
            reason = "not UTF-8 text" if not _is_utf8(record) else "not CSV that can be read"
        raw = record.decode(errors="replace").rstrip("\r\n")
        return Rejected(int(block.lines[number]), reason, raw)


def parse_header(source: str, block: CsvBlock, delimiter: str = ",") -> list[str]:
    """Parse the names on a file's first line."""
    record = block.record(0)
    if not _is_utf8(record) or b"\0" in record:
        raise SourceError(
            f"{source} is not UTF-8 text; convert it, for example with iconv -t UTF-8"
        )
    if block.fields[0] == _UNCLOSED:
        raise SourceError(f"{source}: a quote in its header is not closed; correct its first line")
    names = next(csv.reader(io.StringIO(record.decode(), newline=""), delimiter=delimiter))
    check_names(source, names)
    if len(names) == 1:
        _suggest_delimiter(source, names[0])
    return names


def _suggest_delimiter(source: str, header: str) -> None:
    """Refuse a header of one field that another delimiter would divide."""
    for delimiter, words in _OTHER_DELIMITERS.items():
        if delimiter in header:
            written = "\\t" if delimiter == "\t" else delimiter
            raise SourceError(
                f"{source}: its first line has no comma. If its fields are separated by {words},"
                f' add delimiter: "{written}" to its stream in the specification'
            )


def drop_header(block: CsvBlock) -> CsvBlock:
    """Return a block without its first line."""
    return block._replace(starts=block.starts[1:], fields=block.fields[1:], lines=block.lines[1:])


def split_block(
    data: bytes | memoryview, line: int, position: int, *, last: bool, delimiter: str = ","
) -> tuple[CsvBlock | None, bytes, int]:
    """Split whole lines off `data`, which ends at `position`; return the rest and its line."""
    octets = freeze(np.frombuffer(data, np.uint8))
    places = allocate((3, _count_ends(octets)[0] + 1), np.int64)
    found, used, after = scan(octets, line, last, ord(delimiter), places)
    if not used:
        return None, bytes(data), line
    starts, fields, lines = places[:, :found]
    whole = memoryview(data)
    block = CsvBlock(whole[:used], starts, fields, lines, line, position, position - len(data))
    return block, bytes(whole[used:]), after


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _without_header(blocks: Iterator[CsvBlock]) -> Iterator[CsvBlock]:
    for block in blocks:
        if len(block.starts):
            yield drop_header(block)
            break
        yield block
    yield from blocks


def _blocks(
    pieces: Iterable[FilePiece], name: str, delimiter: str, line: int = 1
) -> Iterator[CsvBlock]:
    """Split pieces at the ends of lines."""
    rest = b""
    position = 0
    for piece in pieces:
        position = piece.position
        block, rest, line = split_block(
            piece.after(rest), line, position, last=False, delimiter=delimiter
        )
        if block is not None:
            yield block
        if len(rest) > LONGEST_LINE:
            raise SourceError(f"{name} has a line of more than {LONGEST_LINE >> 20} MiB")
    block, _, _ = split_block(rest, line, position, last=True, delimiter=delimiter)
    if block is not None:
        yield block


@compiled
def _count_ends(data: NDArray[np.uint8]) -> tuple[int, bool]:
    """Count the bytes that may end a line; also return whether all are ASCII, and none a quote."""
    found, other = 0, np.uint8(0)
    for byte in data:
        found += (byte == _LF) | (byte == _CR)
        other |= np.uint8(byte & np.uint8(128)) | np.uint8(byte == _QUOTE)
    return found, other == 0


def _find(name: str, columns: Sequence[str]) -> int:
    return columns.index(name) if name in columns else -1


@compiled
def _split_fields(
    data: NDArray[np.uint8],
    delimiter: int,
    wanted: NDArray[np.int64],
    ends: NDArray[np.int32],
    texts: NDArray[np.uint8],
) -> int:
    """Copy the fields of whole lines into the texts of their columns; return how many lines.

    Every line has all fields, or is blank. `ends` becomes the offsets of each column's texts.
    """
    fields, rows, at, size = len(wanted), 0, np.uint64(0), np.uint64(len(data))
    filled = np.zeros(len(ends), np.uint64)
    ends[:, 0] = 0
    while at < size:
        if data[at] == _LF or data[at] == _CR:
            at += np.uint64(1)
            continue
        rows += 1
        for field in range(fields):
            column = wanted[field]
            if column < 0:
                while at < size and data[at] != delimiter and data[at] != _LF and data[at] != _CR:
                    at += np.uint64(1)
            else:
                to = filled[column]
                while at < size and data[at] != delimiter and data[at] != _LF and data[at] != _CR:
                    texts[column, to] = data[at]
                    to += np.uint64(1)
                    at += np.uint64(1)
                filled[column] = to
                ends[column, rows] = to
            at += np.uint64(1)
    return rows


@compiled
def scan(
    data: NDArray[np.uint8], line: int, last: bool, delimiter: int, records: NDArray[np.int64]
) -> tuple[int, int, int]:
    """Find the whole lines in `data`.

    Fills `records` with the start, number of fields and line number of each that is not blank.
    Returns how many there are, where the first unfinished line starts, and its number. With `last`
    the end of `data` ends the last line.
    """
    special = max(delimiter, _QUOTE)
    found = 0
    start = 0
    at = 0
    while start < len(data):
        fields = 1
        quoted = False
        fresh = True
        ended = False
        while at < len(data) and not ended:
            while data[at] > special:  # the other bytes are looked at one by one
                at += 1
                fresh = False
                if at == len(data):
                    break
            if at == len(data):
                break
            byte = data[at]
            at += 1
            if byte == _LF:
                ended = True
            elif byte == _CR:
                if at == len(data) and not last:
                    return found, start, line
                if at < len(data) and data[at] == _LF:
                    at += 1
                ended = True
            elif quoted:
                if byte == _QUOTE:
                    if at < len(data) and data[at] == _QUOTE:
                        at += 1
                    else:
                        quoted = False
            elif byte == delimiter:
                fields += 1
                fresh = True
                continue
            elif byte == _QUOTE and fresh:
                quoted = True
            fresh = False
        if not ended and not last:
            return found, start, line
        if data[start] != _LF and data[start] != _CR:
            records[0, found] = start
            records[1, found] = _UNCLOSED if quoted else fields
            records[2, found] = line
            found += 1
        line += ended
        start = at
    return found, start, line
