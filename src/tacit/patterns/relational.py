"""Patterns with conditions between their elements, matched by joins.

Each part of a pattern becomes a table of its matches: bucket (one window of one subject), times of
the first and the last event, attributes that an outer condition needs, and the events at either end
that another part might use too. `SEQ` and `AND` join their parts' tables, `OR` concatenates them,
`NOT` is an anti-join, `WITHIN` and `WHERE` filter. A comparison is evaluated as soon as both of its
sides are available, and columns that are no longer needed are dropped, so that matches that differ
in nothing else become one.

Cost: for each bucket, time grows with the product of the numbers of candidates for the
elements that a condition binds, as far as comparisons and order leave them, and with the
square of their numbers for elements without a name. Pairs are listed in pieces, and buckets
are divided where tables grow too long, so that memory is bounded by one bucket's matches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tacit.errors import SchemaError, nearest
from tacit.events.values import Kind, find_kind
from tacit.patterns import reference
from tacit.patterns.conditions import Attribute, attributes
from tacit.patterns.expressions import check_kinds
from tacit.patterns.needs import Need
from tacit.patterns.tables import Search, TooManyMatches
from tacit.patterns.tree import (
    And,
    Name,
    Not,
    Or,
    Pattern,
    Repeat,
    Seq,
    Where,
    Within,
    children,
    elements,
    walk,
)

PAIRS_AT_ONCE = 1 << 20
ROWS_AT_ONCE = 1 << 22


class Relational:
    """One pattern with conditions, matched by joins.

    `attributes` names the columns of each stream that the conditions use, `event_types`
    the types whose tuples matter, and `when_empty` whether a window without any tuple counts
    as detected (possible with a NOT).
    """

    def __init__(self, pattern: Pattern, types: Sequence[str], streams: Mapping[str, str]) -> None:
        self.pattern = pattern
        self.event_types = elements(pattern)
        self.when_empty = _detected_when_empty(pattern)
        self._numbers = {type_: number for number, type_ in enumerate(types)}
        self._streams = {type_: streams[type_] for type_ in self.event_types}
        # A stream without compared attributes has no columns here, but its tuples matter.
        columns: dict[str, dict[str, None]] = {stream: {} for stream in self._streams.values()}
        for stream, attribute in self._looked_at():
            columns[stream][attribute.column] = None
        self.attributes: Mapping[str, tuple[str, ...]] = {
            stream: tuple(names) for stream, names in columns.items()
        }

    def check(self, schemas: Mapping[str, pl.Schema]) -> None:
        """Raise an error before a run for columns that are missing or unsuitable."""
        kinds: dict[Attribute, Kind] = {}
        for stream, attribute in self._looked_at():
            column, schema = attribute.column, schemas[stream]
            if column not in schema:
                raise SchemaError(
                    f"A condition uses {attribute!r}, but stream '{stream}' has no column "
                    f"'{column}'.{nearest(column, list(schema))}"
                )
            kind = find_kind(schema[column])
            if kind is None:
                raise SchemaError(
                    f"A condition uses {attribute!r}, a {schema[column]} in stream "
                    f"'{stream}'. Conditions compare numbers, texts, truth values and times."
                )
            if kinds.setdefault(attribute, kind) != kind:
                raise SchemaError(
                    f"A condition uses {attribute!r}, which is a {kinds[attribute]} in one "
                    f"stream and a {kind} in stream '{stream}'. Use columns of one kind."
                )
        for node in walk(self.pattern):
            if isinstance(node, Where):
                check_kinds(node.condition, kinds.get)

    def detect(self, tuples: Mapping[str, pl.DataFrame]) -> NDArray[np.int64]:
        """Return the buckets, sorted, in which the pattern is detected."""
        buckets = _distinct(frame["bucket"] for frame in tuples.values())
        pending, found = [buckets], [buckets.clear()]
        while pending:
            group = pending.pop()
            search = Search(
                _select_buckets(tuples, group) if len(group) < len(buckets) else tuples,
                self._streams,
                self._numbers,
                group,
                PAIRS_AT_ONCE,
                ROWS_AT_ONCE,
            )
            try:
                found.append(search.matches(self.pattern, Need())["bucket"])
            except TooManyMatches:
                middle = len(group) // 2
                pending += [group[:middle], group[middle:]]
        return _distinct(found).to_numpy()

    def _looked_at(self) -> Iterator[tuple[str, Attribute]]:
        """Yield the attributes in conditions, each with every stream whose tuples it may be of."""
        names = [node for node in walk(self.pattern) if isinstance(node, Name)]
        for node in walk(self.pattern):
            if isinstance(node, Where):
                for attribute in attributes(node.condition):
                    for name in names:
                        if name.alias == attribute.alias:
                            yield self._streams[name.name], attribute


def _distinct(buckets: Iterable[pl.Series]) -> pl.Series:
    parts = [pl.Series("bucket", [], dtype=pl.Int64), *buckets]
    return pl.concat(parts).unique().sort()


def _select_buckets(
    tuples: Mapping[str, pl.DataFrame], buckets: pl.Series
) -> dict[str, pl.DataFrame]:
    """Return the tuples of adjacent buckets."""
    inside = pl.col("bucket").is_between(buckets[0], buckets[-1])
    return {stream: frame.filter(inside) for stream, frame in tuples.items()}


def _detected_when_empty(pattern: Pattern) -> bool:
    """Return whether the empty match is a match of the pattern in a window without tuples."""
    match pattern:
        case Name():
            return False
        case Not(part):
            return not _detected_when_empty(part)
        case Or(parts):
            return any(map(_detected_when_empty, parts))
        case Where(part, condition):
            return _detected_when_empty(part) and reference.holds(condition, reference.Match(), ())
        case And() | Seq() | Repeat() | Within():
            return all(map(_detected_when_empty, children(pattern)))
