"""Read the inbox as a source: tuples that were received by HTTP.

A batch's token is the number of the last request before it, so a run that resumes there reads the
same rows again. Requests are deleted when the position after them is in a checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any, Final, TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from tacit.connectors.jsonlines import parse_block
from tacit.connectors.payloads import PayloadParser
from tacit.errors import SourceError
from tacit.pipeline.sources import Batch, Rejected, Source, encode_keys
from tacit.service.arrow_streams import read_arrow_stream
from tacit.service.inbox import Inbox
from tacit.service.ingest_requests import (
    LARGEST_BODY,
    Body,
    BodyFormat,
    StoredRequest,
    iterate_codings,
)

_NEWLINE: Final = ord("\n")
_IDLE_SECONDS: Final = 0.1
_MOST_BYTES: Final = 4 << 20
"""About how many bytes of payloads a batch has."""
_APART_SECONDS: Final = 0.01
_ENOUGH_BYTES: Final = 512 << 10
"""After a batch, the next one is read after so many seconds, or when so many bytes wait: each batch
has a fixed cost. The first request after a pause is read at once."""

ParsedRequests: TypeAlias = tuple[pa.RecordBatch, NDArray[np.int64], list[Rejected]]
"""The rows of some requests, the number of each row's request, and what cannot be read."""


class HttpSource(Source):
    """Reads what was sent to one stream by HTTP."""

    textual = True
    keyed = True
    live = True
    once = True
    ahead = 0  # a live source has a thread of its own
    patient = True
    name = "http"

    def __init__(self, inbox: Inbox, stream: str) -> None:
        self._inbox = inbox
        self._stream = stream
        self._after = 0

    def schema(self) -> pa.Schema:
        """Return an empty schema: tuples name their own columns."""
        return pa.schema([])

    def resume(self, token: Any) -> None:
        """Start after the request of this token."""
        if token is not None and not isinstance(token, int):
            raise SourceError("the position in the checkpoint is not one of HTTP")
        self._after = token or 0

    def acknowledge(self, receipt: Any) -> None:
        """Delete the requests up to this one: a checkpoint covers them."""
        self._inbox.drop(self._stream, int(receipt))

    def read(self, columns: Sequence[str], keys: Sequence[str]) -> Iterator[Batch]:
        """Yield what was received, and empty batches while nothing arrives."""
        parser = RequestParser(columns, keys)
        while True:
            found = self._inbox.read(self._stream, self._after, _MOST_BYTES, _IDLE_SECONDS)
            if not found:
                yield self._make_batch(parser.parse("jsonl", []))
            again = time.monotonic() + _APART_SECONDS
            for coding, group in iterate_codings(found):
                for last, parsed in parser.parse_apart(coding, group):
                    batch = self._make_batch(parsed)
                    self._after = last
                    yield batch
            if found:
                left = again - time.monotonic()
                self._inbox.gather(self._stream, self._after, _ENOUGH_BYTES, left)

    def _make_batch(self, parsed: ParsedRequests) -> Batch:
        table, places, rejected = parsed
        token = self._after
        return Batch(table, 0, token, self.name, tuple(rejected), places, token, token)


