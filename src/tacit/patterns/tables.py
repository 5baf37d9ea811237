"""A pattern's matches as tables, each made by joins of the tables of its parts.

A table has a column `bucket` and, if outer parts need them: `first` and `last` (times), attributes
(`alias.column`), and for event types that another part of a `SEQ` might use too, the rows of those
events at either end (`head type`, `tail type`: in order, two parts can share events only where one
ends and the other begins).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tacit.patterns.conditions import Attribute, Condition, attributes
from tacit.patterns.expressions import (
    build_expression,
    build_value,
    iterate_conjuncts,
    normalize_column,
)
from tacit.patterns.joins import Ints, find_ranges, iterate_pairs
from tacit.patterns.needs import (
    NEVER,
    Need,
    iterate_steps,
    list_aliases,
    list_types,
    list_values,
)
from tacit.patterns.simplification import may_be_empty
from tacit.patterns.tree import And, Name, Not, Or, Pattern, Repeat, Seq, Where, Within

Conditions: TypeAlias = Sequence[Condition]

_LATEST = pl.lit(NEVER, dtype=pl.Int64)
_EARLIEST = pl.lit(-NEVER, dtype=pl.Int64)
_ENDS = ("first", "last", "head", "tail")
_NO_TUPLES = pl.DataFrame(schema={"bucket": pl.Int64, "row": pl.Int64, "time": pl.Int64})
_NO_ROWS = pl.lit([], dtype=pl.List(pl.Int64))


class TooManyMatches(Exception):  # noqa: N818 - a signal to divide the buckets, no error
    """A table became too long for memory, and there are several buckets to divide."""


@dataclass(frozen=True, slots=True)
class Search:
    """The tuples of some buckets, and the tables of the matches among them."""

    tuples: Mapping[str, pl.DataFrame]
    streams: Mapping[str, str]
    numbers: Mapping[str, int]
    buckets: pl.Series
    most_pairs: int
    most_rows: int

    def matches(self, pattern: Pattern, need: Need, conditions: Conditions = ()) -> pl.DataFrame:
        """Return the pattern's matches that meet the conditions, with the needed columns."""
        match pattern:
            case Name():
                return self._events(pattern, need, conditions)
            case Or(parts):
                return need.distil(_stack([self.matches(p, need, conditions) for p in parts]))
            case And() | Seq():
                return self._combined(pattern, need, conditions)
            case Not(part):
                found = self.matches(part, Need()).select("bucket")
                absent = self._empty().join(found, on="bucket", how="anti")
                return need.distil(_filter(absent, conditions))
            case Repeat():
                return need.distil(_filter(self._repeated(pattern, need), conditions))
            case Within(part, span):
                bounded = replace(need, first=True, last=True, span=min(span, need.span))
                table = self.matches(part, bounded, conditions)
                return need.distil(table.filter(pl.col("last") - pl.col("first") <= span))
            case Where(part, condition):
                return self.matches(part, need, [*conditions, *iterate_conjuncts(condition)])

    def _empty(self) -> pl.DataFrame:
        """Return the empty match in every bucket."""
        return pl.DataFrame({"bucket": self.buckets}).with_columns(first=_LATEST, last=_EARLIEST)

    def _of_type(self, name: str) -> pl.DataFrame:
        """Return the tuples that give events of a type."""
        word, bit = divmod(self.numbers[name], 64)
        has_type = pl.col(f"mask{word}") & pl.lit(1 << bit, dtype=pl.UInt64) != 0
        tuples = self.tuples.get(self.streams[name])
        return _NO_TUPLES if tuples is None else tuples.filter(has_type)

    def _events(self, name: Name, need: Need, conditions: Conditions) -> pl.DataFrame:
        tuples = self._of_type(name.name)
        looked_at = (need.values | list_values(conditions)).values()
        terms = [term for term, _ in looked_at if list_aliases(term) == {name.alias}]
        columns = {repr(a): f"@{a.column}" for term in terms for a in attributes(term)}
        # A stream that sent nothing has no columns: nulls, which meet no condition.
        missing = [c for c in columns.values() if c not in tuples.columns]
        tuples = tuples.with_columns(pl.lit(None).alias(column) for column in missing)
        ends = {f"head {name.name}": need.before, f"tail {name.name}": need.after}
        table = tuples.select(
            "bucket",
            *(pl.concat_list("row").alias(end) for end in ends if name.name in ends[end]),
            *(
                normalize_column(pl.col(c), tuples.schema[c]).alias(alias)
                for alias, c in columns.items()
            ),
            first="time",
            last="time",
        )
        computed = [term for term in terms if not isinstance(term, Attribute)]
        table = table.with_columns(build_value(t, table.schema).alias(repr(t)) for t in computed)
        table = _filter(table, conditions)
        # Events at different times are never the same: there is nothing to weigh.
        if need.first and need.last and any(repr(term) in need.values for term in terms):
            return table.select(c for c in table.columns if need.keeps(c))
        return need.distil(table)

    def _combined(self, pattern: And | Seq, need: Need, conditions: Conditions) -> pl.DataFrame:
        """Join the parts' tables from left to right, with each condition as early as possible."""
        ordered = isinstance(pattern, Seq)
        table: pl.DataFrame | None = None
        gaps: dict[int, Pattern] = {}
        for place, step in enumerate(iterate_steps(pattern, need, conditions)):
            if ordered and isinstance(step.part, Not):
                gaps[place] = step.part.part
                if table is not None:
                    table = _add_gap(table, place, pl.col("last"), _LATEST)
                continue
            found = self.matches(step.part, step.need, step.own)
            # Where a part may be empty, a gap before it reaches on to the next one.
            closing = {} if may_be_empty(step.part) else gaps
            if table is not None:
                table = self._closing(table, closing)
                table = self._joined(table, found, step.then, step.ready, ordered=ordered)
            else:
                for gap in gaps:
                    found = _add_gap(found, gap, _EARLIEST, pl.col("first"))
                table = step.then.distil(_filter(self._without(found, closing), step.ready))
            gaps = {} if closing else gaps
        if table is None:
            table = _filter(self._empty(), conditions)
            for gap in gaps:
                table = _add_gap(table, gap, _EARLIEST, _LATEST)
        return need.distil(self._without(table, gaps))

    def _without(self, table: pl.DataFrame, gaps: Mapping[int, Pattern]) -> pl.DataFrame:
        """Return the matches whose gaps contain no match of the negated patterns."""
        for gap, part in gaps.items():
            free = self._soonest(table, gap, part) >= table[f"before {gap}"].to_numpy()
            table = table.filter(pl.Series(free)).drop(f"after {gap}", f"before {gap}")
        return table

    def _closing(self, table: pl.DataFrame, gaps: Mapping[int, Pattern]) -> pl.DataFrame:
        """Return the matches with the latest time at which the next part may begin."""
        for gap, part in gaps.items():
            soonest = pl.Series(self._soonest(table, gap, part))
            so_far = pl.col("until") if "until" in table.columns else _LATEST
            is_open = pl.col(f"before {gap}") == NEVER
            until = pl.min_horizontal(so_far, pl.when(is_open).then(soonest).otherwise(_LATEST))
            table = (
                table.with_columns(until=until)
                .filter(is_open | (soonest >= pl.col(f"before {gap}")))
                .drop(f"after {gap}", f"before {gap}")
            )
        return table

    def _soonest(self, table: pl.DataFrame, gap: int, part: Pattern) -> Ints:
        """Return for each match, when the first match of `part` ends that begins in its gap."""
        unwanted = self.matches(part, Need(first=True, last=True)).sort("bucket", "first")
        ends = unwanted.select(pl.col("last").cum_min(reverse=True).over("bucket"))["last"]
        start, stop = find_ranges(
            table["bucket"].to_numpy(),
            table[f"after {gap}"].to_numpy() + 1,
            np.full(table.height, NEVER),
            unwanted["bucket"].to_numpy(),
            unwanted["first"].to_numpy(),
        )
        return np.where(start < stop, np.append(ends.to_numpy(), NEVER)[start], NEVER)

    def _joined(
        self,
        left: pl.DataFrame,
        right: pl.DataFrame,
        need: Need,
        conditions: Conditions,
        *,
        ordered: bool,
    ) -> pl.DataFrame:
        """Return every pair in a bucket; if `ordered`, only in order and without shared events."""
        found, right = _partners(left, right, need.span, ordered=ordered)
        looked_at = set(list_values(conditions))
        looked_at |= {"first"} if any(c.startswith("before ") for c in left.columns) else set()
        ours, theirs = (
            side.select(c for c in side.columns if need.keeps(c) or c in looked_at)
            for side in (left, right)
        )
        marked = {c: f"{c}'" for c in theirs.columns if c.split(" ")[0] in _ENDS}
        theirs = theirs.drop("bucket").rename(marked)

        def pieces() -> Iterator[pl.DataFrame]:
            for ours_at, theirs_at in iterate_pairs(found, self.most_pairs):
                if ordered:
                    apart = _find_disjoint(left, right, ours_at, theirs_at)
                    ours_at, theirs_at = ours_at[apart], theirs_at[apart]
                both = pl.concat([ours[ours_at], theirs[theirs_at]], how="horizontal")
                yield _merge_pairs(_filter(both, conditions))

        return self._collected(pieces(), need)

    def _collected(self, pieces: Iterable[pl.DataFrame], need: Need) -> pl.DataFrame:
        """Concatenate the pieces; drop superfluous matches before the table grows too long."""
        kept: list[pl.DataFrame] = []
        for piece in pieces:
            kept.append(need.distil(piece))
            if sum(table.height for table in kept) > self.most_rows:
                kept = [need.distil(pl.concat(kept))]
                if len(self.buckets) > 1 and 2 * kept[0].height > self.most_rows:
                    raise TooManyMatches
        return need.distil(pl.concat(kept))

    def _repeated(self, repeat: Repeat, need: Need) -> pl.DataFrame:
        part, least, most = repeat.part, repeat.least, repeat.most
        if most == 1 or isinstance(part, Not):
            return self.matches(part, need)
        if isinstance(part, Name) and part.name not in need.before | need.after:
            return self._runs(part.name, least, need)
        used = list_types((part,))
        both = replace(need, before=need.before | used, after=need.after | used)
        once = self.matches(part, replace(both, first=True, last=True))
        step = replace(need, after=both.after, last=True)
        table = step.distil(once)
        for _ in range(least - 1):
            shorter, table = table, self._joined(table, once, step, (), ordered=True)
            if _same(shorter, table):
                break
        # A longer one has no use: without one between its ends it spans the same time. Only a
        # single one may span less, and where narrow matches are no better that can be worse.
        if least == 1 and not need.narrow:
            twice = self._joined(table, once, step, (), ordered=True)
            table = pl.concat([table, twice.select(table.columns)])
        return table

    def _runs(self, type_: str, least: int, need: Need) -> pl.DataFrame:
        """Return matches of at least `least` events of a type, in order of time."""
        events = self._of_type(type_).select("bucket", first="time").sort("bucket", "first")
        buckets = events["bucket"].to_numpy()
        stop = find_ranges(buckets, buckets, buckets, buckets, buckets)[1]
        start = np.arange(len(buckets)) + (least - 1)
        if need.narrow:
            stop = np.minimum(stop, start + 1)
        found = np.stack((start, np.maximum(start, stop)))
        runs = (
            events[ours].with_columns(events["first"][theirs].alias("last"))
            for ours, theirs in iterate_pairs(found, self.most_pairs)
        )
        return self._collected(runs, need)


