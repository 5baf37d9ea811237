"""Parse payloads of messages into rows: JSON or CBOR, an object or an array of objects; or plain
values such as `21.5` and `ON`.

All payloads of a batch are parsed together, every value as text. Unreadable payloads are rejected,
each with its reason, and never change how others are read.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast, get_args

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tacit.connectors.jsonlines import (
    JsonLinesSource,
    ParsedItems,
    parse_objects,
    read_plain_objects,
)
from tacit.connectors.salvage import salvage
from tacit.errors import nearest
from tacit.events.columntypes import infer_type, to_column_type
from tacit.events.streams import COLUMN_TYPES, ColumnType, Stream

Coding: TypeAlias = Literal["json", "cbor"]
PayloadFormat: TypeAlias = Literal["json", "cbor", "value"]
"""How the payloads of a source are read: with `value` each is one plain value."""
VALUE = "value"
"""The column of plain values."""
_NOT_TEXT = "not UTF-8 text"
_NO_OBJECT = "not a {} object, nor an array of objects"


def parse_coding(text: str) -> Coding:
    """Parse the name of a payload format."""
    if text not in get_args(Coding):
        raise ValueError(f"payload is {' or '.join(get_args(Coding))}, not '{text}'")
    return cast("Coding", text)


def parse_types(text: str) -> dict[str, ColumnType]:
    """Parse columns with their types, such as `ts:time,speed:number`.

    >>> parse_types("ts:time,speed:number")
    {'ts': 'time', 'speed': 'number'}
    """
    types: dict[str, ColumnType] = {}
    for part in text.split(","):
        name, colon, kind = part.strip().rpartition(":")
        if not colon or not name:
            raise ValueError(f"columns are written name:type, as in ts:time; got '{part}'")
        if kind not in COLUMN_TYPES:
            hint = nearest(kind, list(COLUMN_TYPES)) or f" Known are {', '.join(COLUMN_TYPES)}."
            raise ValueError(f"there is no column type '{kind}'.{hint}")
        if name in types:
            raise ValueError(f"the column '{name}' is given twice")
        types[name] = kind
    return types


def declared_types(
    columns: Mapping[str, ColumnType] | None, sample: str | None
) -> Mapping[str, ColumnType]:
    """Return the types that a URL declares: by name, or by a sample file."""
    if columns is not None:
        return columns
    return {} if sample is None else infer_sample_types(sample)


def infer_sample_types(path: str) -> dict[str, ColumnType]:
    """Return the types of a file's columns; for text, infer them from the first rows."""
    from tacit.connectors.files import open_source

    source = open_source(path)
    names = source.schema().names
    if not source.textual:
        frame = pl.DataFrame(source.schema().empty_table())
        return {name: to_column_type(kind) for name, kind in frame.schema.items()}
    if isinstance(source, JsonLinesSource):
        names = source.first_keys()
    stream = Stream(subject="", time="")
    batch = next(source.batches(names), None)
    if batch is None:
        return {}
    frame = pl.DataFrame(batch.table)
    return {name: infer_type(frame[name], stream) for name in names}


