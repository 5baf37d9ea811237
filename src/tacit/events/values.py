"""Values in conditions: their kinds, arithmetic and comparisons.

Every result depends only on the values of one row, to the last bit, however many rows are evaluated
together. Polars divides by a constant with its reciprocal, but only if there is more than one row,
and has similar shortcuts for powers; so these operations are computed here.

Whole numbers do not overflow: they are widened, and become floating-point once they would exceed
127 bits. A division by zero, an infinite result or NaN is null. A whole number combined with a
floating-point one is rounded to it, which matters only beyond 2**53.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from math import copysign, inf
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

Kind: TypeAlias = Literal[
    "number", "text", "truth value", "date", "time", "time of day", "duration"
]

_COMPARE: dict[str, Callable[[pl.Expr, pl.Expr], pl.Expr]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_COMPUTE: dict[str, Callable[[pl.Expr, pl.Expr], pl.Expr]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "%": operator.mod,
}
NULL_TYPES: dict[Kind, pl.DataType] = {
    "number": pl.Float64(),
    "text": pl.String(),
    "truth value": pl.Boolean(),
    "date": pl.Date(),
    "time": pl.Datetime("us", "UTC"),
    "time of day": pl.Time(),
    "duration": pl.Duration("us"),
}
"""The type that a null of each kind gets."""


class Value(NamedTuple):
    """An expression and the kind of its values."""

    expression: pl.Expr
    kind: Kind | None
    """None for null, which is compatible with every kind."""
    bits: int | None = None
    """For whole numbers, their largest size in bits; None for all others."""


def find_kind(dtype: pl.DataType) -> Kind | None:
    """Return the kind of a column's values; None if they cannot be compared."""
    if dtype.is_numeric():
        return "number"
    if isinstance(dtype, pl.String | pl.Categorical | pl.Enum):
        return "text"
    kinds: tuple[tuple[type[pl.DataType], Kind], ...] = (
        (pl.Boolean, "truth value"),
        (pl.Date, "date"),
        (pl.Datetime, "time"),
        (pl.Time, "time of day"),
        (pl.Duration, "duration"),
    )
    return next((kind for type_, kind in kinds if isinstance(dtype, type_)), None)


def column_value(column: pl.Expr, dtype: pl.DataType) -> Value:
    """A column of this type."""
    kind = find_kind(dtype)
    if dtype.is_integer():
        bits = int(str(dtype).lstrip("UInt")) - dtype.is_signed_integer()
        if bits <= 127:
            return Value(column.cast(choose_integer_type(bits)), kind, bits)
        return Value(column.cast(pl.Float64), kind)
    if dtype.is_decimal():
        column = column.cast(pl.Float64)
    if isinstance(dtype, pl.Datetime):
        column = column.cast(pl.Datetime("us", dtype.time_zone))
        if dtype.time_zone is None:
            column = column.dt.replace_time_zone("UTC")
    if isinstance(dtype, pl.Duration):
        column = column.cast(pl.Duration("us"))
    return Value(column, kind)


Constant: TypeAlias = float | str | bool | date | time | timedelta | None


def find_constant_kind(value: Constant) -> Kind | None:
    """Return the kind of a constant; None for null."""
    kinds: tuple[tuple[type[Any], Kind], ...] = (
        (bool, "truth value"),  # before numbers, since a truth value is one in Python
        (int, "number"),
        (float, "number"),
        (str, "text"),
        (datetime, "time"),  # before dates, for the same reason
        (date, "date"),
        (time, "time of day"),
        (timedelta, "duration"),
    )
    return next((kind for type_, kind in kinds if isinstance(value, type_)), None)


def constant_value(value: Constant) -> Value:
    """Build the value of a constant; a time must have a time zone."""
    kind = find_constant_kind(value)
    if isinstance(value, int) and kind == "number":
        return _integer(value)
    return Value(pl.lit(value, dtype=pl.Duration("us") if kind == "duration" else None), kind)


def _integer(value: int) -> Value:
    bits = value.bit_length()
    if bits <= 127:
        # A literal with a type is made from a column of one row, which takes longer.
        return Value(pl.lit(value).cast(choose_integer_type(bits)), "number", bits)
    try:
        return Value(pl.lit(float(value)), "number")
    except OverflowError:
        return Value(pl.lit(copysign(inf, value)), "number")


