"""The type of every column that a specification reads, and the origin of that type.

A typed source (Parquet, Arrow, frames) has its own types. For a text source the first of these
counts: `columns` of the stream, the source's address, the column's role (subject, time, position),
its use in conditions, and the plan, which records the types of history. The data of a run never
determines a type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import pyarrow as pa

from tacit.errors import Mistake, SpecificationError
from tacit.events.column_uses import ColumnUses, Place
from tacit.events.columntypes import ColumnTypes
from tacit.events.predicates import parse_predicate
from tacit.events.streams import ColumnType
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
from tacit.patterns.tree import Name, Pattern, Where, walk
from tacit.spec.specification import Specification

RecordedTypes: TypeAlias = Mapping[str, Mapping[str, ColumnType]]
"""For each stream the types of its columns, as a plan records them."""


@dataclass(frozen=True, slots=True)
class TypedColumn:
    """A column's type and its origin; None if it is unknown."""

    column: str
    type: ColumnType | None
    origin: str
    unquoted: bool = False
    """Whether it may be a text without its quotes instead of a column."""


@dataclass(frozen=True)
class SpecColumns:
    """The columns that a specification reads, and their types in text sources."""

    spec: Specification
    recorded: RecordedTypes = field(default_factory=dict)

    @cached_property
    def usage(self) -> ColumnUses:
        """How conditions use columns; typed sources do not need it."""
        return find_column_uses(self.spec)

    def columns(self, stream: str) -> list[str]:
        """Return the columns of a stream that the specification reads."""
        config = self.spec.streams[stream]
        found = [config.subject, config.time]
        for event in self.spec.events.values():
            if event.stream == stream:
                found += (config.lon, config.lat) if event.areas else ()
                found += parse_predicate(event.where).columns if event.where is not None else ()
        found += [column for name, column in self.usage.places() if name == stream]
        return list(dict.fromkeys(found))

    def report(self) -> dict[str, list[TypedColumn]]:
        """Return for each stream the types that its columns have in text sources."""
        return {
            stream: [self.resolve(stream, column) for column in self.columns(stream)]
            for stream in self.spec.streams
        }

    def resolve(
        self, stream: str, column: str, declared: Mapping[str, ColumnType] | None = None
    ) -> TypedColumn:
        """Return the type of a column in a text source; `declared` are types from its address."""
        config = self.spec.streams[stream]
        if column in config.columns:
            origin = f"declared in streams.{stream}.columns"
            return TypedColumn(column, config.columns[column], origin)
        if column == config.subject:
            return TypedColumn(column, "text", "it holds the subject")
        if declared and column in declared:
            return TypedColumn(column, declared[column], "declared in the source's address")
        if column == config.time:
            return TypedColumn(column, "time", "it holds the event time")
        used = self.usage.infer((stream, column))
        if used.type is not None:
            return TypedColumn(column, used.type, used.reason)
        if column in self.recorded.get(stream, {}):
            return TypedColumn(column, self.recorded[stream][column], "recorded in the plan")
        return TypedColumn(column, None, used.reason, used.unquoted)

    def text_types(
        self,
        stream: str,
        columns: Sequence[str],
        declared: Mapping[str, ColumnType] | None = None,
    ) -> ColumnTypes:
        """Return the column types of a text source; raise SpecificationError if any is unknown."""
        found = [self.resolve(stream, column, declared) for column in columns]
        unknown = [column for column in found if column.type is None]
        if unknown:
            raise SpecificationError([Mistake(_refusal(stream, unknown))])
        return ColumnTypes(
            self.spec.streams[stream], {one.column: one.type for one in found if one.type}
        )

    def declared_types(self, stream: str, schema: pa.Schema) -> ColumnTypes:
        """Return the declared column types of a typed source."""
        config = self.spec.streams[stream]
        wanted = {name: kind for name, kind in config.columns.items() if name in schema.names}
        return ColumnTypes(config, wanted)


