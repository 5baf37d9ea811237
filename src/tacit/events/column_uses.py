"""Infer column types from conditions: `speed < 8` compares the column with a number.

Each condition gives facts: a column has a type, or two columns have the same type. Together they
determine the type of a column, or none if there are no facts or they contradict each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from tacit.events.functions import CAST_KINDS, FUNCTIONS, Function
from tacit.events.predicates import Predicate
from tacit.events.sql import Column, FunctionCall, Literal, Tree
from tacit.events.streams import ColumnType
from tacit.events.values import Kind, find_constant_kind

Place: TypeAlias = tuple[str, str]
"""A stream and one of its columns."""

_KINDS: Final[dict[Kind, ColumnType]] = {
    "number": "number",
    "text": "text",
    "truth value": "boolean",
    "date": "time",
    "time": "time",
}
"""The column type for each kind of values; columns cannot have the other kinds."""


class InferredType(NamedTuple):
    """The type of a column, and the use that determines it; None if no use does."""

    type: ColumnType | None
    reason: str
    unquoted: bool = False
    """Whether it may be a text without its quotes instead of a column."""


@dataclass
class ColumnUses:
    """Facts about columns, collected from all conditions."""

    _facts: dict[Place, dict[ColumnType, str]] = field(default_factory=dict)
    _weak: dict[Place, str] = field(default_factory=dict)
    _same: dict[Place, Place] = field(default_factory=dict)
    _seen: dict[Place, None] = field(default_factory=dict)
    _compared: set[Place] = field(default_factory=set)
    """Columns that are compared with a column, as a text without its quotes would be."""
    _typed: set[Place] = field(default_factory=set)
    """Columns whose type is known from their own use, not from a column they are compared with."""

    def add(self, place: Place, kind: ColumnType, reason: str) -> None:
        """Record that a column has a type."""
        self._seen[place] = None
        self._typed.add(place)
        self._facts.setdefault(self._root(place), {}).setdefault(kind, reason)

    def allow_text(self, place: Place, reason: str) -> None:
        """Record that any type works for a column, so text is used if nothing else is known."""
        self._seen[place] = None
        self._weak.setdefault(place, reason)

    def link(self, places: Sequence[Place]) -> None:
        """Record that columns have the same type."""
        self._seen |= dict.fromkeys(places)
        first, *others = (self._root(place) for place in places)
        for other in others:
            if other != first:
                self._same[other] = first
                for kind, reason in self._facts.pop(other, {}).items():
                    self._facts.setdefault(first, {}).setdefault(kind, reason)

    def places(self) -> list[Place]:
        """Return all columns with facts."""
        return list(self._seen)

    def infer(self, place: Place) -> InferredType:
        """Infer the type of a column."""
        facts = self._facts.get(self._root(place), {})
        hint = f"; if it is no column but a text, write '{place[1]}' in single quotes"
        if len(facts) == 1:
            ((kind, reason),) = facts.items()
            if place in self._compared - self._typed:
                reason = "it is compared with a column of this type" + hint * (kind == "text")
            return InferredType(kind, reason)
        if facts:
            return InferredType(
                None, "its uses contradict each other: " + "; ".join(facts.values())
            )
        if place in self._weak:
            return InferredType("text", self._weak[place])
        known = "its uses do not show its type"
        unquoted = place in self._compared
        return InferredType(None, known + hint * unquoted, unquoted)

    def add_predicate(self, stream: str, predicate: Predicate, where: str) -> None:
        """Add the facts of a condition on a stream's tuples; `where` names the condition."""
        self._compared |= {(stream, column) for column in predicate.compared_columns()}
        walk = _ConditionTypes(self, stream, where)
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
class _ConditionTypes:
    """Infers the types in one condition, from its leaves up."""

    usage: ColumnUses
    stream: str
    where: str

    def unify(self, values: list[_Value], kind: ColumnType | None = None, as_: str = "") -> _Value:
        """Unify the types of values: `kind`, or the type of the first value that has one."""
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
        """Return the type of an expression."""
        match tree:
            case Column(name):
                return _Value(columns=(name,))
            case Literal(constant):
                kind = find_constant_kind(constant)
                return _Value(_KINDS.get(kind) if kind else None)
            case FunctionCall("CASE", arguments):
                *parts, last = (self.visit(argument) for argument in arguments)
                self.unify(parts[::2], "boolean")
                return self.unify([*parts[1::2], last])
            case FunctionCall("CAST", (part, Literal(to))):
                return self._cast(self.visit(part), CAST_KINDS[str(to)])
            case FunctionCall("+" | "-", arguments):
                return self._sum([self.visit(argument) for argument in arguments])
            case FunctionCall(name, arguments):
                return self._function(FUNCTIONS[name], [self.visit(part) for part in arguments])

    def _sum(self, values: list[_Value]) -> _Value:
        if "time" in {value.type for value in values}:  # such as a time plus an interval
            return _UNKNOWN
        return _Value(self.unify(values, "number").type)

    def _cast(self, value: _Value, to: Kind) -> _Value:
        if to in ("date", "time"):  # only a time is cast to one
            return _Value(self.unify([value], "time").type)
        for column in value.columns:
            self.usage.allow_text((self.stream, column), f"{self.where} casts it")
        return _Value(_KINDS[to])

    def _function(self, function: Function, values: list[_Value]) -> _Value:
        if function.name == "IS NULL":
            for column in values[0].columns:
                reason = f"{self.where} asks whether it is null"
                self.usage.allow_text((self.stream, column), reason)
            return _Value("boolean")
        alike = []
        for place, value in enumerate(values):
            parameter = function.parameter(place)
            if parameter.kinds and not parameter.constant:
                self.unify([value], _KINDS[parameter.kinds[0]])
            elif not parameter.constant:
                alike.append(value)
        same = self.unify(alike) if alike else _UNKNOWN
        return same if function.returns is None else _Value(_KINDS.get(function.returns))
