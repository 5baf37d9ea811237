"""SQL conditions on a single tuple: parse, check, and translate them into Polars expressions.

The text is parsed by `sql`, whose grammar has only expressions, and may use only the functions of
`functions`. So a condition depends only on the tuple's values and the types of its columns, never
on other tuples, the clock or a file:

- A number that is not finite counts as null, as an attribute or as a result (`1 / 0`).
- A cast or parse that fails gives null, never an error in the middle of a run.
- Truth has three values, as in SQL; null is no match.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache

import polars as pl
from polars.exceptions import PanicException

from tacit.events.functions import build_value, check_functions
from tacit.events.sql import Column, FunctionCall, Literal, Tree, parse_sql
from tacit.events.values import Value, column_value, find_kind

_COMPARISONS = frozenset({"=", "<>", "<", "<=", ">", ">="})


@dataclass(frozen=True, slots=True)
class BoundPredicate:
    """A condition over columns of known types."""

    columns: tuple[str, ...]
    expression: pl.Expr
    """The Polars expression; null where the condition is unknown."""
    steps: tuple[Fraction, ...] | None
    """The numbers between which it is constant; None if they are not known."""


@dataclass(frozen=True, slots=True)
class Predicate:
    """A condition on a tuple's columns."""

    tree: Tree
    columns: tuple[str, ...]

    def compared_columns(self) -> tuple[str, ...]:
        """Return the columns that stand on the right of a comparison with another column.

        Such a column is often a text without its quotes.

        >>> parse_predicate("sensor = contact AND state > 3").compared_columns()
        ('contact',)
        """
        return tuple(dict.fromkeys(_find_compared(self.tree)))

    def bind(self, schema: pl.Schema) -> BoundPredicate:
        """Bind the condition to columns of these types; raise ValueError if they do not fit."""
        value = build_value(self.tree, lambda name: _column(name, schema[name]))
        if value.kind != "truth value" and not (value.kind is None and self.columns):
            found = "null" if value.kind is None else f"a {value.kind}"
            raise ValueError(f"it must be true or false; its value is {found}")
        expression = value.expression
        if value.kind is None:
            expression = expression.cast(pl.Boolean)
        steps = self.steps()
        plain = steps is not None and _is_plain_number(schema[self.columns[0]])
        if self.columns and not plain:
            # Polars may return a single value if it is the same for all rows.
            expression = expression & _true_in_each_row()
        if not plain:
            _try_out(expression, self.columns, schema)
        return BoundPredicate(self.columns, expression, steps)

    def factors(self) -> tuple[Predicate, ...]:
        """Return the parts of an AND at the top: all of them hold where this predicate holds.

        This is exact in three-valued logic too, since only truth counts at the top.
        """
        match self.tree:
            case FunctionCall("AND", parts):
                return tuple(factor for part in parts for factor in _predicate(part).factors())
        return (self,)

    def steps(self) -> tuple[Fraction, ...] | None:
        """Return the numbers between which it is constant, or None if they are not known.

        They are known for comparisons of one column with numbers, combined with AND, OR and NOT.
        """
        if len(self.columns) != 1:
            return None
        try:
            return tuple(_steps(self.tree))
        except _NoStepsError:
            return None


@lru_cache(maxsize=4096)
def parse_predicate(where: str) -> Predicate:
    """Parse an SQL condition on one tuple; raise ValueError if it is invalid."""
    tree = parse_sql(where)
    check_functions(tree)
    return _predicate(tree)


@cache
def _true_in_each_row() -> pl.Expr:
    return pl.repeat(value=True, n=pl.len())


def _predicate(tree: Tree) -> Predicate:
    return Predicate(tree, tuple(dict.fromkeys(list_columns(tree))))


def list_columns(tree: Tree) -> Iterator[str]:
    """Yield the columns that an expression reads; one may come several times."""
    match tree:
        case Column(name):
            yield name
        case FunctionCall(_, arguments):
            for argument in arguments:
                yield from list_columns(argument)


def _find_compared(tree: Tree) -> Iterator[str]:
    match tree:
        case FunctionCall("=" | "<>", (Column(), Column(name))):
            yield name
        case FunctionCall("IN", (Column(), *others)):
            yield from (other.name for other in others if isinstance(other, Column))
        case FunctionCall(_, arguments):
            for argument in arguments:
                yield from _find_compared(argument)


@lru_cache(maxsize=4096)
def _column(name: str, dtype: pl.DataType) -> Value:
    if find_kind(dtype) is None and dtype != pl.Null:
        raise ValueError(
            f"the column '{name}' is of type {dtype}, which conditions cannot use; expected "
            "numbers, texts, truth values, dates or times"
        )
    return column_value(pl.col(name), dtype)


def _try_out(expression: pl.Expr, columns: tuple[str, ...], schema: pl.Schema) -> None:
    """Evaluate it on a tuple of nulls: Polars checks some types only during evaluation."""
    frame = pl.DataFrame({name: pl.Series([None], dtype=schema[name]) for name in columns})
    try:
        frame.select(expression.alias("truth"))
    except (pl.exceptions.PolarsError, PanicException) as error:
        raise ValueError((str(error).splitlines() or ["the types do not fit"])[0]) from None


def _is_plain_number(dtype: pl.DataType) -> bool:
    """Return whether Polars can compare a column of this type with any number."""
    return dtype.is_integer() or dtype.is_float()


class _NoStepsError(Exception):
    """A condition is more than comparisons of a column with numbers."""


def _steps(tree: Tree) -> Iterator[Fraction]:
    match tree:
        case FunctionCall("AND" | "OR" | "NOT" | "IS TRUE", parts):
            for part in parts:
                yield from _steps(part)
        case FunctionCall("IS NULL", (Column(),)):
            return
        case FunctionCall(name, (Column(), Literal() as constant)) if name in _COMPARISONS:
            yield _number(constant)
        case FunctionCall(name, (Literal() as constant, Column())) if name in _COMPARISONS:
            yield _number(constant)
        case FunctionCall("IN", (Column(), *items)):
            for item in items:
                yield _number(item)
        case _:
            raise _NoStepsError


def _number(tree: Tree) -> Fraction:
    """Return a literal number below 2**53; raise _NoStepsError for anything else."""
    value = tree.value if isinstance(tree, Literal) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) >= 2**53:
        raise _NoStepsError
    return Fraction(value)
