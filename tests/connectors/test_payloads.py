"""Payloads become rows, and bad ones hinder nobody."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import cbor2
import polars as pl
import pytest
from cbor2 import CBORTag
from hypothesis import given
from hypothesis import strategies as st

from tacit.connectors.jsonlines import ParsedItems
from tacit.connectors.payloads import (
    Coding,
    PayloadParser,
    infer_sample_types,
    parse_coding,
    parse_types,
)
from tacit.events.columntypes import convert_text
from tacit.events.streams import ColumnType, Stream

STREAM = Stream(subject="who", time="t")
COLUMNS: dict[str, ColumnType] = {"n": "integer", "x": "number", "s": "text", "b": "boolean"}
ROWS = st.fixed_dictionaries(
    {},
    optional={
        "n": st.none() | st.integers(-(2**53), 2**53),
        "x": st.none() | st.floats(allow_nan=False, allow_infinity=False, width=32),
        "s": st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
        "b": st.none() | st.booleans(),
        "other": st.none() | st.integers(0, 9) | st.lists(st.integers(-(2**99), 2**99), max_size=2),
    },
)
GOOD = ROWS | st.lists(ROWS, max_size=3)
BAD = st.sampled_from([b"", b"  ", b"{", b"[", b"7", b"[1]", b"null", b"[null]", b'"x"', b"{}{}"])


def parse(payloads: list[bytes], coding: Coding = "json") -> ParsedItems:
    """The rows of payloads, converted to the types of their columns."""
    parsed = PayloadParser(list(COLUMNS), coding).parse(payloads)
    typed = [convert_text(parsed.frame[name], kind, STREAM) for name, kind in COLUMNS.items()]
    return ParsedItems(pl.DataFrame(typed), parsed.origin, parsed.rejected)


def expected(values: list[Any]) -> list[tuple[int, dict[str, Any]]]:
    """Row by row: which payload it is from, and what it holds."""
    return [
        (number, {name: row.get(name) for name in COLUMNS})
        for number, value in enumerate(values)
        if value is not None
        for row in (value if isinstance(value, list) else [value])
    ]


def found(parsed: ParsedItems) -> list[tuple[int, dict[str, Any]]]:
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


@pytest.mark.parametrize("number", ["1e400", str(2**128), str(-(2**127) - 1)])
@pytest.mark.parametrize(
    "row", ['{"n": %s}', '{"n": 1, "other": [%s]}', '[{"n": 2}, {"other": %s}]']
)
def test_a_payload_with_a_number_that_is_too_large_is_rejected_alone(number: str, row: str) -> None:
    parsed = parse([b'{"n": 5}', (row % number).encode(), b'[{"n": 7}]'])
    assert parsed.frame["n"].to_list() == [5, 7]
    assert [payload for payload, _ in parsed.rejected] == [1]


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
    calls = []
    exploded = PayloadParser._explode

    def count(self: PayloadParser, arrays: Any) -> Any:
        calls.append(len(arrays))
        return exploded(self, arrays)

    monkeypatch.setattr(PayloadParser, "_explode", count)
    parsed = parse([b'[{"n": 1}, {"n": 2, "x": 3}]', b"[]", b'{"n": 3}', b'[{"n": 4}]'])
    assert found(parsed) == expected([[{"n": 1}, {"n": 2, "x": 3}], [], {"n": 3}, [{"n": 4}]])
    assert calls == [3]


def test_what_does_not_fit_its_column_is_null_and_the_rest_is_kept() -> None:
    odd = [{"n": "x", "x": 1}, {"n": 5, "x": "y"}, {"n": 6, "x": {"a": 1}, "s": 7}]
    for coding, payloads in (
        ("json", [json.dumps(row).encode() for row in odd]),
        ("cbor", [cbor2.dumps(row) for row in odd]),
    ):
        frame = parse(payloads, parse_coding(coding)).frame
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


def test_a_time_is_read_by_itself_whatever_stands_beside_it() -> None:
    when = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    given_ = [1767323045, "2026-01-02T03:04:05Z", 1767323045.0, 1767323045000, "noon", None, [1]]
    wanted = [when, when, when, when, None, None, None]

    def times(payloads: list[bytes], coding: Coding) -> list[datetime | None]:
        frame = PayloadParser(["t"], coding).parse(payloads).frame
        return convert_text(frame["t"], "time", STREAM).to_list()

    assert times([json.dumps({"t": value}).encode() for value in given_], "json") == wanted
    assert times([cbor2.dumps({"t": value}) for value in given_], "cbor") == wanted
    assert times([cbor2.dumps({"t": when}), cbor2.dumps({"t": "2026"})], "cbor") == [
        when,
        datetime(1970, 1, 1, 0, 33, 46, tzinfo=UTC),
    ]


POISON = [
    b'{"n": 1e400}', b'{"note": 1e400, "n": 1}', b'{"n": ' + b"9" * 39 + b"0}",
    b'{"n": ' + b"9" * 5000 + b"}", b'{"s": "\\ud800"}', b'{"note": "\\udfff"}',
    b'[{"s": "\\ud800"}]', b'{"s": "\xff"}', b"\x00", b"[" * 3000,
]  # fmt: skip


@pytest.mark.parametrize("poison", POISON)
def test_no_payload_stops_the_others(poison: bytes) -> None:
    parsed = parse([b'{"n": 1}', poison, b'{"n": 2}', b'[{"n": 3}]'])
    assert parsed.frame["n"].to_list() == [1, 2, 3]
    assert [number for number, _ in parsed.rejected] == [1]


@given(st.lists(st.sampled_from(POISON) | GOOD.map(lambda row: json.dumps(row).encode())))
def test_every_payload_is_read_as_it_would_be_alone(payloads: list[bytes]) -> None:
    parsed = parse(payloads)
    alone = [parse([payload]) for payload in payloads]
    assert [row for _, row in found(parsed)] == [row for one in alone for _, row in found(one)]
    assert [reason for _, reason in parsed.rejected] == [
        reason for one in alone for _, reason in one.rejected
    ]


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet"])
def test_a_sample_shows_the_types_of_columns(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    frame = pl.DataFrame(
        {"n": [1, 2], "s": ["a", "b"], "b": [True, False], "t": [datetime(2026, 1, 1)] * 2}
    )
    if name == "a.parquet":
        frame.write_parquet(path)
    elif name == "a.csv":
        frame.write_csv(path)
    else:
        frame.write_ndjson(path)
    assert infer_sample_types(str(path)) == {
        "n": "number",
        "s": "text",
        "b": "boolean",
        "t": "time",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("speed", "name:type"),
        ("speed:nuber", "Did you mean 'number'"),
        ("a:text,a:number", "given twice"),
        ("", "name:type"),
    ],
)
def test_mistakes_in_columns_are_reported(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_types(text)


def test_plain_values_are_one_column() -> None:
    """As Home Assistant, ESPHome and Tasmota send them: a number or a word, nothing around it."""
    parsed = PayloadParser(["value", "other"], "value").parse(
        [b"21.5", b" ON\n", b"", b"\xff", b"caf\xc3\xa9", b'{"a": 1}']
    )
    assert parsed.frame["value"].to_list() == ["21.5", "ON", "café", '{"a": 1}']
    assert parsed.frame["other"].to_list() == [None] * 4
    assert parsed.origin.tolist() == [0, 1, 4, 5]
    assert parsed.rejected == [(2, "an empty payload"), (3, "not UTF-8 text")]