def find_column_uses(spec: Specification) -> ColumnUses:
    """Collect the uses of columns in all conditions of a specification."""
    usage = ColumnUses()
    for name, event in spec.events.items():
        if event.where is not None:
            usage.add_predicate(event.stream, parse_predicate(event.where), f"event '{name}'")
        for column in (spec.streams[event.stream].lon, spec.streams[event.stream].lat):
            if event.areas:
                usage.add((event.stream, column), "number", "it holds a position")
    asked = spec.query_patterns | spec.count_patterns
    patterns = {f"query '{name}'": pattern for name, pattern in asked.items()}
    private = zip(spec.private, spec.private_patterns, strict=True)
    patterns |= {f"private pattern '{one.name}'": pattern for one, pattern in private}
    for where, pattern in patterns.items():
        _add_pattern(usage, spec, pattern, where)
    return usage


def _add_pattern(usage: ColumnUses, spec: Specification, pattern: Pattern, where: str) -> None:
    """Add the uses of columns in conditions between elements."""
    for node in walk(pattern):
        if isinstance(node, Where):
            streams: dict[str, set[str]] = {}
            for part in walk(node.part):
                if isinstance(part, Name) and part.alias:
                    streams.setdefault(part.alias, set()).add(spec.events[part.name].stream)
            _Conditions(usage, streams, where).add(node.condition)


@dataclass(frozen=True, slots=True)
class _Conditions:
    usage: ColumnUses
    streams: Mapping[str, set[str]]
    """The streams of each alias: several where branches of an OR bind it."""
    where: str

    def add(self, condition: Condition) -> None:
        match condition:
            case Comparison(_, left, right):
                self._unify([self._visit(left), self._visit(right)], None)
            case Negation(part):
                self.add(part)
            case Conjunction(left, right) | Disjunction(left, right):
                self.add(left)
                self.add(right)

    def _visit(self, term: Term) -> tuple[ColumnType | None, list[Place]]:
        match term:
            case Attribute(alias, column):
                return None, [(stream, column) for stream in sorted(self.streams.get(alias, ()))]
            case Constant(value):
                if isinstance(value, bool):
                    return "boolean", []
                return ("text" if isinstance(value, str) else "number"), []
            case Arithmetic(_, left, right):
                self._unify([self._visit(left), self._visit(right)], "number")
                return "number", []

    def _unify(
        self, sides: Sequence[tuple[ColumnType | None, list[Place]]], kind: ColumnType | None
    ) -> None:
        kind = kind or next((found for found, _ in sides if found), None)
        places = [place for _, found in sides for place in found]
        if kind is None:
            if places:
                self.usage.link(places)
            return
        for place in places:
            self.usage.add(place, kind, f"{self.where} compares it as {kind}")


def format_columns(columns: SpecColumns) -> list[str]:
    """Return the types of all columns in text sources, a line for each."""
    lines = []
    for stream, found in columns.report().items():
        lines.append(f"Columns of stream {stream} in text formats (CSV, JSON lines, messages):")
        lines += [f"  {one.column}: {one.type or 'not known'} ({one.origin})" for one in found]
        unknown = [one for one in found if one.type is None]
        if unknown:
            lines += ["  " + line for line in _addition(stream, unknown).splitlines()]
    return lines


def _refusal(stream: str, unknown: Sequence[TypedColumn]) -> str:
    """Describe what to add to the specification."""
    names = ", ".join(f"'{one.column}' ({one.origin})" for one in unknown)
    return (
        f"the types of columns of stream '{stream}' are not known: {names}. A text format does"
        " not tell them, and they are never guessed from the data of a run.\n"
        + _addition(stream, unknown)
    )


def _addition(stream: str, unknown: Sequence[TypedColumn]) -> str:
    """Return the lines that declare types."""
    lines = "".join(
        f"\n      {_key(one.column)}: text" + "   # only if it is a column" * one.unquoted
        for one in unknown
    )
    return (
        "Add to the specification, with the right types (text, number, integer, boolean, time):\n"
        f"streams:\n  {stream}:\n    columns:{lines}"
    )


def _key(column: str) -> str:
    """Return a column's name as a key in YAML."""
    return column if column.isidentifier() else "'" + column.replace("'", "''") + "'"
