"""Shared attributes: public event types and conditions that read what a private type reads.

Neighbours differ in private events and leave public ones as they are. If a public event type
reads the same attribute of the same tuple, that limits how the private event can change. So each
such pair is listed, with what follows on a single tuple.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

from tacit.events.predicates import parse_predicate
from tacit.events.shapes import Shape
from tacit.events.sql import Column, FunctionCall, Tree, parse_moment
from tacit.events.sql import Literal as SqlLiteral
from tacit.insight.relations import Relation, TupleCondition, relate
from tacit.options import option
from tacit.patterns.conditions import (
    Attribute,
    Comparison,
    Condition,
    Conjunction,
    Constant,
    Disjunction,
    Negation,
    attributes,
)
from tacit.patterns.expressions import iterate_conjuncts
from tacit.patterns.tree import Name, Where, walk
from tacit.privacy.policies import Policies
from tacit.spec.specification import Specification

if TYPE_CHECKING:  # importing it loads the compiler, which is not needed here
    from tacit.spec.columntypes import SpecColumns

MOST_DERIVED: Final = 10_000
"""The most pairs for which a relation is derived."""
MOST_LINES: Final = 20
"""The most pairs that are listed in text."""
_MEANING: Final[dict[Relation | None, str]] = {
    "implies": "Every tuple that is {private} is also {public}: where there is no {public}, there"
    " is no {private}.",
    "implied by": "Every tuple that is {public} is also {private}: an exact {public} shows a"
    " {private}.",
    "same": "The same tuples are {private} and {public}: an exact {public} shows a {private}.",
    "excludes": "No tuple is both: a tuple that is {public} is not {private}.",
    "overlaps": "Some tuples are both, some are only {private}, some only {public}.",
    None: "What follows on a single tuple was not derived from the conditions.",
}


@dataclass(frozen=True, slots=True)
class SharedAttributes:
    """A private event type, and something public that reads its attributes."""

    private: str
    """The private event type."""
    public: str
    """The public event type."""
    attributes: tuple[str, ...]
    """The columns that both read."""
    relation: Relation | None
    """The relation of the private type to the public one, on one tuple; None if not derived."""
    query: str | None = None
    """The query whose condition reads them; None for the event type's own condition."""
    condition: str | None = None
    """That condition."""

    @property
    def meaning(self) -> str:
        """What follows on a single tuple, in a sentence."""
        public = f"'{self.public}'"
        if self.condition is not None:
            public = f"'{self.public}' with the query's condition"
        return _MEANING[self.relation].format(private=f"'{self.private}'", public=public)

    def __str__(self) -> str:
        columns = ", ".join(self.attributes)
        reader = f"'{self.public}' is public and"
        if self.condition is not None:
            reader = f"query '{self.query}' asks {self.condition} of public '{self.public}', which"
        return f"{reader} reads {columns}, as private '{self.private}' does. {self.meaning}"


def find_shared_attributes(spec: Specification) -> list[SharedAttributes]:
    """Find every public event type and condition that reads an attribute of a private type.

    >>> from tacit.spec.yaml_reader import loads
    >>> spec = loads('''
    ... streams: {gps: {subject: taxi, time: at}}
    ... windows: {size: 1 h}
    ... events:
    ...   parked: {stream: gps, where: "speed < 1"}
    ...   slow: {stream: gps, where: "speed BETWEEN 1 AND 10"}
    ... private: [{pattern: parked, epsilon: 1}]
    ... ''')
    >>> find_shared_attributes(spec)[0].relation
    'excludes'
    """
    return _AttributeSearch(spec).find()


def format_sharing(spec: Specification) -> list[str]:
    """Format the pairs as sentences, for a terminal; a long list is shortened."""
    found = find_shared_attributes(spec)
    lines = [str(one) for one in found[:MOST_LINES]]
    if len(found) > MOST_LINES:
        lines.append(
            f"{len(found) - MOST_LINES:,} more share attributes; {option('json')} lists them."
        )
    heads = ["Shared attributes:"] if lines else []
    return [*heads, *(f"  {line if line.isprintable() else repr(line)}" for line in lines)]


@dataclass(frozen=True, slots=True)
class _ElementCondition:
    """A condition of a query on an element."""

    query: str
    type: str
    alias: str
    condition: Condition

    @property
    def columns(self) -> frozenset[str]:
        """The columns of the element that it reads."""
        return frozenset(a.column for a in attributes(self.condition) if a.alias == self.alias)


