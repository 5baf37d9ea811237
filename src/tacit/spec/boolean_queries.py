"""Boolean queries: what is matched in each window of each subject, one or several for each query.

A query for a pattern is one boolean query. A query with several possible answers becomes one for
each: `activity=home` asks whether `home` is the first pattern of `activity` that is detected, and
`stops>=2` whether `stops` has two matches or more. The names of queries have neither `=` nor `>`,
so the name of a boolean query says which query and which answer it belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from tacit.patterns.tree import And, Not, Pattern, Repeat

if TYPE_CHECKING:
    from tacit.spec.specification import Query

NONE: Final = "none"
"""The answer of `one_of` if none of its patterns is detected."""
MOST_VALUES: Final = 64
"""The largest number of patterns in `one_of`, and the largest `up_to`."""
_EVEN: Final = 0.5
"""The weight of precision for one of several answers."""


@dataclass(frozen=True, slots=True)
class BooleanQuery:
    """A pattern that is answered with yes or no for each subject and window."""

    name: str
    query: str
    """The query that it belongs to."""
    consumer: str
    pattern: Pattern
    """Over event types only."""
    alpha: float
    """The weight of precision in its quality."""
    quality: float | None = None
    """The quality that the consumer needs; of several values, how often the value is right."""

    @property
    def whole(self) -> bool:
        """Whether it is all that its query asks."""
        return self.name == self.query


def list_boolean_queries(
    query: Query, resolve: Callable[[Pattern], Pattern]
) -> Iterator[BooleanQuery]:
    """Yield the boolean queries of a query; `resolve` replaces the names of patterns."""
    name, consumer = query.name, query.consumer
    if query.pattern is not None:
        pattern = resolve(query.pattern)
        yield BooleanQuery(name, name, consumer, pattern, query.alpha, query.quality)
    elif query.one_of is not None:
        before: list[Pattern] = []
        for value, given in query.one_of.items():
            own = resolve(given)
            first = And(own, *before) if before else own
            yield BooleanQuery(f"{name}={value}", name, consumer, first, _EVEN, query.quality)
            before.append(Not(own))
        yield BooleanQuery(f"{name}={NONE}", name, consumer, And(*before), _EVEN, query.quality)
    elif query.times is not None and query.up_to is not None:
        own = resolve(query.times)
        for times in range(1, query.up_to + 1):
            pattern = own if times == 1 else Repeat(own, times, None)
            yield BooleanQuery(f"{name}>={times}", name, consumer, pattern, _EVEN, query.quality)


class QueryColumns(NamedTuple):
    """A query, and where its boolean queries are in a list."""

    name: str
    kind: Literal["detected", "one_of", "times"]
    first: int
    """The number of its first boolean query."""
    values: tuple[str, ...]
    """Its possible answers: for `one_of` one for each boolean query, for `times` one more."""

    @property
    def columns(self) -> slice:
        """The numbers of its boolean queries."""
        width = len(self.values) - (self.kind == "times")
        return slice(self.first, self.first + max(1, width))


def find_query(name: str) -> str:
    """Return the query that a boolean query belongs to, by its name.

    >>> find_query("at=home"), find_query("stops>=2"), find_query("jam")
    ('at', 'stops', 'jam')
    """
    return name.partition(">=" if ">=" in name else "=")[0]


def group_queries(names: Sequence[str]) -> list[QueryColumns]:
    """Return the queries that boolean queries belong to, by their names.

    >>> [(one.name, one.values) for one in group_queries(["jam", "at=home", "at=none", "n>=1"])]
    [('jam', ()), ('at', ('home', 'none')), ('n', ('0', '1'))]
    """
    found: list[QueryColumns] = []
    for number, name in enumerate(names):
        query = find_query(name)
        kind: Literal["detected", "one_of", "times"] = "detected"
        values: tuple[str, ...] = ()
        if query != name:
            value = name[len(query) :]
            kind = "times" if value.startswith(">") else "one_of"
            values = (value.lstrip(">="),)
        if values and found and found[-1].name == query:
            last = found.pop()
            found.append(last._replace(values=last.values + values))
        else:
            none = ("0",) if kind == "times" else ()
            found.append(QueryColumns(query, kind, number, none + values))
    return found
