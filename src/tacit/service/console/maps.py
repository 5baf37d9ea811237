"""Maps: areas of the specification, with what was released about them in the last window.

A map shows the areas that queries ask about and no others. What it says about them are released
answers and counts.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl
import pyarrow as pa

from tacit.events.shapes import Shape
from tacit.patterns.tree import Name, Not, Pattern, children
from tacit.spec.specification import Query, Specification

_MOST_KEPT: Final = 8
_SHAPES: Final[OrderedDict[str, dict[str, Shape]]] = OrderedDict()
"""Shapes by the fingerprint of their specification: some are read from files."""


@dataclass(frozen=True, slots=True)
class AreaFigure:
    """What a query says about an area in one window."""

    area: str
    query: str
    about: str
    """The answer that is counted, for queries with several; empty for yes."""
    number: int
    subjects: int
    interval: tuple[int, int] | None = None
    """For a count, where the true one is."""

    @property
    def share(self) -> float:
        """The share of subjects, from 0 to 1."""
        return max(0.0, min(1.0, self.number / max(1, self.subjects)))


def find_areas(spec: Specification, query: Query) -> dict[str, tuple[str, ...]]:
    """Return the areas of a query, for each of its answers; the answer yes is the empty text.

    An area counts if an event in it makes the answer more likely: `NOT at_station` says nothing
    about where somebody is. A count by a column whose values are areas has those instead.
    """
    if query.count is not None:
        return {"": _list_areas(spec, spec.count_patterns[query.name])}
    own = {one.name: one.pattern for one in spec.boolean_queries if one.query == query.name}
    if query.one_of is None:  # the first pattern of a number: whether it is at least 1
        return {"": _list_areas(spec, next(iter(own.values())))}
    return {answer: _list_areas(spec, own[f"{query.name}={answer}"]) for answer in query.one_of}


def _list_areas(spec: Specification, pattern: Pattern) -> tuple[str, ...]:
    names = dict.fromkeys(_positive_names(pattern))
    return tuple(dict.fromkeys(area for name in names for area in spec.events[name].areas))


def _positive_names(pattern: Pattern) -> Iterator[str]:
    """Yield the names below an even number of NOT."""
    pending = [(pattern, True)]
    while pending:
        node, positive = pending.pop()
        if isinstance(node, Name) and positive:
            yield node.name
        below = positive ^ isinstance(node, Not)
        pending += [(part, below) for part in reversed(children(node))]


def collect_answers(spec: Specification, query: Query, table: pa.Table) -> list[AreaFigure]:
    """Return what the answers of one window say about a query's areas."""
    rows = pl.DataFrame(table).filter(pl.col("query").cast(pl.String) == query.name)
    found = []
    for answer, areas in find_areas(spec, query).items() if len(rows) else ():
        chosen = rows["value"].cast(pl.String) == answer if answer else rows["detected"]
        number = int(chosen.sum())
        found += [AreaFigure(area, query.name, answer, number, len(rows)) for area in areas]
    return found


def collect_counts(spec: Specification, query: Query, table: pa.Table) -> list[AreaFigure]:
    """Return what the counts of one window say about a query's areas, or about groups' areas."""
    found = []
    for row in pl.DataFrame(table).filter(pl.col("query").cast(pl.String) == query.name).to_dicts():
        named = (row["group"],) if row["group"] in spec.areas else ()
        number, subjects = row["count"], row["subjects"]
        interval = row["low"], row["high"]
        if row["estimate"] is not None:  # that of the whole group, as on other pages
            number, subjects = round(row["estimate"]), subjects + row["left_out"]
            interval = math.floor(row["estimate_low"]), math.ceil(row["estimate_high"])
        if number is None:  # not drawn in this window
            continue
        for area in find_areas(spec, query)[""] if row["group"] is None else named:
            found.append(AreaFigure(area, query.name, "", number, subjects, interval))
    return found


def load_shapes(spec: Specification) -> dict[str, Shape]:
    """Return the shapes of a specification's areas, or those from before."""
    key = spec.fingerprint
    if key not in _SHAPES:
        while len(_SHAPES) >= _MOST_KEPT:
            _SHAPES.popitem(last=False)
        _SHAPES[key] = {name: area.shape(spec.folder) for name, area in spec.areas.items()}
    return _SHAPES[key]


def collect_figures(
    spec: Specification, queries: Sequence[Query], answers: pa.Table | None, counts: pa.Table
) -> list[AreaFigure]:
    """Return what was released about the areas of some queries in their last window."""
    found: list[AreaFigure] = []
    for query in queries:
        if query.count is not None:
            found += collect_counts(spec, query, counts)
        elif answers is not None:
            found += collect_answers(spec, query, answers)
    return found


def list_shown(
    spec: Specification, queries: Sequence[Query], figures: Sequence[AreaFigure]
) -> dict[str, Shape]:
    """Return the shapes of all areas that some queries ask about."""
    asked = {
        area
        for query in queries
        for areas in find_areas(spec, query).values()
        for area in areas
        if query.by is None
    }
    asked |= {figure.area for figure in figures}
    if not asked:
        return {}
    return {name: shape for name, shape in load_shapes(spec).items() if name in asked}
