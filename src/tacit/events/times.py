"""Event times: convert the values of a column into whole microseconds since 1970, in UTC.

A column may contain timestamps (of any unit, with or without a time zone), dates, ISO 8601 text, or
numbers since 1970, also as text. Fractions of a microsecond are cut off. A value that is not a time
or is out of range becomes NO_TIME.
"""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from tacit.buffers import allocate
from tacit.errors import SchemaError
from tacit.events.columns import (
    NO_BITS,
    freeze,
    read_numbers,
    read_text,
    read_validity,
    split_chunks,
)
from tacit.events.numerals import NO_NUMBER, parse_digits
from tacit.events.streams import Stream
from tacit.kernels import compiled

NO_TIME = -(2**63)
"""The value for a missing time."""
_SECOND, _DAY = 1_000_000, 86_400_000_000
_PER = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": -1_000}
"""Microseconds in a unit; a negative number divides."""
_INSTANTS, _CLOCKS = pa.timestamp("us", "UTC"), pa.timestamp("us")
_FIRST, _LAST = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The years 1 to 9999, for which time zones are defined."""


def check_time_type(dtype: pa.DataType, column: str = "time") -> None:
    """Raise SchemaError unless a column of this type can contain event times."""
    kind = dtype.value_type if pa.types.is_dictionary(dtype) else dtype
    fits = (
        pa.types.is_timestamp(kind)
        or pa.types.is_date(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_null(kind)
    )
    if not fits:
        raise SchemaError(
            f"column '{column}' is the event time and must be a timestamp, a date, ISO 8601 "
            f"text or a number of seconds or milliseconds since 1970; it is of type {dtype}"
        )


def to_microseconds(
    column: pa.Array | pa.ChunkedArray | pl.Series, stream: Stream
) -> NDArray[np.int64]:
    """Return the times of a column; without a copy if it already contains microseconds."""
    if isinstance(column, pa.Array):
        return _convert(column, stream)
    chunks = [_convert(chunk, stream) for chunk in split_chunks(column)]
    if len(chunks) == 1:
        return chunks[0]
    return np.concatenate([np.empty(0, np.int64), *chunks])


def _convert(array: pa.Array, stream: Stream) -> NDArray[np.int64]:
    kind = array.type
    if array.null_count == 0 and (kind == _INSTANTS or (kind == _CLOCKS and stream.zone == "UTC")):
        return read_numbers(array).view(np.int64)  # the most common case
    check_time_type(kind, stream.time)
    if pa.types.is_dictionary(kind):
        times = np.append(_convert(array.dictionary, stream), NO_TIME)
        codes = array.indices.cast(pa.int64()).fill_null(len(times) - 1)
        return np.take(times, read_numbers(codes))
    if pa.types.is_null(kind):
        return np.full(len(array), NO_TIME)
    if pa.types.is_timestamp(kind):
        times = _scale(array.view(pa.int64()), _PER[kind.unit], _PER[kind.unit])
        return times if kind.tz is not None else _to_utc(times, stream.zone)
    if pa.types.is_date(kind):
        days = array.view(pa.int32()) if pa.types.is_date32(kind) else array.view(pa.int64())
        per = _DAY if pa.types.is_date32(kind) else _PER["ms"]
        return _to_utc(_scale(days, per, per), stream.zone)
    if stream.format is not None:
        return _parse_format(array, stream.format, stream.zone)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return _convert_numbers(array, stream.unit)
    return _parse_texts(array, stream)


def _parse_format(array: pa.Array, format_: str, zone: str) -> NDArray[np.int64]:
    """Parse texts and numbers that are written in a format; anything else is NO_TIME."""
    text = pl.Series(array).cast(pl.String).str.strip_chars()
    if not text.count():
        return np.full(len(text), NO_TIME)
    if "%H" not in format_ and "%I" not in format_ and "%T" not in format_ and "%R" not in format_:
        text, format_ = text + " 00:00", format_ + " %H:%M"  # a day begins at midnight
    times = text.str.to_datetime(format_, time_unit="us", strict=False, ambiguous="earliest")
    found = times.to_physical().fill_null(NO_TIME).to_numpy()
    return found if "%z" in format_ else _to_utc(found, zone)


def _convert_numbers(array: pa.Array, unit: str | None) -> NDArray[np.int64]:
    """Convert numbers since 1970: below 10**11 they are seconds (until 5138), else milliseconds."""
    small, large = _units(unit)
    if pa.types.is_integer(array.type):
        return _scale(array, small, large)
    values = array.cast(pa.float64()).to_numpy(zero_copy_only=False)
    times = np.empty(len(values), np.int64)
    _scale_floats(freeze(values), small, large, times)
    return times


def _units(unit: str | None) -> tuple[int, int]:
    """Return the microseconds in the unit of small numbers and of large ones."""
    return (_PER[unit], _PER[unit]) if unit else (_PER["s"], _PER["ms"])


def _scale(array: pa.Array, small: int, large: int) -> NDArray[np.int64]:
    """Multiply whole numbers by the microseconds in their unit."""
    values, bits = read_numbers(array), read_validity(array)
    if small == large == 1 and values.dtype == np.int64 and bits[0] is NO_BITS:
        return values
    times = allocate(len(values), np.int64)
    _scale_integers(values, *bits, small, large, times)
    return times


def _parse_texts(array: pa.Array, stream: Stream) -> NDArray[np.int64]:
    """Parse ISO 8601 or a number since 1970 (no text is both); anything else is NO_TIME."""
    times, naive = allocate(len(array), np.int64), allocate(len(array), np.bool_)
    _parse(*read_text(array), *read_validity(array), *_units(stream.unit), times, naive)
    if stream.zone != "UTC" and naive.any():
        times[naive] = _to_utc(times[naive], stream.zone)
    other = times == NO_TIME
    if other.any():
        times[other] = _parse_numbers(pl.Series(array).filter(pl.Series(other)), stream.unit)
    return times


def _parse_numbers(text: pl.Series, unit: str | None) -> NDArray[np.int64]:
    """Parse numbers since 1970 from text; whole numbers are exact."""
    text = text.str.strip_chars()
    whole = text.cast(pl.Int64, strict=False)
    rest = text.cast(pl.Float64, strict=False)
    times = _convert_numbers(whole.to_arrow(), unit)
    fractions = _convert_numbers(rest.fill_null(float("nan")).to_arrow(), unit)
    return np.where(times == NO_TIME, fractions, times)


def _to_utc(times: NDArray[np.int64], zone: str) -> NDArray[np.int64]:
    """Convert local times to UTC: the earlier one if ambiguous, NO_TIME if nonexistent."""
    if zone == "UTC":
        return times
    known = (times >= _FIRST) & (times <= _LAST)
    local = pl.Series(times[known], dtype=pl.Datetime("us"))
    moved = local.dt.replace_time_zone(zone, ambiguous="earliest", non_existent="null")
    found = np.full(len(times), NO_TIME)
    found[known] = moved.to_physical().fill_null(NO_TIME).to_numpy()
    return found


@compiled
def _scale_integers(
    values: NDArray[np.integer],
    bits: NDArray[np.uint8],
    offset: int,
    small: int,
    large: int,
    times: NDArray[np.int64],
) -> None:
    # Usually there are no nulls, and all numbers are small: then none needs a division.
    near = min(100_000_000_000, (2**63 - 1) // small) if small > 0 and not len(bits) else 0
    done = 0
    while done < len(values) and values[done] > -near and values[done] < near:
        times[done] = np.int64(values[done]) * small
        done += 1
    for row in range(done, len(values)):
        value = np.int64(values[row])
        # An unsigned number beyond the signed range becomes negative.
        wrong = (values[row] >= 0) != (value >= 0)
        if wrong or (len(bits) and not bits[(offset + row) >> 3] >> ((offset + row) & 7) & 1):
            times[row] = NO_TIME
        else:
            times[row] = _scale_one(int(value), small, large)


@compiled
def _scale_one(value: int, small: int, large: int) -> int:
    """Multiply a whole number by the microseconds in its unit."""
    per = small if -100_000_000_000 < value < 100_000_000_000 else large
    if per < 0:
        return value // -per
    if value > (2**63 - 1) // per or value < -((2**63 - 1) // per):
        return NO_TIME
    return value * per


@compiled
def _scale_floats(
    values: NDArray[np.float64], small: int, large: int, times: NDArray[np.int64]
) -> None:
    for row in range(len(values)):
        per = small if abs(values[row]) < 1e11 else large
        # Rounded: a fraction such as .123456 is rarely exact, and often slightly too small.
        time = np.rint(values[row] * per) if per > 0 else np.floor(values[row] / -per)
        times[row] = np.int64(time) if abs(time) < 2.0**63 else NO_TIME


@compiled
def _parse(
    text: NDArray[np.uint8],
    offsets: NDArray[np.integer],
    bits: NDArray[np.uint8],
    bit: int,
    small: int,
    large: int,
    times: NDArray[np.int64],
    naive: NDArray[np.bool_],
) -> None:
    for row in range(len(times)):
        naive[row] = False
        times[row] = NO_TIME
        if len(bits) == 0 or bits[(bit + row) >> 3] >> ((bit + row) & 7) & 1:
            start, stop = int(offsets[row]), int(offsets[row + 1])
            number = parse_digits(text, start, stop)
            if number != NO_NUMBER:
                times[row] = _scale_one(number, small, large)
                continue
            while start < stop and text[start] <= 32:
                start += 1
            while start < stop and text[stop - 1] <= 32:
                stop -= 1
            times[row], naive[row] = _parse_one(text, start, stop)


@compiled
def _digits(text: NDArray[np.uint8], start: int, count: int, stop: int) -> int:
    """Parse `count` digits; return a very negative number if they are not all digits."""
    if start + count > stop:
        return -(2**40)
    value = 0
    for place in range(start, start + count):
        digit = int(text[place]) - 48
        value = value * 10 + digit if 0 <= digit <= 9 else -(2**40)
    return value


@compiled
def _parse_one(text: NDArray[np.uint8], start: int, stop: int) -> tuple[int, bool]:
    """Parse a time such as `2026-01-31T10:15:30.5+01:00`; also return whether it has no zone."""
    year = _digits(text, start, 4, stop)
    apart = 1 if start + 4 < stop and text[start + 4] == 45 else 0
    month = _digits(text, start + 4 + apart, 2, stop)
    day = _digits(text, start + 6 + 2 * apart, 2, stop)
    if year < 0 or not 1 <= month <= 12 or not 1 <= day <= _days_in(year, month):
        return NO_TIME, False
    if apart and text[start + 7] != 45:
        return NO_TIME, False
    date = _days_since_1970(year, month, day) * _DAY
    place = start + 8 + 2 * apart
    if place == stop:
        # Eight digits alone could also be a number.
        return (date, True) if apart else (NO_TIME, False)
    if text[place] != 84 and text[place] != 116 and text[place] != 32:
        return NO_TIME, False
    time, place = _parse_time(text, place + 1, stop, apart)
    if time < 0:
        return NO_TIME, False
    if place == stop:
        return date + time, True
    ahead = _parse_offset(text, place, stop)
    return (NO_TIME, False) if ahead == NO_TIME else (date + time - ahead, False)


@compiled
def _parse_time(text: NDArray[np.uint8], start: int, stop: int, apart: int) -> tuple[int, int]:
    """Parse the time of day into microseconds, or -1; also return where it ends."""
    hour = _digits(text, start, 2, stop)
    if apart and (start + 2 >= stop or text[start + 2] != 58):
        return -1, stop
    place = start + 2 + apart
    minute = _digits(text, place, 2, stop)
    second, fraction = 0, 0
    place += 2
    colon = place < stop and text[place] == 58
    if place < stop and (colon if apart else 48 <= text[place] <= 57):
        second = _digits(text, place + apart, 2, stop)
        place += 2 + apart
        if place < stop and (text[place] == 46 or text[place] == 44):
            place += 1
            if place == stop or not 48 <= text[place] <= 57:
                return -1, stop
            worth = 100_000
            while place < stop and 48 <= text[place] <= 57:
                fraction += (int(text[place]) - 48) * worth
                worth //= 10
                place += 1
    if not (0 <= hour <= 24 and 0 <= minute <= 59 and 0 <= second <= 60):
        return -1, stop
    if hour == 24 and (minute or second or fraction):
        return -1, stop
    return ((hour * 60 + minute) * 60 + second) * _SECOND + fraction, place


@compiled
def _parse_offset(text: NDArray[np.uint8], place: int, stop: int) -> int:
    """Parse the offset from UTC into microseconds; return NO_TIME if it is invalid."""
    if text[place] == 32 and place + 1 < stop:
        place += 1
    if text[place] == 90 or text[place] == 122:
        return 0 if place + 1 == stop else NO_TIME
    if text[place] != 43 and text[place] != 45:
        return NO_TIME
    sign = 1 if text[place] == 43 else -1
    hour, minute = _digits(text, place + 1, 2, stop), 0
    place += 3
    if place < stop:
        place += 1 if text[place] == 58 else 0
        minute = _digits(text, place, 2, stop)
        place += 2
    if place != stop or not 0 <= hour <= 23 or not 0 <= minute <= 59:
        return NO_TIME
    return sign * (hour * 60 + minute) * 60 * _SECOND


@compiled
def _days_in(year: int, month: int) -> int:
    if month == 2:
        leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
        return 29 if leap else 28
    return 30 if month == 4 or month == 6 or month == 9 or month == 11 else 31


@compiled
def _days_since_1970(year: int, month: int, day: int) -> int:
    """Count days in the Gregorian calendar; years start in March, so that leap days are last."""
    if month <= 2:
        year -= 1
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return year * 365 + year // 4 - year // 100 + year // 400 + of_year - 719_468
