"""Payloads become rows, and bad ones hinder nobody."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import cbor2
import polars as pl
import pytest
from cbor2 import CBORTag
from hypothesis import given
from hypothesis import strategies as st

from tacit.connectors import jsonlines
from tacit.connectors.payloads import (
    KINDS,
    Coding,
    Parsed,
    PayloadParser,
    infer_kinds,
    plain_kind,
    read_coding,
    read_kinds,
)

COLUMNS = {"n": KINDS["integer"], "x": KINDS["number"], "s": KINDS["text"], "b": KINDS["boolean"]}
ROWS = st.fixed_dictionaries(
    {},
    optional={
        "n": st.none() | st.integers(-(2**53), 2**53),
        "x": st.none() | st.floats(allow_nan=False, allow_infinity=False, width=32),
        "s": st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
        "b": st.none() | st.booleans(),
        "other": st.none() | st.integers(0, 9) | st.lists(st.integers(), max_size=2),
    },
)
GOOD = ROWS | st.lists(ROWS, max_size=3)
BAD = st.sampled_from([b"", b"  ", b"{", b"[", b"7", b"[1]", b"null", b"[null]", b'"x"', b"{}{}"])


def parse(payloads: list[bytes], coding: Coding = "json") -> Parsed:
    return PayloadParser(COLUMNS, [], coding).parse(payloads)


def expected(values: list[Any]) -> list[tuple[int, dict[str, Any]]]:
    """Row by row: which payload it is from, and what it holds."""
    return [
        (number, {name: row.get(name) for name in COLUMNS})
        for number, value in enumerate(values)
        if value is not None
        for row in (value if isinstance(value, list) else [value])
    ]


def found(parsed: Parsed) -> list[tuple[int, dict[str, Any]]]:
    return list(zip(parsed.origin.tolist(), parsed.frame.to_dicts(), strict=True))


@given(st.lists(GOOD | st.none(), max_size=12), st.lists(BAD, min_size=12, max_size=12))
def test_rows_of_json_come_in_order_and_bad_payloads_are_rejected_alone(
    values: list[Any], bad: list[bytes]
) -> None:
    payloads = [
        bad[number] if value is None else json.dumps(value).encode()
        for number, value in enumerate(values)
    ]
    parsed = parse(payloads)
    assert found(parsed) == expected(values)
    assert [number for number, _ in parsed.rejected] == [
        number for number, value in enumerate(values) if value is None
    ]


@given(st.lists(GOOD | st.none(), max_size=12))
def test_rows_of_cbor_come_in_order_and_bad_payloads_are_rejected_alone(values: list[Any]) -> None:
    payloads = [b"\xff" if value is None else cbor2.dumps(value) for value in values]
    parsed = parse(payloads, "cbor")
    assert found(parsed) == expected(values)
    assert parsed.rejected == [
        (number, "not CBOR") for number, value in enumerate(values) if value is None
    ]


@pytest.mark.parametrize("many", [1, 2000])
def test_a_few_bad_payloads_among_many_are_found(many: int) -> None:
    payloads = [b'{"n": %d}' % number for number in range(many)]
    parsed = parse([*payloads, b"{", *payloads, b'[{"n": 1}, 5]', *payloads])
    assert [number for number, _ in parsed.rejected] == [many, 2 * many + 1]
    assert parsed.frame["n"].to_list() == 3 * list(range(many))


def test_json_may_be_spread_over_lines() -> None:
    parsed = parse([b'{"n":\n 1}', b'[\n{"n": 2},\r\n{"n": 3}]', b'\n{"n": 4}\n'])
    assert parsed.frame["n"].to_list() == [1, 2, 3, 4]


def test_good_arrays_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("taken apart one by one")

    monkeypatch.setattr(PayloadParser, "_one_by_one", fail)
    monkeypatch.setattr(jsonlines.Parser, "_salvage", fail)
    parsed = parse([b'[{"n": 1}, {"n": 2, "x": 3}]', b"[]", b'{"n": 3}', b'[{"n": 4}]'])
    assert found(parsed) == expected([[{"n": 1}, {"n": 2, "x": 3}], [], {"n": 3}, [{"n": 4}]])


def test_what_does_not_fit_its_column_is_null_and_the_rest_is_kept() -> None:
    odd = [{"n": "x", "x": 1}, {"n": 5, "x": "y"}, {"n": 6, "x": {"a": 1}, "s": 7}]
    for coding, payloads in (
        ("json", [json.dumps(row).encode() for row in odd]),
        ("cbor", [cbor2.dumps(row) for row in odd]),
    ):
        frame = parse(payloads, read_coding(coding)).frame
        assert frame["n"].to_list() == [None, 5, 6]
        assert frame["x"].to_list() == [1, None, None]
        assert frame["s"].to_list() == [None, None, "7"]


@pytest.mark.parametrize(
    "value",
    [2**70, -(2**64), CBORTag(4, [2**31, 1]), CBORTag(5, [10**6, 3]), b"\0", [1], 1e400],
)
def test_odd_values_of_cbor_are_null(value: Any) -> None:
    parsed = parse([cbor2.dumps({"n": value, "x": 1}), cbor2.dumps({"n": 2})], "cbor")
    assert parsed.frame["n"].to_list()[1] == 2
    assert parsed.frame["x"].to_list() == [1, None]


def test_times_are_taken_as_they_come() -> None:
    when = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

    def times(payloads: list[bytes], coding: Coding) -> pl.Series:
        return PayloadParser({"t": KINDS["time"]}, [], coding).parse(payloads).frame["t"]

    assert times([b'{"t": 1700000000}', b'{"t": null}'], "json").dtype == pl.Int64
    assert times([b'{"t": 1700000000.5}'], "json").dtype == pl.Float64
    assert times([b'{"t": "2026-01-02T03:04:05Z"}'], "json").to_list() == ["2026-01-02T03:04:05Z"]
    assert times([cbor2.dumps({"t": when})], "cbor").to_list() == [when]
    assert times([cbor2.dumps({"t": 17}), cbor2.dumps({"t": 1.5})], "cbor").to_list() == [17, 1.5]
    mixed = times([cbor2.dumps({"t": when}), cbor2.dumps({"t": "2026"})], "cbor")
    assert mixed.to_list() == ["2026-01-02T03:04:05+00:00", "2026"]


def test_columns_are_inferred_from_payloads_that_can_be_read() -> None:
    rows: list[Any] = [{"n": 1, "s": "a"}, [{"x": 1.5}, {"n": 2.5}], 7]
    wanted = {"n": pl.Float64, "s": pl.String, "x": pl.Float64}
    assert infer_kinds([*(json.dumps(row).encode() for row in rows), b"{"], "json") == wanted
    assert infer_kinds([*(cbor2.dumps(row) for row in rows), b"\xff"], "cbor") == wanted
    assert infer_kinds([b"{", b""], "json") == {}


def test_types_of_files_have_their_like_in_payloads() -> None:
    given_: list[tuple[pl.DataType, pl.DataType]] = [
        (pl.Int16(), pl.Int64()),
        (pl.Float32(), pl.Float64()),
        (pl.Datetime("us", "UTC"), pl.Null()),
        (pl.Categorical(), pl.String()),
        (pl.Boolean(), pl.Boolean()),
    ]
    assert [plain_kind(kind) for kind, _ in given_] == [kind for _, kind in given_]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("speed", "name:type"),
        ("speed:nuber", "Did you mean 'number'"),
        ("a:text,a:number", "given twice"),
        ("", "name:type"),
    ],
)
def test_mistakes_in_columns_are_told(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_kinds(text)
