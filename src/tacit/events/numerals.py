"""Parse numbers from texts as they are mostly written: digits, perhaps a sign and a point.

Anything else (spaces, exponents, many digits, other signs) is marked, and left to Polars. What is
parsed here is exactly what Polars returns: whole numbers have few digits, and a fraction is the
quotient of two whole numbers that are exact as floating-point numbers, rounded once.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tacit.buffers import allocate
from tacit.events.columns import read_text, read_validity
from tacit.kernels import compiled

NO_NUMBER: Final = -1
"""What `parse_digits` returns for anything but digits."""
_MOST_DIGITS: Final = 18
_EXACT_DIGITS: Final = 15
_ZERO, _NINE, _MINUS, _POINT = 48, 57, 45, 46


def parse_floats(array: pa.Array) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the numbers of texts, and which texts are left to Polars, such as nulls."""
    values, left = allocate(len(array), np.float64), allocate(len(array), np.bool_)
    _parse_floats(*read_text(array), *read_validity(array), values, left)
    return values, left


def parse_integers(array: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the whole numbers of texts, and which texts are left to Polars, such as nulls."""
    values, left = allocate(len(array), np.int64), allocate(len(array), np.bool_)
    _parse_integers(*read_text(array), *read_validity(array), values, left)
    return values, left


@compiled
def parse_digits(text: NDArray[np.uint8], start: int, stop: int) -> int:
    """Return the value of 1 to 18 digits; NO_NUMBER if there is anything else."""
    if not 0 < stop - start <= _MOST_DIGITS:
        return NO_NUMBER
    value, others = 0, np.uint8(0)
    for place in range(np.uint64(start), np.uint64(stop)):
        digit = np.uint8(text[place] - np.uint8(_ZERO))
        others |= np.uint8(digit > 9)
        value = value * 10 + int(digit)
    return NO_NUMBER if others else value


@compiled
def _parse_integers(
    text: NDArray[np.uint8],
    offsets: NDArray[np.integer],
    bits: NDArray[np.uint8],
    bit: int,
    values: NDArray[np.int64],
    left: NDArray[np.bool_],
) -> None:
    for row in range(len(values)):
        values[row], left[row] = 0, True
        if len(bits) == 0 or bits[(bit + row) >> 3] >> ((bit + row) & 7) & 1:
            start, stop = int(offsets[row]), int(offsets[row + 1])
            negative = start < stop and text[start] == _MINUS
            value = parse_digits(text, start + negative, stop)
            if value != NO_NUMBER:
                values[row], left[row] = -value if negative else value, False


@compiled
def _parse_floats(
    text: NDArray[np.uint8],
    offsets: NDArray[np.integer],
    bits: NDArray[np.uint8],
    bit: int,
    values: NDArray[np.float64],
    left: NDArray[np.bool_],
) -> None:
    for row in range(len(values)):
        values[row], left[row] = 0.0, True
        if len(bits) == 0 or bits[(bit + row) >> 3] >> ((bit + row) & 7) & 1:
            start, stop = int(offsets[row]), int(offsets[row + 1])
            negative = start < stop and text[start] == _MINUS
            value = _parse_float(text, start + negative, stop)
            if value >= 0.0:
                values[row], left[row] = -value if negative else value, False


@compiled
def _parse_float(text: NDArray[np.uint8], start: int, stop: int) -> float:
    """Return the value of at most 15 digits, with or without a point between; else -1."""
    if not 0 < stop - start <= _EXACT_DIGITS + 1:
        return -1.0
    whole, power, digits, point = 0, 1, 0, False
    for place in range(np.uint64(start), np.uint64(stop)):
        digit = np.uint8(text[place] - np.uint8(_ZERO))
        if digit <= 9:
            whole = whole * 10 + int(digit)
            digits += 1
            if point:
                power *= 10
        elif text[place] == _POINT and digits and not point:
            point = True
        else:
            return -1.0
    if digits > _EXACT_DIGITS or (point and power == 1):
        return -1.0
    return float(whole) / float(power) if point else float(whole)