def compute(sign: str, left: Value, right: Value) -> Value:
    """Compute with two numbers, by one of + - * / % REM POW.

    `%` has the sign of its right side, `REM` that of its left.
    """
    bits = None
    if left.bits is not None and right.bits is not None:
        bits = {
            "+": max(left.bits, right.bits) + 1,
            "-": max(left.bits, right.bits) + 1,
            "*": left.bits + right.bits,
            "%": max(left.bits, right.bits),
            "REM": max(left.bits, right.bits),
        }.get(sign)
    if bits is not None and bits <= 127:
        dtype = choose_integer_type(bits)
        return _whole(sign, left.expression.cast(dtype), right.expression.cast(dtype), bits)
    sides = as_float(left).expression, as_float(right).expression
    if sign in _EXACT:
        result = pl.map_batches(sides, _EXACT[sign], return_dtype=pl.Float64)
        if not any(side.meta.root_names() for side in sides):
            result = pl.lit(pl.select(result).item(), dtype=pl.Float64)
    else:
        result = _COMPUTE[sign](*sides)
    return Value(null_nonfinite(result), "number")


def _whole(sign: str, left: pl.Expr, right: pl.Expr, bits: int) -> Value:
    if sign not in ("%", "REM"):
        return Value(_COMPUTE[sign](left, right), "number", bits)
    rest = left % right
    if sign == "REM":
        rest = pl.when((rest != 0) & ((left < 0) != (right < 0))).then(rest - right).otherwise(rest)
    return Value(pl.when(right != 0).then(rest), "number", bits)


def _elementwise(function: Callable[[Any, Any], Any]) -> Callable[[Any], pl.Series]:
    def apply(sides: Any) -> pl.Series:
        left, right = (np.atleast_1d(side.to_numpy()) for side in sides)
        with np.errstate(all="ignore"):
            return pl.Series(function(left, right))

    return apply


def _power(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute powers; sides are broadcast, since Polars has shortcuts for a single number."""
    rows = max(len(left), len(right))
    shape = max(rows, 2)
    base, exponent = (pl.Series(np.broadcast_to(side, shape)) for side in (left, right))
    return (base**exponent).to_numpy()[:rows]


_EXACT = {
    "/": _elementwise(np.divide),
    "%": _elementwise(np.mod),
    "REM": _elementwise(np.fmod),
    "POW": _elementwise(_power),
}
"""Operations that are computed outside of Polars' expressions."""


def compare(sign: str, left: Value, right: Value) -> pl.Expr:
    """Compare two values of one kind."""
    return _COMPARE[sign](*(side.expression for side in align([left, right])))


def align(values: list[Value]) -> list[Value]:
    """Convert values of one kind to one type, so that nothing is converted implicitly.

    A constant that is compared with a 32-bit floating-point number is rounded to 32 bits.
    """
    kinds = {value.kind for value in values if value.kind is not None}
    if all(value.bits is not None for value in values if value.kind is not None):
        values = [_whole_null(value) if value.kind is None else value for value in values]
    values = [null_of(value, next(iter(kinds), "number")) for value in values]
    if "time" in kinds:
        return [as_instant(value) for value in values]
    if all(value.bits is not None for value in values):
        bits = max(value.bits or 0 for value in values)
        return [_widen(value, bits) for value in values]
    if any(value.bits is not None for value in values):
        return [as_float(value) for value in values]
    return values


def _widen(value: Value, bits: int) -> Value:
    """Convert a whole number to the type of those with so many bits."""
    dtype, expression = choose_integer_type(bits), value.expression
    if choose_integer_type(value.bits or 0) is not dtype:
        expression = expression.cast(dtype)
    return Value(expression, value.kind, bits)


def _whole_null(value: Value) -> Value:
    return Value(value.expression.cast(pl.Int64), "number", 1)


def null_of(value: Value, kind: Kind) -> Value:
    """Give a null this kind; return any other value unchanged."""
    if value.kind is not None:
        return value
    return Value(value.expression.cast(NULL_TYPES[kind]), kind)


def as_float(value: Value) -> Value:
    """Convert a number to floating-point."""
    return Value(value.expression.cast(pl.Float64), "number")


def as_instant(value: Value) -> Value:
    """Convert to a time in UTC; a date becomes its beginning."""
    if value.kind == "date":
        time = value.expression.cast(pl.Datetime("us")).dt.replace_time_zone("UTC")
        return Value(time, "time")
    return Value(value.expression.dt.convert_time_zone("UTC"), "time")


def null_nonfinite(number: pl.Expr) -> pl.Expr:
    """Replace an infinite number or NaN by null."""
    return pl.when(number.is_finite()).then(number)


def choose_integer_type(bits: int) -> type[pl.DataType]:
    """Return the integer type for numbers of this many bits."""
    return pl.Int64 if bits <= 63 else pl.Int128
