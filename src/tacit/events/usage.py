"""What the use of a column says about its type: `speed < 8` compares it with a number.

Each condition gives facts: a column has a type, or two columns have the same one. Together they
give the type of a column, or none where there are no facts or they contradict each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

import polars as pl

from tacit.events.columntypes import column_type
from tacit.events.predicates import Predicate, Tree, children, function_of, polars_expression
from tacit.events.streams import ColumnType

Place: TypeAlias = tuple[str, str]
"""A stream and one of its columns."""

_LOGIC: Final = {"And", "Or", "LogicalAnd", "LogicalOr", "Xor"}
_NUMERIC: Final = {
    "Abs", "Atan2", "Bitwise", "Ceil", "Clip", "Exp", "Floor", "Log", "Log1p", "Negate", "Pow",
    "Round", "RoundSF", "Sign", "Trigonometry", "Truncate",
}  # fmt: skip
_ALIKE: Final = {"Coalesce", "FillNull", "MaxHorizontal", "MinHorizontal"}
"""Functions whose arguments and result have one type."""
_ARITHMETIC: Final = {
    "Plus", "Minus", "Multiply", "Divide", "TrueDivide", "FloorDivide", "Modulus",
    "Add", "Sub", "Mul", "Div", "Rem",
}  # fmt: skip
_TEXT_TESTS: Final = {"Contains", "StartsWith", "EndsWith"}
_TEXT_MEASURES: Final = {"LenBytes", "LenChars", "Find", "CountMatches"}


class Inferred(NamedTuple):
    """The type of a column, and the use that shows it; None where its uses do not tell."""

    type: ColumnType | None
    reason: str


@dataclass
class Usage:
    """Facts about columns, gathered from everything that reads them."""

    _facts: dict[Place, dict[ColumnType, str]] = field(default_factory=dict)
    _weak: dict[Place, str] = field(default_factory=dict)
    _same: dict[Place, Place] = field(default_factory=dict)
    _seen: dict[Place, None] = field(default_factory=dict)

    def add(self, place: Place, kind: ColumnType, reason: str) -> None:
        """A column has a type."""
        self._seen[place] = None
        self._facts.setdefault(self._root(place), {}).setdefault(kind, reason)

    def allow_text(self, place: Place, reason: str) -> None:
        """Any type will do for a column, so that text does where nothing else is known."""
        self._seen[place] = None
        self._weak.setdefault(place, reason)

    def link(self, places: Sequence[Place]) -> None:
        """Columns have the same type."""
        self._seen |= dict.fromkeys(places)
        first, *others = (self._root(place) for place in places)
        for other in others:
            if other != first:
                self._same[other] = first
                for kind, reason in self._facts.pop(other, {}).items():
                    self.add(first, kind, reason)

    def places(self) -> list[Place]:
        """All columns that were seen."""
        return list(self._seen)

    def infer(self, place: Place) -> Inferred:
        """The type of a column."""
        facts = self._facts.get(self._root(place), {})
        if len(facts) == 1:
            ((kind, reason),) = facts.items()
            return Inferred(kind, reason)
        if facts:
            return Inferred(None, "its uses contradict each other: " + "; ".join(facts.values()))
        if place in self._weak:
            return Inferred("text", self._weak[place])
        return Inferred(None, "its uses do not show its type")

    def add_predicate(self, stream: str, predicate: Predicate, where: str) -> None:
        """What a condition on the tuples of a stream shows; `where` names the condition."""
        walk = _Walk(self, stream, where)
        walk.unify([walk.visit(predicate.tree)], "boolean", "a truth value")

    def _root(self, place: Place) -> Place:
        while place in self._same:
            place = self._same[place]
        return place


class _Value(NamedTuple):
    """The type of an expression's value, and the columns that must have the same type."""

    type: ColumnType | None = None
    columns: tuple[str, ...] = ()


_UNKNOWN: Final = _Value()
_WORDS: Final[dict[ColumnType, str]] = {
    "text": "text",
    "number": "a number",
    "integer": "a number",
    "boolean": "a truth value",
    "time": "a time",
}


