"""What a table of matches must contain for the rest of the pattern.

The less a table contains, the shorter it is: a match is dropped if it differs from another in
nothing that is needed, or is not better in anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import polars as pl

from tacit.patterns.conditions import (
    Comparison,
    Condition,
    Conjunction,
    Disjunction,
    Negation,
    Term,
    attributes,
)
from tacit.patterns.joins import undominated
from tacit.patterns.tree import And, Name, Not, Pattern, Repeat, Seq, children

Names: TypeAlias = frozenset[str]

# By the name of its column: a term, and whether a greater (1) or a smaller (-1) value of it is
# always as good; 0 where the value itself matters.
Values: TypeAlias = dict[str, tuple[Term, int]]

# A time that no event has: an empty match begins at NEVER and ends at -NEVER, so that order,
# gaps and spans need no special case for it.
NEVER = 1 << 61
_RANKED = (pl.Int64, pl.Float64, pl.Int32, pl.UInt32, pl.Int16, pl.UInt16, pl.Int8, pl.UInt8)


@dataclass(frozen=True, slots=True)
class Need:
    """The columns that outer parts of a pattern need; all others are dropped from a table."""

    values: Values = field(default_factory=dict)
    before: Names = frozenset()  # event types that parts before this one in a SEQ may use
    after: Names = frozenset()  # and parts after it
    first: bool = False
    last: bool = False
    narrow: bool = True  # whether a match is as good as any other that spans it
    span: int = NEVER  # how long a match may last at most

    def distil(self, table: pl.DataFrame) -> pl.DataFrame:
        """Drop columns that are not needed, and matches that are not better than another."""
        columns = [column for column in table.columns if self.keeps(column)]
        better = self._better(table.select(columns).schema)
        ends = better.keys() & {"first", "last"}
        table = table.select(columns).drop_nulls(better.keys() - ends)
        # Two qualities can be weighed against each other by one sort; of more, the rest are fixed.
        ranked = list(better)[:2]
        keys = [column for column in columns if column not in ranked]
        if not ranked:
            return table.unique()
        if len(ranked) == 1:
            column = pl.col(*ranked)
            return table.group_by(keys).agg(column.max() if better[ranked[0]] else column.min())
        falling = [False] * len(keys) + [better[column] for column in ranked]
        table = table.sort(*keys, *ranked, descending=falling)
        groups = table.select(pl.struct(keys).rle_id().cast(pl.Int64)).to_series().to_numpy()
        second = table[ranked[1]]
        second = second if second.dtype == pl.Float64 else second.cast(pl.Int64)
        best = undominated(groups, second.to_numpy(), better[ranked[1]])
        return table.filter(pl.Series(best))

    def _better(self, schema: Mapping[str, pl.DataType]) -> dict[str, bool]:
        """Columns of which an extreme value is as good as any; True for the greatest."""
        better = {"last": False, "first": True} if self.narrow else {}
        better |= {column: way > 0 for column, (_, way) in self.values.items() if way}
        return {
            column: greatest for column, greatest in better.items() if schema.get(column) in _RANKED
        }

    def keeps(self, column: str) -> bool:
        """Return whether a column is needed."""
        match column.split(" ", 1):
            case ["head", type_]:
                return type_ in self.before
            case ["tail", type_]:
                return type_ in self.after
            case ["first"]:
                return self.first
            case ["last"]:
                return self.last
            case ["bucket"] | ["after" | "before", _]:
                return True
        return column in self.values


@dataclass(frozen=True, slots=True)
class JoinStep:
    """How one part of a SEQ or AND is joined: the conditions on it, and on the join."""

    part: Pattern
    need: Need
    then: Need
    own: Sequence[Condition]  # decided by this part alone
    ready: Sequence[Condition]  # decided by it and those before it


def iterate_steps(
    pattern: And | Seq, need: Need, conditions: Sequence[Condition]
) -> Iterator[JoinStep]:
    """Yield the parts from left to right; each condition goes where it can be decided first."""
    parts, ordered = pattern.parts, isinstance(pattern, Seq)
    names = [bound(part) for part in parts]
    narrow = need.narrow and not (ordered and any(isinstance(part, Not) for part in parts))
    waiting = list(conditions)
    for place, part in enumerate(parts):
        to_come = frozenset[str]().union(*names[place + 1 :])
        elsewhere = to_come.union(*names[:place])
        own = [
            c for c in waiting if list_aliases(c) & names[place] and not list_aliases(c) & elsewhere
        ]
        joint = [c for c in waiting if c not in own]
        in_gap = ordered and isinstance(part, Not)
        waiting = joint if in_gap else [c for c in joint if list_aliases(c) & to_come]
        ready = [c for c in joint if c not in waiting]
        earlier, later = (parts[:place], parts[place + 1 :]) if ordered else ((), ())
        then = replace(
            need,
            values=_unite(need.values, list_values(waiting)),
            after=need.after | list_types(later),
            last=need.last or bool(later),
            narrow=narrow,
        )
        asked = replace(
            then,
            values=_unite(need.values, list_values(joint)),
            before=need.before | list_types(earlier),
            first=need.first or bool(earlier),
        )
        yield JoinStep(part, asked, then, own, ready)


def list_values(conditions: Iterable[Condition]) -> Values:
    """Return what conditions need: sides of comparisons if they use one element, else attributes.

    Only where a comparison itself must hold is one value of a side better than another.
    """
    found: Values = {}
    for condition in conditions:
        for comparison in _comparisons(condition):
            way = _WAYS.get(comparison.comparator, 0) if comparison is condition else 0
            for side, better in ((comparison.left, way), (comparison.right, -way)):
                if len(list_aliases(side)) == 1:
                    found = _unite(found, {repr(side): (side, better)})
                else:
                    found = _unite(found, {repr(part): (part, 0) for part in attributes(side)})
    return found


_WAYS = {"<": -1, "<=": -1, ">": 1, ">=": 1}


def _unite(ours: Values, theirs: Values) -> Values:
    """Combine both; if a value is needed in different ways, the value itself matters."""
    united = dict(ours)
    for column, (term, way) in theirs.items():
        united[column] = (term, way if ours.get(column, (term, way))[1] == way else 0)
    return united


def _comparisons(condition: Condition) -> Iterator[Comparison]:
    match condition:
        case Comparison():
            yield condition
        case Negation(part):
            yield from _comparisons(part)
        case Conjunction(left, right) | Disjunction(left, right):
            yield from _comparisons(left)
            yield from _comparisons(right)


def bound(pattern: Pattern) -> Names:
    """Return the aliases that a match of the pattern may bind for a condition around it."""
    match pattern:
        case Name(_, alias):
            return frozenset({alias} if alias else ())
        case Not() | Repeat():
            return frozenset()
        case _:
            return frozenset[str]().union(*map(bound, children(pattern)))


def list_types(parts: Iterable[Pattern]) -> Names:
    """Return the event types that matches of these patterns may use."""
    used: set[str] = set()
    pending = list(parts)
    while pending:
        part = pending.pop()
        if isinstance(part, Name):
            used.add(part.name)
        elif not isinstance(part, Not):
            pending.extend(children(part))
    return frozenset(used)


def list_aliases(condition: Condition | Term) -> Names:
    """Return the aliases that a condition uses."""
    return frozenset(attribute.alias for attribute in attributes(condition))
