"""Numbers in texts: the compiled loop returns what Polars does, and leaves the rest to it."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tacit.events.columntypes import ColumnTypes, convert_text
from tacit.events.numerals import parse_floats, parse_integers
from tacit.events.streams import ColumnType, Stream
from tacit.events.times import to_microseconds

STREAM = Stream(subject="who", time="at")
ODD = ["", "-", "+5", "1.", ".5", "1..2", "1.2.3", "--1", "1e5", "0x10", "1_000", "٣", "1٣", " 7"]
ODD += ["7 ", "\u00a07", "\x1c7", "nan", "inf", "null", "1:2", "1/2", "2024-01-31", "20240131"]
NUMBERS = st.one_of(
    st.from_regex(r"-?[0-9]{0,20}(\.[0-9]{0,17})?", fullmatch=True),
    st.integers(-(2**64), 2**64).map(str),
    st.floats().map(repr),
    st.sampled_from(ODD),
    st.text("0123456789-+. eE", max_size=20),
)
TEXTS = st.lists(st.none() | NUMBERS, max_size=12)
KINDS = st.sampled_from([pa.string(), pa.large_string()])


def bits(column: pa.Array) -> list[Any]:
    """The values with their exact bits: 0.0 is not -0.0."""
    return [None if value is None else repr(value) for value in column.to_pylist()]


@given(TEXTS, KINDS, st.sampled_from(["number", "integer"]), st.integers(0, 3))
@example(["-0", "000000000000000.1", "123456789012345", "0.1", None], pa.string(), "number", 1)
@example(["-0", "000000000000000001", "9223372036854775808"], pa.string(), "integer", 0)
def test_a_column_of_numbers_is_what_polars_makes_of_it(
    texts: list[str | None], kind: pa.DataType, to: ColumnType, start: int
) -> None:
    column = pa.array(texts, kind).slice(min(start, len(texts)))
    batch = pa.RecordBatch.from_arrays([column], ["value"])
    found = ColumnTypes(STREAM, {"value": to}).convert(batch).column(0)
    expected = convert_text(pl.Series(texts[start:], dtype=pl.String), to, STREAM).to_arrow()
    assert found.type == expected.type
    assert bits(found) == bits(expected)


@given(TEXTS, KINDS, st.sampled_from([None, "s", "ms", "us", "ns"]))
@example(["99999999999", "100000000000", "999999999999999999", "-5", "20240131"], pa.string(), None)
def test_a_time_is_the_same_with_a_space_before_it(
    texts: list[str | None], kind: pa.DataType, unit: Any
) -> None:
    """A space is removed, but the compiled loop does not read such a number."""
    stream = Stream(subject="who", time="at", unit=unit)
    spaced = [None if text is None else f" {text}" for text in texts]
    found = to_microseconds(pa.array(texts, kind), stream)
    np.testing.assert_array_equal(found, to_microseconds(pa.array(spaced, kind), stream))


@pytest.mark.parametrize("text", ["7", "-7", "007", "123456789012345"])
def test_plain_numbers_are_not_left_to_polars(text: str) -> None:
    column = pa.array([text, None, f"{text}x"])
    for values, left in (parse_floats(column), parse_integers(column)):
        assert left.tolist() == [False, True, True]
        assert values[0] == int(text)
