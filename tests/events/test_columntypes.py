"""Values become typed one by one: no value changes how another is read."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import SchemaError
from tacit.events.columntypes import (
    POLARS_TYPES,
    ColumnTypes,
    convert_text,
    infer_type,
    to_column_type,
)
from tacit.events.streams import COLUMN_TYPES, ColumnType, Stream

STREAM = Stream(subject="who", time="at")
LOOK_ALIKES = st.sampled_from(
    [
        "7", "007", "7.0", "7.5", "-0", "1e5", "1e400", "nan", "inf", "", " ", "true", "False", "1",
        "0", "unknown", "null", "2024-01-31", "31/01/2024", "2024-01-31T10:00:00Z", "1700000000",
        "1700000000.5", "1700000000000", "20240131", "99999999999999999999999", "+5", "٣", "1,5",
    ]
)  # fmt: skip
TEXTS = st.lists(st.none() | LOOK_ALIKES | st.text(max_size=6), max_size=12)


def converted(texts: list[str | None], to: ColumnType) -> list[Any]:
    return convert_text(pl.Series(texts, dtype=pl.String), to, STREAM).to_list()


@given(TEXTS, st.sampled_from(COLUMN_TYPES))
def test_a_text_is_converted_as_it_would_be_alone(texts: list[str | None], to: ColumnType) -> None:
    assert converted(texts, to) == [converted([text], to)[0] for text in texts]


@pytest.mark.parametrize(
    ("to", "text", "value"),
    [
        ("number", " 7.5 ", 7.5),
        ("number", "unknown", None),
        ("number", "nan", None),
        ("number", "1e400", None),
        ("number", "", None),
        ("integer", "007", 7),
        ("integer", "7.5", None),
        ("integer", "9223372036854775808", None),
        ("boolean", "True", True),
        ("boolean", "0", False),
        ("boolean", "yes", None),
        ("text", "007", "007"),
        ("text", " a ", " a "),
        ("time", "2024-01-31T10:00:00+01:00", datetime(2024, 1, 31, 9, tzinfo=UTC)),
        ("time", "1700000000", datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)),
        ("time", "1700000000000", datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)),
        ("time", "1700000000.25", datetime(2023, 11, 14, 22, 13, 20, 250_000, tzinfo=UTC)),
        ("time", "31/01/2024", None),
        ("time", "1e400", None),
    ],
)
def test_what_fits_is_converted_and_what_does_not_is_null(
    to: ColumnType, text: str, value: Any
) -> None:
    assert converted([text], to) == [value]
    assert convert_text(pl.Series([text]), to, STREAM).dtype == POLARS_TYPES[to]


def test_times_obey_the_zone_and_the_unit_of_their_stream() -> None:
    berlin = Stream(subject="who", time="at", zone="Europe/Berlin", unit="ms")
    texts = pl.Series(["2024-01-31T10:00:00", "2024-01-31T10:00:00Z", "60000"])
    assert convert_text(texts, "time", berlin).to_list() == [
        datetime(2024, 1, 31, 9, tzinfo=UTC),
        datetime(2024, 1, 31, 10, tzinfo=UTC),
        datetime(1970, 1, 1, 0, 1, tzinfo=UTC),
    ]


ARRAYS = [
    pa.array(["7", "x", None, "1700000000"]),
    pa.array(["7", "x", None, "7"]).dictionary_encode(),
    pa.array(["7", "x"], pa.string_view()),
    pa.array([7, None, 8]),
    pa.array([7.5, float("nan"), None]),
    pa.array([True, None]),
    pa.array([datetime(2024, 1, 31)]),
]
UNFIT = {
    ("bool", "time"),
    ("timestamp[us]", "number"),
    ("timestamp[us]", "integer"),
    ("timestamp[us]", "boolean"),
}


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: str(array.type))
@pytest.mark.parametrize("to", COLUMN_TYPES)
def test_typed_columns_are_converted_value_by_value(array: pa.Array, to: ColumnType) -> None:
    types = ColumnTypes(STREAM, {"v": to})

    def values(part: pa.Array) -> list[Any]:
        batch = pa.RecordBatch.from_arrays([part], ["v"])
        found: list[Any] = types.convert(batch).column(0).to_pylist()
        return found

    if (str(array.type), to) in UNFIT:
        with pytest.raises(SchemaError, match="'v' is declared as"):
            types.schema(pa.schema([("v", array.type)]))
        return
    assert types.schema(pa.schema([("v", array.type)])).names == ["v"]
    assert values(array) == [
        value for row in range(len(array)) for value in values(array[row:][:1])
    ]


def test_a_column_that_cannot_be_converted_is_refused_before_any_row_is_read() -> None:
    with pytest.raises(SchemaError, match="'v' is declared as number, but the source has"):
        ColumnTypes(STREAM, {"v": "number"}).schema(pa.schema([("v", pa.list_(pa.int64()))]))


def test_columns_without_a_declared_type_stay_as_they_are() -> None:
    batch = pa.RecordBatch.from_pydict({"v": [1], "w": ["x"]})
    assert ColumnTypes(STREAM, {}).convert(batch) is batch
    assert ColumnTypes(STREAM, {"w": "text"}).convert(batch) is batch


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["1", "2.5", ""], "number"),
        (["true", "False"], "boolean"),
        (["2024-01-31", "2024-02-01T00:00:00Z"], "time"),
        (["1", "unknown"], "text"),
        (["", None], "text"),
    ],
)
def test_a_sample_gives_the_narrowest_type_that_fits_it(
    texts: list[str | None], kind: ColumnType
) -> None:
    assert infer_type(pl.Series(texts, dtype=pl.String), STREAM) == kind


def test_typed_formats_have_their_like() -> None:
    kinds = [pl.Int16(), pl.Float32(), pl.Datetime("us"), pl.Date(), pl.Categorical(), pl.Boolean()]
    assert [to_column_type(kind) for kind in kinds] == [
        "number", "number", "time", "time", "text", "boolean",
    ]  # fmt: skip
