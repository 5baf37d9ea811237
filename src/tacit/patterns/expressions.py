"""Conditions between elements as expressions of Polars, over columns named `alias.column`.

Truth has three values, as in SQL. Arithmetic is that of the reference matcher: whole
numbers do not overflow (they are widened, and become floating once they would exceed 127
bits), `/` gives a floating number, `%` has the sign of its right side, and what is divided
by zero, infinite or not a number is unknown. A whole number that meets a floating one is
rounded to it, which can only matter beyond 2**53.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from math import copysign, inf
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import polars as pl

from tacit.errors import SchemaError
from tacit.patterns.conditions import (
    Arithmetic,
    Attribute,
    Both,
    Comparison,
    Condition,
    Constant,
    Either,
    Negation,
    Term,
)

Kind: TypeAlias = Literal["number", "text", "truth value", "date", "time", "time of day", "length"]

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
    "/": operator.truediv,
    "%": operator.mod,
}
_UNKNOWN = pl.lit(None, dtype=pl.Boolean)


def conjuncts(condition: Condition) -> Iterator[Condition]:
    """The conditions that must all hold for this one to hold."""
    match condition:
        case Both(left, right):
            yield from conjuncts(left)
            yield from conjuncts(right)
        case _:
            yield condition


def kind_of(dtype: pl.DataType) -> Kind | None:
    """What a column's values are to a condition; None for what cannot be compared."""
    if dtype.is_numeric():
        return "number"
    if isinstance(dtype, pl.String | pl.Categorical | pl.Enum):
        return "text"
    kinds: tuple[tuple[type[pl.DataType], Kind], ...] = (
        (pl.Boolean, "truth value"),
        (pl.Date, "date"),
        (pl.Datetime, "time"),
        (pl.Time, "time of day"),
        (pl.Duration, "length"),
    )
    return next((kind for type_, kind in kinds if isinstance(dtype, type_)), None)


def check_kinds(condition: Condition, kind: Callable[[Attribute], Kind | None]) -> None:
    """Refuse comparisons of unlike kinds and arithmetic on what is no number.

    `kind` gives an attribute's kind, or None where nothing is known of it.
    """
    match condition:
        case Comparison(_, left, right):
            ours, theirs = _kind(left, kind), _kind(right, kind)
            if ours and theirs and ours != theirs:
                raise SchemaError(
                    f"In the condition {condition!r}, a {ours} is compared with a {theirs}. "
                    "Compare values of one kind."
                )
        case Negation(part):
            check_kinds(part, kind)
        case Both(left, right) | Either(left, right):
            check_kinds(left, kind)
            check_kinds(right, kind)


def _kind(term: Term, kind: Callable[[Attribute], Kind | None]) -> Kind | None:
    match term:
        case Attribute():
            return kind(term)
        case Constant(value):
            truth_or_number: Kind = "truth value" if isinstance(value, bool) else "number"
            return "text" if isinstance(value, str) else truth_or_number
        case Arithmetic(_, left, right):
            for side in (left, right):
                found = _kind(side, kind)
                if found not in ("number", None):
                    raise SchemaError(
                        f"In {term!r}, {side!r} is a {found}. Arithmetic needs numbers."
                    )
            return "number"


