"""Column types: the types of a column's values, fixed before the first tuple is read.

Values of text formats (CSV, JSON lines, messages) are text until they are converted here. Each
value is converted separately: a value that does not fit its column's type becomes null and never
changes how another row is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from tacit.errors import SchemaError
from tacit.events.columns import read_numbers, split_chunks, to_plain_text
from tacit.events.numerals import parse_floats, parse_integers
from tacit.events.streams import COLUMN_TYPES, ColumnType, Stream
from tacit.events.times import NO_TIME, to_microseconds

POLARS_TYPES: Final[Mapping[ColumnType, pl.DataType]] = {
    "text": pl.String(),
    "number": pl.Float64(),
    "integer": pl.Int64(),
    "boolean": pl.Boolean(),
    "time": pl.Datetime("us", "UTC"),
}
"""The Polars type of a column in conditions."""
_CONVERSIONS: Final[Mapping[ColumnType | None, tuple[ColumnType, ...]]] = {
    "text": COLUMN_TYPES,
    "number": ("text", "number", "integer", "boolean", "time"),
    "boolean": ("text", "number", "integer", "boolean"),
    "time": ("text", "time"),
}
"""The types that columns of a typed format can be converted to."""
_TRUE: Final = ("true", "1")
_FALSE: Final = ("false", "0")


def to_column_type(dtype: pl.DataType) -> ColumnType:
    """Return the column type that corresponds to a Polars type."""
    if dtype.is_numeric():
        return "number"
    if dtype.is_temporal():
        return "time"
    return "boolean" if dtype == pl.Boolean else "text"


def convert_text(text: pl.Series, to: ColumnType, stream: Stream) -> pl.Series:
    """Convert each text separately; a text that does not fit becomes null.

    >>> speeds = pl.Series(["7", " 7.5", "unknown", "inf", None])
    >>> convert_text(speeds, "number", Stream(subject="taxi", time="at")).to_list()
    [7.0, 7.5, None, None, None]
    """
    match to:
        case "text":
            return text
        case "number":
            numbers = text.str.strip_chars().cast(pl.Float64, strict=False)
            return numbers.set(~numbers.is_finite(), None)
        case "integer":
            return text.str.strip_chars().cast(pl.Int64, strict=False)
        case "boolean":
            lower = text.str.strip_chars().str.to_lowercase()
            true = lower.is_in(_TRUE)
            return true.set(~(true | lower.is_in(_FALSE)), None)
        case "time":
            return _to_moments(to_microseconds(text, stream))


def infer_type(text: pl.Series, stream: Stream) -> ColumnType:
    """Return the narrowest type that all these texts fit; text if there is none.

    Use it only for history and samples, never for data that is being protected.
    """
    filled = text.drop_nulls().filter(text.drop_nulls().str.strip_chars() != "")
    candidates: tuple[ColumnType, ...] = ("number", "boolean", "time") if len(filled) else ()
    for candidate in candidates:
        if not convert_text(filled, candidate, stream).null_count():
            return candidate
    return "text"


@dataclass(frozen=True)
class ColumnTypes:
    """The types of some columns of a source; the others keep their own."""

    stream: Stream
    types: Mapping[str, ColumnType]

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema after conversion; raise SchemaError if a type cannot be converted."""
        fields = []
        for field in schema:
            to = self.types.get(field.name)
            if to is None:
                fields.append(field)
                continue
            if to not in _CONVERSIONS.get(_family(field.type), ()):
                raise SchemaError(
                    f"column '{field.name}' is declared as {to}, but the source has"
                    f" {field.type}, which cannot be converted; correct `columns`"
                )
            fields.append(pa.field(field.name, _converted_type(field.type, to)))
        return pa.schema(fields)

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the same rows with converted columns."""
        for number, field in enumerate(batch.schema):
            to = self.types.get(field.name)
            if to is not None and not (to == "text" and _is_text(field.type)):
                column = _convert(batch.column(number), to, self.stream)
                batch = batch.set_column(number, field.name, column)
        return batch


@lru_cache(maxsize=256)
def _converted_type(kind: pa.DataType, to: ColumnType) -> pa.DataType:
    """Return the type of a column after conversion; it does not depend on the stream."""
    return _convert(pa.nulls(1, kind), to, Stream(subject="subject", time="time")).type


def _convert(array: pa.Array, to: ColumnType, stream: Stream) -> pa.Array:
    """Convert one contiguous column; of a dictionary, each value once."""
    if pa.types.is_dictionary(array.type):
        values = _convert(array.dictionary, to, stream)
        return to_plain_text(values).take(array.indices)
    if _is_done(array, to):
        return array
    if to not in _CONVERSIONS.get(_family(array.type), ()):
        return pa.nulls(len(array), _converted_type(pa.string(), to))
    if to in ("number", "integer") and _is_plain_text(array.type):
        return _parse_numbers(array, to, stream)
    if to == "time" and _is_plain_text(array.type):
        (chunk,) = split_chunks(_to_moments(to_microseconds(array, stream)))
        return chunk
    series = pl.Series(array)
    if series.dtype in (pl.String, pl.Categorical, pl.Enum):
        converted = convert_text(series.cast(pl.String), to, stream)
    elif series.dtype == pl.Null:
        converted = series.cast(POLARS_TYPES[to])
    elif to == "time":
        converted = _to_moments(to_microseconds(array, stream))
    else:
        converted = series.cast(POLARS_TYPES[to], strict=False)
        if to == "number":
            converted = converted.set(~converted.is_finite(), None)
    (chunk,) = split_chunks(converted.rechunk())
    return chunk


def _parse_numbers(array: pa.Array, to: ColumnType, stream: Stream) -> pa.Array:
    """Convert texts to numbers: the usual ones in a compiled loop, the others as `convert_text`."""
    values, left = parse_floats(array) if to == "number" else parse_integers(array)
    if not left.any():
        return pa.array(values)
    others = convert_text(pl.Series(array.filter(pa.array(left))), to, stream)
    values[left] = others.fill_null(0).to_numpy()
    left[left] = others.is_null().to_numpy()
    return pa.array(values, mask=left)


def _is_done(array: pa.Array, to: ColumnType) -> bool:
    """Return whether a column has nothing to convert."""
    if to == "number" and pa.types.is_float64(array.type):
        return bool(np.isfinite(read_numbers(array)).all())
    return to == "integer" and bool(pa.types.is_int64(array.type))


def _to_moments(times: NDArray[np.int64]) -> pl.Series:
    moments = pl.Series(times, dtype=pl.Int64)
    return moments.set(moments == NO_TIME, None).cast(pl.Datetime("us", "UTC"))


def _family(kind: pa.DataType) -> ColumnType | None:
    """Return the column type that corresponds to an Arrow type; None for lists and the like."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if _is_text(kind) or pa.types.is_null(kind):
        return "text"
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    return "time" if pa.types.is_timestamp(kind) or pa.types.is_date(kind) else None


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return _is_plain_text(kind) or bool(pa.types.is_string_view(kind))


def _is_plain_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