class PayloadParser:
    """Turns payloads into frames of these columns, all of them text."""

    def __init__(self, columns: Sequence[str], coding: PayloadFormat) -> None:
        self._columns = list(columns)
        self._coding = coding

    def parse(self, payloads: Sequence[bytes]) -> ParsedItems:
        """Parse the rows of all payloads, in their order."""
        if not payloads or not self._columns:
            return ParsedItems(self.make_nulls(len(payloads)), np.arange(len(payloads)), [])
        if self._coding == "value":
            return self._parse_values(payloads)
        return self._parse_json(payloads) if self._coding == "json" else self._parse_cbor(payloads)

    def make_nulls(self, count: int) -> pl.DataFrame:
        """Return `count` rows of nulls."""
        return pl.DataFrame(schema=dict.fromkeys(self._columns, pl.String())).clear(count)

    def _parse_values(self, payloads: Sequence[bytes]) -> ParsedItems:
        """Take each payload as the text of one value; other columns are null."""
        text = pl.Series(VALUE, [_decode(payload) for payload in payloads], pl.String)
        text = text.str.strip_chars()
        good = (text.str.len_bytes() > 0).fill_null(value=False)
        rejected = [
            (number, _NOT_TEXT if text[number] is None else "an empty payload")
            for number in np.flatnonzero(~good.to_numpy()).tolist()
        ]
        rows = pl.DataFrame({VALUE: text.filter(good)})
        others = [pl.lit(None, pl.String).alias(name) for name in self._columns if name != VALUE]
        origin = np.flatnonzero(good.to_numpy())
        return ParsedItems(rows.with_columns(others).select(self._columns), origin, rejected)

    def _parse_json(self, payloads: Sequence[bytes]) -> ParsedItems:
        """Parse objects together and arrays together, one payload per line."""
        frame = read_plain_objects(payloads, self._columns)
        if frame is not None:
            return ParsedItems(frame, np.arange(len(payloads)), [])
        lines = [payload.strip().replace(b"\n", b" ") for payload in payloads]
        empty = [number for number, line in enumerate(lines) if not line]
        many = [number for number, line in enumerate(lines) if line.startswith(b"[")]
        if not empty and not many:
            return parse_objects(lines, self._columns)
        apart = {*empty, *many}
        single = [number for number in range(len(lines)) if number not in apart]
        objects = parse_objects([lines[number] for number in single], self._columns)
        arrays = self._parse_arrays([lines[number] for number in many])
        origin = np.concatenate(
            [
                np.array(single, np.int64)[objects.origin],
                np.array(many, np.int64)[arrays.origin],
            ]
        )
        order = np.argsort(origin, kind="stable")
        rejected = [(number, "an empty payload") for number in empty]  # clears a retained message
        rejected += [(single[number], reason) for number, reason in objects.rejected]
        rejected += [(many[number], reason) for number, reason in arrays.rejected]
        frame = pl.concat([objects.frame, arrays.frame])[order]
        return ParsedItems(frame, origin[order], sorted(rejected))

    def _parse_arrays(self, arrays: Sequence[bytes]) -> ParsedItems:
        found = salvage(arrays, self._explode)
        reason = "not an array of JSON objects with plain values"
        return ParsedItems(found.frame, found.origin, [(bad, reason) for bad in found.failed])

    def _explode(self, arrays: Sequence[bytes]) -> tuple[pl.DataFrame, NDArray[np.int64]]:
        kind = pl.List(pl.Struct(dict.fromkeys(self._columns, pl.String())))
        lists = pl.Series("rows", arrays, pl.Binary).cast(pl.String).str.json_decode(kind)
        lengths = lists.list.len()
        rows = lists.filter(lengths > 0).explode()
        if lengths.null_count() or rows.null_count() or any(b"\\u" in array for array in arrays):
            for array in arrays:
                _check_array(array)
        return rows.struct.unnest(), lengths.to_numpy().astype(np.int64)

    def _parse_cbor(self, payloads: Sequence[bytes]) -> ParsedItems:
        loaded = [_load_cbor(payload) for payload in payloads]
        bad = [(number, rows) for number, rows in enumerate(loaded) if isinstance(rows, str)]
        good = [[] if isinstance(rows, str) else rows for rows in loaded]
        rows = [row for part in good for row in part]
        columns = {
            name: pl.Series(name, [_to_text(row.get(name)) for row in rows], pl.String)
            for name in self._columns
        }
        origin = np.repeat(np.arange(len(good)), [len(part) for part in good])
        return ParsedItems(pl.DataFrame(columns), origin, bad)


def _decode(payload: bytes) -> str | None:
    """Return the text of a payload; None if it is not UTF-8."""
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return None


def _to_text(value: Any) -> str | None:
    """Convert a plain value to text as in JSON; null for anything else."""
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            return str(value) if -(2**63) <= value < 2**64 else None
        case float():
            return repr(value) if math.isfinite(value) else None
        case datetime.datetime():
            return value.isoformat()
        case _:
            return None


def _check_array(payload: bytes) -> None:
    """Raise ValueError unless it is an array of objects without lone surrogates."""
    rows = json.loads(payload)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(_NO_OBJECT.format("JSON"))
    json.dumps(rows, ensure_ascii=False).encode()


def _load_cbor(payload: bytes) -> list[dict[str, Any]] | str:
    """Decode the objects of a payload, or return the reason why there are none."""
    from cbor2 import loads

    try:
        value = loads(payload)
        rows = [value] if isinstance(value, dict) else value
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            return _NO_OBJECT.format("CBOR")
        for row in rows:
            for part in row.values():
                if isinstance(part, str):
                    part.encode()
        return rows
    except Exception:
        # The decoder of a tag may raise anything.
        return "not CBOR"
