"""Conditions between elements as expressions of Polars, over columns named `alias.column`.

Truth has three values, as in SQL. Arithmetic is that of `tacit.events.values`, where `%` has
the sign of its right side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import polars as pl

from tacit.errors import SchemaError
from tacit.events.values import Kind, Value, column_value, compare, compute, constant_value
from tacit.patterns.conditions import (
    Arithmetic,
    Attribute,
    Comparison,
    Condition,
    Conjunction,
    Constant,
    Disjunction,
    Negation,
    Term,
)

_UNKNOWN = pl.lit(None, dtype=pl.Boolean)


def iterate_conjuncts(condition: Condition) -> Iterator[Condition]:
    """Yield the conditions that must all hold for this one to hold."""
    match condition:
        case Conjunction(left, right):
            yield from iterate_conjuncts(left)
            yield from iterate_conjuncts(right)
        case _:
            yield condition


def check_kinds(condition: Condition, kind: Callable[[Attribute], Kind | None]) -> None:
    """Raise an error for comparisons of different kinds and arithmetic on non-numbers.

    `kind` returns an attribute's kind, or None if it is unknown.
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
        case Conjunction(left, right) | Disjunction(left, right):
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


def normalize_column(column: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """Prepare a column for conditions: one type for each kind, non-finite numbers null."""
    if isinstance(dtype, pl.Categorical | pl.Enum):
        return column.cast(pl.String)
    if dtype.is_float() or dtype.is_decimal():
        number = column.cast(pl.Float64)
        return pl.when(number.is_finite()).then(number)
    return column


def build_expression(condition: Condition, schema: Mapping[str, pl.DataType]) -> pl.Expr:
    """Return a condition over columns made `plain`; an attribute without a column is unknown.

    A term that has a column of its own is taken from there.
    """
    match condition:
        case Comparison(comparator, left, right):
            ours, theirs = _value(left, schema), _value(right, schema)
            if ours is None or theirs is None:
                return _UNKNOWN
            return compare(comparator, ours, theirs)
        case Negation(part):
            return ~build_expression(part, schema)
        case Conjunction(left, right):
            return build_expression(left, schema) & build_expression(right, schema)
        case Disjunction(left, right):
            return build_expression(left, schema) | build_expression(right, schema)


def build_value(term: Term, schema: Mapping[str, pl.DataType]) -> pl.Expr:
    """Return a term over columns made `plain`."""
    found = _value(term, schema)
    return pl.lit(None) if found is None else found.expression


def _value(term: Term, schema: Mapping[str, pl.DataType]) -> Value | None:
    """Return a term's value; None if it is unknown for every row."""
    match term:
        case Constant(constant):
            return constant_value(constant)
        case Attribute():
            dtype = schema.get(repr(term))
            return None if dtype is None else _column(pl.col(repr(term)), dtype)
        case Arithmetic() if repr(term) in schema:
            return _column(pl.col(repr(term)), schema[repr(term)])
        case Arithmetic(sign, left, right):
            ours, theirs = _value(left, schema), _value(right, schema)
            return None if ours is None or theirs is None else compute(sign, ours, theirs)


def _column(column: pl.Expr, dtype: pl.DataType) -> Value | None:
    return None if isinstance(dtype, pl.Null) else column_value(column, dtype)