def _filter(table: pl.DataFrame, conditions: Conditions) -> pl.DataFrame:
    for condition in conditions:
        table = table.filter(build_expression(condition, table.schema))
    return table


def _stack(tables: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """One table; a match that lacks a column has no such attribute, or no such event."""
    table = pl.concat(tables, how="diagonal_relaxed")
    rows = [c for c, dtype in table.schema.items() if dtype == pl.List]
    return table.with_columns(pl.col(c).fill_null(_NO_ROWS) for c in rows)


def _add_gap(table: pl.DataFrame, gap: int, after: pl.Expr, before: pl.Expr) -> pl.DataFrame:
    return table.with_columns(after.alias(f"after {gap}"), before.alias(f"before {gap}"))


def _partners(
    left: pl.DataFrame, right: pl.DataFrame, span: int, *, ordered: bool
) -> tuple[Ints, pl.DataFrame]:
    """Return for each match on the left the range of sorted matches that can follow it."""
    if not ordered:
        right = right.sort("bucket")
        ours, theirs = left["bucket"].to_numpy(), right["bucket"].to_numpy()
        return find_ranges(ours, ours, ours, theirs, theirs), right
    right = right.sort("bucket", "first")
    latest = left["until"].to_numpy() if "until" in left.columns else np.full(left.height, NEVER)
    # An empty match, sorted behind all others, can follow however late.
    if span < NEVER and right["first"].max() != NEVER:
        latest = np.minimum(latest, left["first"].to_numpy() + span)
    found = find_ranges(
        left["bucket"].to_numpy(),
        left["last"].to_numpy(),
        latest,
        right["bucket"].to_numpy(),
        right["first"].to_numpy(),
    )
    return found, right


def _find_disjoint(
    left: pl.DataFrame, right: pl.DataFrame, ours: Ints, theirs: Ints
) -> NDArray[np.bool_]:
    """Return which pairs of matches in order have no event in common."""
    apart = np.ones(len(ours), np.bool_)
    types = [c.removeprefix("tail ") for c in left.columns if c.startswith("tail ")]
    types = [type_ for type_ in types if f"head {type_}" in right.columns]
    if types:
        touch = np.flatnonzero(left["last"].to_numpy()[ours] == right["first"].to_numpy()[theirs])
        for type_ in types:
            tails, heads = left[f"tail {type_}"][ours[touch]], right[f"head {type_}"][theirs[touch]]
            apart[touch] &= (tails.list.set_intersection(heads).list.len() == 0).to_numpy()
    return apart


def _merge_pairs(both: pl.DataFrame) -> pl.DataFrame:
    """Two matches side by side (the right one's ends are marked ') as one."""
    columns = set(both.columns)
    made = []
    if {"first", "first'"} <= columns:
        made.append(pl.min_horizontal("first", "first'").alias("first"))
        made += [_end(c, columns, "first", pl.Expr.lt) for c in _ends(columns, "head")]
    if {"last", "last'"} <= columns:
        made.append(pl.max_horizontal("last", "last'").alias("last"))
        made += [_end(c, columns, "last", pl.Expr.gt) for c in _ends(columns, "tail")]
    made += [pl.min_horizontal(c, "first'").alias(c) for c in columns if c.startswith("before ")]
    return both.with_columns(made)


def _ends(columns: Iterable[str], end: str) -> set[str]:
    return {c.removesuffix("'") for c in columns if c.startswith(f"{end} ")}


def _end(
    column: str, columns: set[str], time: str, further: Callable[[pl.Expr, pl.Expr], pl.Expr]
) -> pl.Expr:
    """Return the events at one end of two joined matches: of the outer one, or of both."""
    ours, theirs = (pl.col(c) if c in columns else _NO_ROWS for c in (column, f"{column}'"))
    our_time, their_time = pl.col(time), pl.col(f"{time}'")
    return (
        pl.when(further(our_time, their_time))
        .then(ours)
        .when(further(their_time, our_time))
        .then(theirs)
        .otherwise(ours.list.set_union(theirs).list.sort())
        .alias(column)
    )


def _same(left: pl.DataFrame, right: pl.DataFrame) -> bool:
    """Return whether two tables, each without repeated rows, have the same rows."""
    both = left.join(right, on=left.columns, how="semi", nulls_equal=True)
    return both.height == left.height == right.height
