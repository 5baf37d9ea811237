"""Payloads of messages become rows: JSON or CBOR, an object each or an array of objects.

All payloads of a batch are read together. Those that cannot be read are rejected, each with
its reason, and never hinder the others.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, cast, get_args

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tacit.connectors.jsonlines import Parser
from tacit.errors import nearest

Coding: TypeAlias = Literal["json", "cbor"]
Kind: TypeAlias = Literal["text", "integer", "number", "boolean", "time"]
KINDS: Final[Mapping[Kind, pl.DataType]] = {
    "text": pl.String(),
    "integer": pl.Int64(),
    "number": pl.Float64(),
    "boolean": pl.Boolean(),
    "time": pl.Null(),  # text or numbers, as they come
}
_PLAIN: Final = {int, float, str, bool, type(None), datetime.datetime}


@dataclass(frozen=True, slots=True)
class Parsed:
    """The rows of payloads, in order."""

    frame: pl.DataFrame
    origin: NDArray[np.int64]
    """Which payload each row is from."""
    rejected: Sequence[tuple[int, str]]
    """Payloads that could not be read, and why."""


def read_coding(text: str) -> Coding:
    """How payloads are written, by name."""
    if text not in get_args(Coding):
        raise ValueError(f"payload is {' or '.join(get_args(Coding))}, not '{text}'")
    return cast("Coding", text)


def read_kinds(text: str) -> dict[str, Kind]:
    """Columns with their types, such as `ts:time,speed:number`.

    >>> read_kinds("ts:time,speed:number")
    {'ts': 'time', 'speed': 'number'}
    """
    kinds: dict[str, Kind] = {}
    for part in text.split(","):
        name, colon, kind = part.strip().rpartition(":")
        if not colon or not name:
            raise ValueError(f"columns are written name:type, as in ts:time; got '{part}'")
        if kind not in KINDS:
            hint = nearest(kind, list(KINDS)) or f" Known are {', '.join(KINDS)}."
            raise ValueError(f"there is no type '{kind}' of columns.{hint}")
        if name in kinds:
            raise ValueError(f"the column '{name}' is given twice")
        kinds[name] = cast("Kind", kind)
    return kinds


def told_kinds(
    columns: Mapping[str, Kind] | None, sample: str | None
) -> dict[str, pl.DataType] | None:
    """The types of columns that are named, or those of a file; None where neither is given."""
    if columns is not None:
        return {name: KINDS[kind] for name, kind in columns.items()}
    if sample is None:
        return None
    from tacit.connectors.files import open_source

    frame = pl.DataFrame(open_source(sample).schema().empty_table())
    return {name: plain_kind(kind) for name, kind in frame.schema.items()}


def plain_kind(kind: pl.DataType) -> pl.DataType:
    """The type in which a column of a file can come in payloads."""
    if kind.is_integer():
        return pl.Int64()
    if kind.is_numeric():
        return pl.Float64()
    if kind.is_temporal() or kind == pl.Null:
        return pl.Null()
    return pl.Boolean() if kind == pl.Boolean else pl.String()


def infer_kinds(payloads: Sequence[bytes], coding: Coding) -> dict[str, pl.DataType]:
    """The columns of these payloads; none if no payload can be read."""
    loaded = [_load_json(raw) for raw in payloads] if coding == "json" else _load_cbor(payloads)
    rows = [row for value in loaded if not isinstance(value, str) for row in value]
    frame = pl.DataFrame(rows, infer_schema_length=None, strict=False)
    return {name: plain_kind(kind) for name, kind in frame.schema.items()}


class PayloadParser:
    """Turns payloads into frames of these columns."""

    def __init__(
        self, kinds: Mapping[str, pl.DataType], keys: Sequence[str], coding: Coding
    ) -> None:
        self._kinds = dict(kinds)
        self._coding = coding
        self._lines = Parser(dict(kinds), keys)

    def parse(self, payloads: Sequence[bytes]) -> Parsed:
        """The rows of all payloads, in their order."""
        if not payloads or not self._kinds:
            return Parsed(self.nulls(len(payloads)), np.arange(len(payloads)), [])
        return self._json(payloads) if self._coding == "json" else self._cbor(payloads)

    def nulls(self, count: int) -> pl.DataFrame:
        """So many rows that hold nothing."""
        return pl.DataFrame(
            {name: pl.Series(name, [None], kind) for name, kind in self._kinds.items()}
        ).clear(count)

    def _json(self, payloads: Sequence[bytes]) -> Parsed:
        stripped = [payload.strip() for payload in payloads]
        if b"" in stripped:
            return self._without_empty(stripped)
        block = b"\n".join(stripped)
        if block.count(b"\n") >= len(stripped):
            stripped = [payload.replace(b"\n", b" ") for payload in stripped]
            block = b"\n".join(stripped)
        if block.startswith(b"[") or b"\n[" in block:
            return self._with_arrays(stripped)
        return self._objects(block, np.arange(len(stripped)))

    def _without_empty(self, payloads: Sequence[bytes]) -> Parsed:
        """Such as clear what a broker retains."""
        full = np.array([number for number, payload in enumerate(payloads) if payload], np.int64)
        parsed = self.parse([payload for payload in payloads if payload])
        bad = [(number, "an empty payload") for number, raw in enumerate(payloads) if not raw]
        bad += [(int(full[number]), reason) for number, reason in parsed.rejected]
        return Parsed(parsed.frame, full[parsed.origin], sorted(bad))

    def _objects(self, block: bytes, origin: NDArray[np.int64]) -> Parsed:
        """Lines with an object each; `origin` says which payload a line is from."""
        frame, places, rejected = self._lines.parse(block, 0)
        if places is None:
            return Parsed(frame, origin, [])
        bad = [(int(origin[line.place]), line.reason) for line in rejected]
        return Parsed(frame, origin[places], bad)

    def _with_arrays(self, payloads: Sequence[bytes]) -> Parsed:
        """Arrays are read together and exploded, or taken apart one by one if some are bad."""
        many = [number for number, payload in enumerate(payloads) if payload.startswith(b"[")]
        single = [number for number, payload in enumerate(payloads) if payload[:1] != b"["]
        exploded = self._exploded([payloads[number] for number in many])
        if exploded is None:
            return self._one_by_one(payloads)
        frame, lengths = exploded
        origin = np.repeat(np.array(many, np.int64), lengths)
        if not single:
            return Parsed(frame, origin, [])
        block = b"\n".join(payloads[number] for number in single)
        others = self._objects(block, np.array(single, np.int64))
        frames = pl.concat([frame, others.frame], how="vertical_relaxed")
        origins = np.concatenate([origin, others.origin])
        order = np.argsort(origins, kind="stable")
        return Parsed(frames[order], origins[order], others.rejected)

    def _exploded(self, arrays: list[bytes]) -> tuple[pl.DataFrame, NDArray[np.int64]] | None:
        kind = pl.List(pl.Struct(self._lines.kinds))
        try:
            lists = pl.Series("rows", arrays, pl.Binary).cast(pl.String).str.json_decode(kind)
        except pl.exceptions.PolarsError:
            return None
        lengths = lists.list.len()
        rows = lists.filter(lengths > 0).explode()
        if lengths.null_count() or rows.null_count():
            return None
        return self._lines.typed(rows.struct.unnest()), lengths.to_numpy().astype(np.int64)

    def _one_by_one(self, payloads: Sequence[bytes]) -> Parsed:
        lines: list[bytes] = []
        origin: list[int] = []
        bad: list[tuple[int, str]] = []
        for number, payload in enumerate(payloads):
            rows = _load_json(payload) if payload.startswith(b"[") else [payload]
            if isinstance(rows, str):
                bad.append((number, rows))
                continue
            lines += [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
            origin += [number] * len(rows)
        parsed = self._objects(b"\n".join(lines), np.array(origin, np.int64))
        return Parsed(parsed.frame, parsed.origin, sorted([*bad, *parsed.rejected]))

    def _cbor(self, payloads: Sequence[bytes]) -> Parsed:
        loaded = _load_cbor(payloads)
        bad = [(number, rows) for number, rows in enumerate(loaded) if isinstance(rows, str)]
        good = [[] if isinstance(rows, str) else rows for rows in loaded]
        rows = [row for part in good for row in part]
        columns = [
            _column(name, kind, [row.get(name) for row in rows])
            for name, kind in self._kinds.items()
        ]
        origin = np.repeat(np.arange(len(good)), [len(part) for part in good])
        return Parsed(pl.DataFrame(columns), origin, bad)


def _column(name: str, kind: pl.DataType, values: list[Any]) -> pl.Series:
    """A column of what CBOR may hold; what does not fit is null."""
    kinds = set(map(type, values))
    if not kinds <= _PLAIN:
        values = [value if type(value) in _PLAIN else None for value in values]
    if kind == pl.Null and kinds <= {datetime.datetime, type(None)}:
        return pl.Series(name, values, pl.Datetime("us", "UTC"), strict=False)
    if datetime.datetime in kinds:
        values = [v.isoformat() if isinstance(v, datetime.datetime) else v for v in values]
    if kind == pl.Null and kinds & {int, float} and str not in kinds:
        return pl.Series(name, values, pl.Float64 if float in kinds else pl.Int64, strict=False)
    if int in kinds and kind == pl.Int64 and float in kinds:
        kind = pl.Float64()
    return pl.Series(name, values, pl.String() if kind == pl.Null else kind, strict=False)


def _load_json(payload: bytes) -> list[dict[str, Any]] | str:
    """The objects of a payload, or why there are none."""
    try:
        return _objects(json.loads(payload, parse_constant=lambda _: None), "JSON")
    except UnicodeDecodeError:
        return "not UTF-8 text"
    except (ValueError, RecursionError):
        return "not JSON"


def _load_cbor(payloads: Sequence[bytes]) -> list[list[dict[str, Any]] | str]:
    """The same for each of these."""
    from cbor2 import loads

    def load(payload: bytes) -> list[dict[str, Any]] | str:
        try:
            return _objects(loads(payload), "CBOR")
        except Exception:
            # A tag may hold anything; whatever its decoder stumbles over, it is this one alone.
            return "not CBOR"

    return [load(payload) for payload in payloads]


def _objects(value: Any, coding: str) -> list[dict[str, Any]] | str:
    if type(value) is dict:
        return [value]
    if isinstance(value, list) and all(isinstance(row, dict) for row in value):
        return value
    return f"not a {coding} object, nor an array of objects"