@dataclass
class _AttributeSearch:
    spec: Specification

    def find(self) -> list[SharedAttributes]:
        """Find all pairs; a type is private or public with respect to the same subjects."""
        pairs: dict[tuple[str, str, _ElementCondition | None], None] = {}
        for policy in Policies(self.spec).policies:
            private = [name for name in self.spec.events if name in policy.private]
            public = [name for name in self.spec.events if name not in policy.private]
            for one in private:
                pairs |= {(one, name, None): None for name in public}
                pairs |= {
                    (one, asked.type, asked): None
                    for asked in self._conditions
                    if asked.type not in policy.private
                }
        shared = [(*pair, columns) for pair in pairs if (columns := self._columns(*pair))]
        return [
            SharedAttributes(
                private=one,
                public=name,
                attributes=columns,
                relation=self._relation(one, name, asked) if place < MOST_DERIVED else None,
                query=None if asked is None else asked.query,
                condition=None if asked is None else repr(asked.condition),
            )
            for place, (one, name, asked, columns) in enumerate(shared)
        ]

    def _columns(
        self, private: str, public: str, asked: _ElementCondition | None
    ) -> tuple[str, ...]:
        """Return the columns that both read, if they are of one stream."""
        if self.spec.events[private].stream != self.spec.events[public].stream:
            return ()
        read = self._read[public] if asked is None else asked.columns
        return tuple(sorted(read & self._read[private]))

    @cached_property
    def _read(self) -> dict[str, frozenset[str]]:
        """The columns that each event type reads."""
        found = {}
        for name, event in self.spec.events.items():
            stream = self.spec.streams[event.stream]
            used = () if event.where is None else parse_predicate(event.where).columns
            position = (stream.lon, stream.lat) if event.areas else ()
            found[name] = frozenset((*used, *position))
        return found

    @cached_property
    def _conditions(self) -> list[_ElementCondition]:
        """The conditions of queries on attributes of elements."""
        found: dict[_ElementCondition, None] = {}
        asked = self.spec.query_patterns | self.spec.count_patterns
        for query, pattern in asked.items():
            for node in walk(pattern):
                if isinstance(node, Where):
                    found |= dict.fromkeys(_element_conditions(query, node))
        return list(found)

    def _relation(
        self, private: str, public: str, asked: _ElementCondition | None
    ) -> Relation | None:
        other = self._tuple_condition(public)
        if asked is not None:
            own = self._with_times(
                _tree(asked.condition, asked.alias), self.spec.events[public].stream
            )
            parts = [own, *([other.tree] if other.tree else [])]
            other = replace(other, tree=FunctionCall("AND", tuple(parts)))
        return relate(self._tuple_condition(private), other)

    def _tuple_condition(self, name: str) -> TupleCondition:
        event = self.spec.events[name]
        stream = self.spec.streams[event.stream]
        tree = None
        if event.where is not None:
            tree = self._with_times(parse_predicate(event.where).tree, event.stream)
        areas = tuple(self._shapes[area] for area in event.areas)
        return TupleCondition(tree, areas, (stream.lon, stream.lat))

    def _with_times(self, tree: Tree, stream: str) -> Tree:
        """Convert text constants to times if they are compared with a column of times."""
        if not isinstance(tree, FunctionCall):
            return tree
        parts = [self._with_times(part, stream) for part in tree.arguments]
        if any(isinstance(part, Column) and self._is_time(stream, part.name) for part in parts):
            parts = [_moment(part) for part in parts]
        return FunctionCall(tree.name, tuple(parts))

    def _is_time(self, stream: str, column: str) -> bool:
        return self._types.resolve(stream, column).type == "time"

    @cached_property
    def _types(self) -> SpecColumns:
        from tacit.spec.columntypes import SpecColumns

        return SpecColumns(self.spec)

    @cached_property
    def _shapes(self) -> dict[str, Shape]:
        return {name: area.shape(self.spec.folder) for name, area in self.spec.areas.items()}


def _element_conditions(query: str, node: Where) -> Iterator[_ElementCondition]:
    """Yield every part of a condition that must hold separately, for every element it uses."""
    types: dict[str, list[str]] = {}
    for part in walk(node.part):
        if isinstance(part, Name) and part.alias is not None:
            types.setdefault(part.alias, []).append(part.name)
    for condition in iterate_conjuncts(node.condition):
        for alias in dict.fromkeys(attribute.alias for attribute in attributes(condition)):
            for name in types.get(alias, []):
                yield _ElementCondition(query, name, alias, condition)


def _tree(condition: Condition, alias: str) -> Tree:
    """Convert a condition on an element to one on its tuple; other elements are opaque."""
    match condition:
        case Conjunction(left, right):
            return FunctionCall("AND", (_tree(left, alias), _tree(right, alias)))
        case Disjunction(left, right):
            return FunctionCall("OR", (_tree(left, alias), _tree(right, alias)))
        case Negation(part):
            return FunctionCall("NOT", (_tree(part, alias),))
        case Comparison(sign, Attribute(name, column), Constant(value)) if name == alias:
            return FunctionCall(sign, (Column(column), SqlLiteral(value)))
        case Comparison(sign, Constant(value), Attribute(name, column)) if name == alias:
            return FunctionCall(sign, (SqlLiteral(value), Column(column)))
    return FunctionCall(repr(condition), ())


def _moment(part: Tree) -> Tree:
    """Convert a constant text to a date or time, if it is one."""
    if not (isinstance(part, SqlLiteral) and isinstance(part.value, str)):
        return part
    try:
        return SqlLiteral(parse_moment(part.value))
    except ValueError:
        return part