@dataclass
class _Walk:
    """One condition, from its leaves up."""

    usage: Usage
    stream: str
    where: str

    def unify(self, values: list[_Value], kind: ColumnType | None = None, as_: str = "") -> _Value:
        """All of these have one type: `kind`, or that of the first whose type is known."""
        kind = kind or next((value.type for value in values if value.type), None)
        columns = tuple(column for value in values for column in value.columns)
        places = [(self.stream, column) for column in columns]
        if kind is not None:
            for place in places:
                self.usage.add(place, kind, f"{self.where} uses it as {as_ or _WORDS[kind]}")
        elif len(places) > 1:
            self.usage.link(places)
        return _Value(kind, columns)

    def visit(self, tree: Tree) -> _Value:
        """The value of an expression."""
        (kind, body), *_ = tree.items()
        match kind:
            case "Column":
                return _Value(columns=(body,))
            case "Literal":
                return _literal(tree)
            case "Alias":
                return self.visit(body[0])
            case "BinaryExpr":
                return self._operation(body["op"], [self.visit(part) for part in children(tree)])
            case "Ternary":
                condition, *results = (self.visit(part) for part in children(tree))
                self.unify([condition], "boolean")
                return self.unify(results)
            case "Cast":
                return self._cast(tree)
            case "Function":
                return self._function(tree)
        return _UNKNOWN

    def _operation(self, name: str, values: list[_Value]) -> _Value:
        if name in _LOGIC:
            return self.unify(values, "boolean")
        if name in _ARITHMETIC:
            known = {value.type for value in values}
            if known & {"text", "time"}:  # such as a time plus an interval
                return _Value("text") if "text" in known else _UNKNOWN
            return _Value(self.unify(values, "number").type)
        self.unify(values)
        return _Value("boolean")

    def _cast(self, tree: Tree) -> _Value:
        value = self.visit(tree["Cast"]["expr"])
        to = pl.DataFrame({"x": [None]}).select(
            polars_expression({"Cast": {**tree["Cast"], "expr": {"Column": "x"}}})
        )
        found = column_type(to.dtypes[0])
        if found == "boolean":  # what NOT puts around its part
            return _Value(self.unify([value], "boolean").type)
        for column in value.columns:
            self.usage.allow_text((self.stream, column), f"{self.where} casts it")
        return _Value(found)

    def _function(self, tree: Tree) -> _Value:
        family, member = function_of(tree)
        values = [self.visit(part) for part in children(tree)]
        match family:
            case "Boolean" if member in {"IsNull", "IsNotNull"}:
                for column in values[0].columns:
                    reason = f"{self.where} asks whether it is null"
                    self.usage.allow_text((self.stream, column), reason)
                return _Value("boolean")
            case "Boolean" if member in {"IsFinite", "IsInfinite", "IsNan", "IsNotNan"}:
                self.unify(values, "number")
                return _Value("boolean")
            case "Boolean" if member.startswith("IsIn") or member == "IsBetween":
                self.unify(values)
                return _Value("boolean")
            case "Boolean":
                self.unify(values, "boolean")
                return _Value("boolean")
            case "Sql":
                return self._operation(member, values)
            case "StringExpr":
                return self._text(member, values)
            case "TemporalExpr":
                self.unify(values[:1], "time")
                return _Value("time" if member in {"Truncate", "Round", "Date"} else "number")
            case _ if family in _NUMERIC:
                return _Value(self.unify(values, "number").type)
            case _ if family in _ALIKE:
                return self.unify(values)
        return _UNKNOWN

    def _text(self, member: str, values: list[_Value]) -> _Value:
        several = member.startswith("Concat")
        self.unify(values if several else values[:1], "text")
        if member in _TEXT_TESTS:
            return _Value("boolean")
        if member in _TEXT_MEASURES:
            return _Value("number")
        return _Value("time" if member == "Strptime" else "text")


def _literal(tree: Tree) -> _Value:
    """A constant, or a list of them."""
    value = pl.select(polars_expression(tree)).to_series()
    dtype = value.explode().dtype if isinstance(value.dtype, pl.List) else value.dtype
    return _UNKNOWN if dtype == pl.Null else _Value(column_type(dtype))