class RequestParser:
    """Turns requests into rows of these columns."""

    def __init__(self, columns: Sequence[str], keys: Sequence[str]) -> None:
        self._columns = list(columns)
        self._keys = keys

    def parse_apart(
        self, coding: BodyFormat, requests: Sequence[StoredRequest]
    ) -> Iterator[tuple[int, ParsedRequests]]:
        """Yield the parsed requests, together as far as possible, and the last one's number.

        Arrow columns have types. Tables of different types stay apart, because a value may not
        depend on which other requests wait beside its own.
        """
        if coding != "arrow":
            yield requests[-1].number, self.parse(coding, requests)
            return
        tables = [(request.number, self._read_table(request)) for request in requests]
        for _, group in groupby(tables, lambda one: one[1].schema):
            own = list(group)
            yield own[-1][0], _join_tables(own)

    def parse(self, coding: BodyFormat, requests: Sequence[StoredRequest]) -> ParsedRequests:
        """Parse requests whose values are text."""
        if coding == "jsonl":
            frame, numbers, rejected = self._parse_lines(requests)
        else:
            frame, numbers, rejected = self._parse_payloads(coding, requests)
        return self._to_batch(frame), numbers, rejected

    def _parse_lines(
        self, requests: Sequence[StoredRequest]
    ) -> tuple[pl.DataFrame, NDArray[np.int64], list[Rejected]]:
        blocks = [_strip_lines(request.payload) for request in requests]
        own = np.array([request.number for request in requests], np.int64)
        if not own.size:
            return _no_rows(self._columns), own, []
        ends = np.cumsum([_count_lines(block) for block in blocks])
        frame, lines, rejected = parse_block(b"\n".join(blocks), 0, self._columns)
        lines = np.arange(frame.height) if lines is None else lines
        moved = [
            Rejected(int(own[np.searchsorted(ends, bad.place, "right")]), bad.reason, bad.raw)
            for bad in rejected
        ]
        return frame.select(self._columns), own[np.searchsorted(ends, lines, "right")], moved

    def _parse_payloads(
        self, coding: BodyFormat, requests: Sequence[StoredRequest]
    ) -> tuple[pl.DataFrame, NDArray[np.int64], list[Rejected]]:
        parser = PayloadParser(self._columns, "cbor" if coding == "cbor" else "json")
        parsed = parser.parse([bytes(request.payload) for request in requests])
        own = np.array([request.number for request in requests], np.int64)
        rejected = [
            Rejected(int(own[number]), reason, _show(coding, requests[number].payload))
            for number, reason in parsed.rejected
        ]
        return parsed.frame.select(self._columns), own[parsed.origin], rejected

    def _read_table(self, request: StoredRequest) -> pa.Table:
        table = request.table
        if table is None:
            table = read_arrow_stream(request.payload, LARGEST_BODY)
        return _select(table, self._columns)

    def _to_batch(self, frame: pl.DataFrame) -> pa.RecordBatch:
        table = frame.rechunk().to_arrow()
        batch, *_ = table.to_batches() or [pa.RecordBatch.from_pylist([], table.schema)]
        return encode_keys(batch, self._keys)


def _no_rows(columns: Sequence[str]) -> pl.DataFrame:
    return pl.DataFrame(schema=dict.fromkeys(columns, pl.String()))


def _select(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return these columns; nulls for those that the table lacks, or that hold no plain values."""
    kinds = dict(zip(table.schema.names, table.schema.types, strict=True))
    if all(name in kinds and find_plain_type(kinds[name]) == kinds[name] for name in columns):
        return table.select(columns)
    chosen = {
        name: _to_plain(table[name]) if name in kinds else pa.nulls(table.num_rows, pa.string())
        for name in columns
    }
    return pa.table(chosen)


def _to_plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    plain = find_plain_type(column.type)
    if plain is None:
        return pa.nulls(len(column), pa.string())
    if plain != column.type and pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column.cast(plain)


def _join_tables(tables: Sequence[tuple[int, pa.Table]]) -> ParsedRequests:
    """Join tables of the same types; types are converted later, as those of every source.

    Names of subjects stay plain text: to encode them takes longer than to look them up.
    """
    numbers = np.repeat(
        np.array([number for number, _ in tables], np.int64),
        [table.num_rows for _, table in tables],
    )
    whole = pa.concat_tables([table for _, table in tables]).unify_dictionaries().combine_chunks()
    batch, *_ = whole.to_batches() or [pa.RecordBatch.from_pylist([], whole.schema)]
    return batch, numbers, []


@lru_cache(maxsize=256)
def find_plain_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type to which a column is converted, usually its own; None if its values are lost.

    Truth values become text, as in JSON, since they fit no time. Times are in UTC: a sender's zone
    may be unknown here.
    """
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_boolean(value):
        return pa.string()
    if pa.types.is_timestamp(value) and value.tz not in (None, "UTC"):
        return pa.timestamp(value.unit, "UTC")
    checks = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_string_view,
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_decimal128,
        pa.types.is_timestamp,
        pa.types.is_date,
        pa.types.is_null,
    )
    return kind if any(check(value) for check in checks) else None


def _strip_lines(payload: Body) -> Body:
    """Remove empty lines at the end."""
    end = len(payload)
    while end and payload[end - 1] == _NEWLINE:
        end -= 1
    return payload[:end]


def _count_lines(block: Body) -> int:
    return 1 + int(np.count_nonzero(np.frombuffer(block, np.uint8) == _NEWLINE))


def _show(coding: BodyFormat, payload: Body) -> str:
    return payload.hex() if coding == "cbor" else bytes(payload).decode(errors="replace")
