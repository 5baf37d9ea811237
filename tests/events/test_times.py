"""Event times, against Python's own calendar."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta, timezone
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tacit.errors import SchemaError
from tacit.events.streams import Stream
from tacit.events.times import NO_TIME, check_time_type, to_microseconds

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
STREAM = Stream(subject="who", time="when")
BERLIN = Stream(subject="who", time="when", zone="Europe/Berlin")


def micros(time: datetime) -> int:
    return (time - EPOCH) // timedelta(microseconds=1)


def times(values: Any, stream: Stream = STREAM, kind: pa.DataType | None = None) -> list[int]:
    found: list[int] = to_microseconds(pa.array(values, kind), stream).tolist()
    return found


@settings(max_examples=60)
@given(
    st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)),
    st.integers(-23 * 60, 23 * 60),
    st.sampled_from(["T", " ", "t"]),
    st.sampled_from(["offset", "Z", "compact", "space", "hours", "none"]),
    st.integers(0, 3),
)
def test_iso_text_is_read_as_python_reads_it(
    moment: datetime, minutes: int, gap: str, style: str, finer: int
) -> None:
    if style == "hours":
        minutes -= minutes % 60
    text = moment.isoformat(gap if gap != "t" else "T", "microseconds").replace("T", gap)
    text += "789"[:finer]
    sign, hours, rest = "-" if minutes < 0 else "+", abs(minutes) // 60, abs(minutes) % 60
    text += {
        "offset": f"{sign}{hours:02}:{rest:02}", "Z": "Z", "compact": f"{sign}{hours:02}{rest:02}",
        "space": f" {sign}{hours:02}:{rest:02}", "hours": f"{sign}{hours:02}", "none": "",
    }[style]  # fmt: skip
    zone = UTC if style in ("Z", "none") else timezone(timedelta(minutes=minutes))
    assert times([text]) == [micros(moment.replace(tzinfo=zone))]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("2026-01-31", "2026-01-31T00:00:00+00:00"),
        ("2026-01-31T10:15", "2026-01-31T10:15:00+00:00"),
        ("2026-01-31 10:15:30.5", "2026-01-31T10:15:30.500000+00:00"),
        ("2026-01-31T10:15:30,25Z", "2026-01-31T10:15:30.250000+00:00"),
        ("20260131T101530Z", "2026-01-31T10:15:30+00:00"),
        ("20260131T1015", "2026-01-31T10:15:00+00:00"),
        ("  2026-01-31T10:15:30+01:00\n", "2026-01-31T09:15:30+00:00"),
        ("2024-02-29T24:00", "2024-03-01T00:00:00+00:00"),
        ("2016-12-31T23:59:60Z", "2017-01-01T00:00:00+00:00"),
        ("1969-12-31T23:59:59Z", "1969-12-31T23:59:59+00:00"),
    ],
)
def test_forms_of_iso_text(text: str, meant: str) -> None:
    assert times([text]) == [micros(datetime.fromisoformat(meant))]


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "x", "2026-1-31", "2026-02-29", "2026-13-01", "2026-00-10", "2026-01-32",
        "2026-01-31T", "2026-01-31T25:00", "2026-01-31T10:60", "2026-01-31T10:15:61",
        "2026-01-31T10:15:30.", "2026-01-31T10:15:30+", "2026-01-31T10:15:30+1",
        "2026-01-31T10:15:30+01:6", "2026-01-31T10:15:30+24:00", "2026-01-31T10:15:30X",
        "2026-01-31T10:15:30Z ?", "2026/01/31", "31-01-2026", "1e400", "nan",
        "2026-01-31T24:01", "2026-01-31T101530", "\uff12026-01-31", "2026-01-31T10:15:30[UTC]",
        "2026-0131", "202601-31", "-2026-01-31",
    ],
)  # fmt: skip
def test_other_text_is_no_time(text: str) -> None:
    assert times([text, None]) == [NO_TIME, NO_TIME]


def test_a_number_as_text_counts_from_1970() -> None:
    assert times(["1700000000", " 1700000000.5", "1700000000123", "20260131", "x"]) == [
        1_700_000_000_000_000,
        1_700_000_000_500_000,
        1_700_000_000_123_000,
        20_260_131_000_000,
        NO_TIME,
    ]


@settings(max_examples=60)
@given(st.text("0123456789-:T.Z+ ", max_size=32))
def test_no_text_is_an_error(text: str) -> None:
    (time,) = times([text])
    assert time == NO_TIME or abs(time) < 10**18


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_forms_may_be_mixed_in_one_column(kind: pa.DataType) -> None:
    texts = ["2026-01-31T00:00:00Z", "2026-01-31", None, "no", "2026-01-31 00:00:00.000001"]
    day = micros(datetime(2026, 1, 31, tzinfo=UTC))
    expected = [day, day, NO_TIME, NO_TIME, day + 1]
    assert times(texts, kind=kind) == expected
    assert to_microseconds(pa.array(texts, kind)[1:], STREAM).tolist() == expected[1:]
    assert to_microseconds(pl.Series(texts), STREAM).tolist() == expected
    if kind != pa.string_view():
        coded = pa.array(texts, kind).dictionary_encode()
        assert to_microseconds(coded, STREAM).tolist() == expected


def test_a_local_time_shown_twice_is_the_earlier_and_one_never_shown_is_none() -> None:
    twice, never = datetime(2026, 10, 25, 2, 30), datetime(2026, 3, 29, 2, 30)
    summer = micros(twice.replace(tzinfo=ZoneInfo("Europe/Berlin"), fold=0))
    assert times([twice, never, None], BERLIN, pa.timestamp("us")) == [summer, NO_TIME, NO_TIME]
    assert times([str(twice), str(never), "x"], BERLIN) == [summer, NO_TIME, NO_TIME]


def test_the_streams_zone_is_only_for_times_without_one() -> None:
    noon = datetime(2026, 1, 1, 12)
    utc, berlin = micros(noon.replace(tzinfo=UTC)), micros(noon.replace(tzinfo=UTC)) - 3_600_000_000
    assert times([noon], BERLIN, pa.timestamp("ms")) == [berlin]
    assert times([noon], BERLIN, pa.timestamp("ms", "UTC")) == [utc]
    assert times(["2026-01-01T12:00", "2026-01-01T12:00Z"], BERLIN) == [berlin, utc]
    assert times([date(2026, 1, 1)], BERLIN) == [berlin - 12 * 3_600_000_000]
    assert times([utc // 10**6], BERLIN) == [utc]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Asia/Shanghai"])
def test_timestamps_of_any_unit(unit: str, zone: str | None) -> None:
    values = [0, 1, -1, 1_700_000_000, None]
    per = {"s": 10**6, "ms": 10**3, "us": 1, "ns": 1}[unit]
    expected = [NO_TIME if v is None else v // 1000 if unit == "ns" else v * per for v in values]
    column = pa.array(values, pa.int64()).cast(pa.timestamp(unit, zone))
    assert to_microseconds(column, STREAM).tolist() == expected
    assert to_microseconds(column.slice(2), STREAM).tolist() == expected[2:]


def test_microseconds_are_not_copied() -> None:
    column = pa.array(np.arange(1000), pa.timestamp("us", "UTC"))
    address = to_microseconds(column, STREAM).__array_interface__["data"][0]
    assert address == column.buffers()[1].address


def test_dates_are_their_midnights() -> None:
    days = [date(1969, 12, 31), None, date(2026, 1, 31)]
    expected = [-86_400_000_000, NO_TIME, micros(datetime(2026, 1, 31, tzinfo=UTC))]
    assert times(days, kind=pa.date32()) == expected
    assert times(days, kind=pa.date64()) == expected


def test_numbers_are_seconds_or_milliseconds_by_their_size() -> None:
    assert times([0, -5, 1_700_000_000, 10**11 - 1]) == [
        0, -5_000_000, 1_700_000_000_000_000, (10**11 - 1) * 10**6,
    ]  # fmt: skip
    assert times([10**11, 1_700_000_000_123, -(10**11)]) == [
        10**14, 1_700_000_000_123_000, -(10**14),
    ]  # fmt: skip
    assert times([1_700_000_000.123456, 1_700_000_000_123.5]) == [
        1_700_000_000_123_456, 1_700_000_000_123_500,
    ]  # fmt: skip


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_a_unit_overrides_the_guess(unit: Any) -> None:
    stream = Stream(subject="who", time="when", unit=unit)
    micro = {"s": 10**6, "ms": 10**3, "us": 1}
    for value in (7, -7, 10**12):
        expected = value // 1000 if unit == "ns" else value * micro[unit]
        assert times([value], stream) == [expected]
        assert times([float(value)], stream) == [expected]


def test_what_does_not_fit_is_no_time() -> None:
    assert times([2**62, -(2**62), None]) == [NO_TIME] * 3
    assert times([2**64 - 1, 2**63], kind=pa.uint64()) == [NO_TIME] * 2
    assert times([float("nan"), float("inf"), float("-inf"), 1e300, None]) == [NO_TIME] * 5
    assert times([2**62], kind=pa.timestamp("s")) == [NO_TIME]
    assert times([2**62], BERLIN, pa.timestamp("us")) == [NO_TIME]
    assert times([-(2**63)], kind=pa.timestamp("us")) == [NO_TIME]
    assert times([None, None], kind=pa.null()) == [NO_TIME] * 2


@pytest.mark.parametrize("kind", [pa.int8(), pa.int64(), pa.uint64(), pa.uint32()])
def test_numbers_of_every_size_are_scaled_exactly(kind: pa.DataType) -> None:
    """Small and large numbers in one column, with nulls and without."""
    chance = Random(str(kind))
    least, most = (np.iinfo(kind.to_pandas_dtype()).min, np.iinfo(kind.to_pandas_dtype()).max)
    edges = [0, 1, 10**11 - 1, 10**11, 9223372036854, 9223372036855, 2**63 - 1, 2**63, 2**64 - 1]
    edges = [n for n in (*edges, *(-n for n in edges)) if least <= n <= most]
    units: list[tuple[Any, int]] = [("s", 1_000_000), ("us", 1), (None, 1_000)]
    for unit, large in units:
        small = large if unit else 1_000_000
        for _ in range(100):
            numbers = [chance.choice([*edges, *range(100), None]) for _ in range(6)]
            numbers = numbers if chance.random() < 0.5 else [n or 0 for n in numbers]
            expected = []
            for number in numbers:
                scaled = (number or 0) * (small if abs(number or 0) < 10**11 else large)
                fits = number is not None and -(2**63) < scaled < 2**63
                expected.append(scaled if fits else NO_TIME)
            stream = Stream(subject="who", time="when", unit=unit)
            assert times(numbers, stream, kind) == expected


def test_chunks_are_put_together() -> None:
    column = pa.chunked_array([[1, 2], [], [None, 3]], pa.int32())
    assert to_microseconds(column, STREAM).tolist() == [10**6, 2 * 10**6, NO_TIME, 3 * 10**6]
    assert to_microseconds(pa.chunked_array([], pa.int64()), STREAM).tolist() == []


@pytest.mark.parametrize(
    "kind", [pa.bool_(), pa.binary(), pa.time64("us"), pa.list_(pa.int64()), pa.duration("s")]
)
def test_unfit_types_are_refused(kind: pa.DataType) -> None:
    with pytest.raises(SchemaError, match="'when' is the event time"):
        check_time_type(kind, "when")
    with pytest.raises(SchemaError):
        to_microseconds(pa.array([], kind), STREAM)


def test_an_unknown_zone_is_refused() -> None:
    for zone in ("Europe/Berlim", "", "../etc"):
        with pytest.raises(ValidationError, match="time zone"):
            Stream(subject="who", time="when", zone=zone)


@pytest.mark.parametrize(
    ("text", "written", "expected"),
    [
        ("%d.%m.%Y %H:%M", "31.01.2026 09:15", datetime(2026, 1, 31, 9, 15)),
        ("%m/%d/%y %I:%M:%S %p", "01/31/26 09:15:30 PM", datetime(2026, 1, 31, 21, 15, 30)),
        ("%d %b %Y %T%.f", "31 Jan 2026 09:15:30.25", datetime(2026, 1, 31, 9, 15, 30, 250_000)),
        ("%Y%m%d%H%M%S", "20260131091530", datetime(2026, 1, 31, 9, 15, 30)),
        ("%d.%m.%Y", "31.01.2026", datetime(2026, 1, 31)),
        ("%a %F %R", "Sat 2026-01-31 09:15", datetime(2026, 1, 31, 9, 15)),
    ],
)
def test_times_in_a_format(text: str, written: str, expected: datetime) -> None:
    stream = Stream(subject="who", time="when", format=text)
    utc = micros(expected.replace(tzinfo=UTC))
    assert times([f" {written}"], stream) == [utc]
    berlin = stream.model_copy(update={"zone": "Europe/Berlin"})
    assert times([written], berlin) == [utc - 3_600_000_000]


def test_a_format_reads_each_value_by_itself() -> None:
    """What does not have the format is no time, and does not change how others are read."""
    stream = Stream(subject="who", time="when", format="%Y%m%d")
    day = micros(datetime(2026, 1, 31, tzinfo=UTC))
    assert times(["20260131", "2026-01-31", "", None, "99999999", "20260131 "], stream) == [
        day, NO_TIME, NO_TIME, NO_TIME, NO_TIME, day,
    ]  # fmt: skip
    assert times([20260131, None], stream) == [day, NO_TIME]
    assert times([None], stream, pa.string()) == [NO_TIME]
    offset = Stream(subject="who", time="when", format="%F %R%z", zone="Asia/Tokyo")
    assert times(["2026-01-31 01:00+0100"], offset) == [day]
    stamps = pa.array([day], pa.timestamp("us", "UTC"))  # a timestamp needs no format
    assert to_microseconds(stamps, stream).tolist() == [day]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("%H:%M", "does not determine a day"),
        ("%Y-%m-%d %H:%M:%S.%f", "fractions of a second"),
        ("%Y-%m-%d %Q", "'%Q' is not a directive"),
        ("%Y-%m-%d %I:%M", "need %p"),
        ("%", "is not a directive"),
        ("dd.mm.yyyy", "does not determine a day"),
    ],
)
def test_a_format_must_determine_a_time(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        Stream(subject="who", time="when", format=text)