def plain(column: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """A column made ready for conditions: one type for each kind, unfit numbers null."""
    if isinstance(dtype, pl.Categorical | pl.Enum):
        return column.cast(pl.String)
    if dtype.is_float() or dtype.is_decimal():
        number = column.cast(pl.Float64)
        return pl.when(number.is_finite()).then(number)
    return column


class _Value(NamedTuple):
    """A term as an expression; `bits` bounds a whole number's size, None for all others."""

    expression: pl.Expr
    bits: int | None = None


def expression(condition: Condition, schema: Mapping[str, pl.DataType]) -> pl.Expr:
    """A condition over columns made `plain`; an attribute without a column is unknown.

    A term that has a column of its own is taken from there.
    """
    match condition:
        case Comparison(comparator, left, right):
            ours, theirs = _value(left, schema), _value(right, schema)
            if ours is None or theirs is None:
                return _UNKNOWN
            return _COMPARE[comparator](*_alike(ours, theirs))
        case Negation(part):
            return ~expression(part, schema)
        case Both(left, right):
            return expression(left, schema) & expression(right, schema)
        case Either(left, right):
            return expression(left, schema) | expression(right, schema)


def value(term: Term, schema: Mapping[str, pl.DataType]) -> pl.Expr:
    """A term over columns made `plain`."""
    found = _value(term, schema)
    return pl.lit(None) if found is None else found.expression


def _value(term: Term, schema: Mapping[str, pl.DataType]) -> _Value | None:
    """A term's value; None where it is unknown whatever the row."""
    match term:
        case Constant(value):
            return _constant(value)
        case Attribute():
            dtype = schema.get(repr(term))
            return None if dtype is None else _column(pl.col(repr(term)), dtype)
        case Arithmetic() if repr(term) in schema:
            return _column(pl.col(repr(term)), schema[repr(term)])
        case Arithmetic(sign, left, right):
            ours, theirs = _value(left, schema), _value(right, schema)
            return None if ours is None or theirs is None else _computed(sign, ours, theirs)


def _constant(value: float | str | bool) -> _Value:
    if isinstance(value, int) and not isinstance(value, bool):
        return _integer(value)
    return _Value(pl.lit(value))


def _integer(value: int) -> _Value:
    bits = value.bit_length()
    if bits <= 127:
        return _Value(pl.lit(value, dtype=_wide_enough(bits)), bits)
    try:
        return _Value(pl.lit(float(value)))
    except OverflowError:
        return _Value(pl.lit(copysign(inf, value)))


def _column(column: pl.Expr, dtype: pl.DataType) -> _Value | None:
    if isinstance(dtype, pl.Null):
        return None
    if not dtype.is_integer():
        return _Value(column)
    bits = int(str(dtype).lstrip("UInt")) - dtype.is_signed_integer()
    return _Value(column.cast(_wide_enough(bits)), bits) if bits <= 127 else _Value(column)


def _computed(sign: str, left: _Value, right: _Value) -> _Value:
    bits = None
    if left.bits is not None and right.bits is not None:
        bits = {
            "+": max(left.bits, right.bits) + 1,
            "-": max(left.bits, right.bits) + 1,
            "*": left.bits + right.bits,
            "%": max(left.bits, right.bits),
        }.get(sign)
    if bits is not None and bits <= 127:
        dtype = _wide_enough(bits)
        ours, theirs = left.expression.cast(dtype), right.expression.cast(dtype)
        value = _COMPUTE[sign](ours, theirs)
        return _Value(pl.when(theirs != 0).then(value) if sign == "%" else value, bits)
    ours, theirs = left.expression.cast(pl.Float64), right.expression.cast(pl.Float64)
    if sign == "%":
        value = pl.map_batches([ours, theirs], _remainder, return_dtype=pl.Float64)
    else:
        value = _COMPUTE[sign](ours, theirs)
    return _Value(pl.when(value.is_finite()).then(value))


def _remainder(sides: Any) -> pl.Series:
    """Python's remainder of floating numbers; that of Polars rounds differently."""
    left, right = (np.atleast_1d(side.to_numpy()) for side in sides)
    with np.errstate(invalid="ignore"):
        return pl.Series(np.mod(left, right))


def _alike(left: _Value, right: _Value) -> tuple[pl.Expr, pl.Expr]:
    """Both sides of one numeric type, so that nothing is left to implicit conversion."""
    if left.bits is not None and right.bits is not None:
        dtype = _wide_enough(max(left.bits, right.bits))
        return left.expression.cast(dtype), right.expression.cast(dtype)
    if left.bits is not None or right.bits is not None:
        return left.expression.cast(pl.Float64), right.expression.cast(pl.Float64)
    return left.expression, right.expression


def _wide_enough(bits: int) -> type[pl.DataType]:
    return pl.Int64 if bits <= 63 else pl.Int128
