"""How a private pattern's epsilon is split between counts and answers about single subjects.

Each count gets an epsilon of its own. For every private pattern, what is left for the mechanism and
the counts that depend on one of its elements spend at most its epsilon together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from tacit.patterns.tree import Pattern, elements
from tacit.spec.checks import SpecFinding

if TYPE_CHECKING:
    from tacit.spec.specification import Specification

SUBJECT_SHARE: Final = Fraction(1, 2)
"""What counts leave for answers about single subjects, of what no count has claimed."""


def count_touched_windows(types: Collection[str], panes: int) -> int:
    """Return how many windows of `panes` panes one occurrence of these event types may change.

    An occurrence has one event of each type, all within a span of one window. A single event is in
    `panes` windows. With several events, the first and the last may be a whole window apart, and
    each window that contains either may change.
    """
    return 2 * panes - 1 if len(types) > 1 else panes


@dataclass(frozen=True, slots=True)
class EpsilonSplit:
    """The epsilon of each count, and what it leaves of the private patterns' epsilons."""

    counts: dict[str, Fraction]
    """The epsilon of each count in one window, by name; 0 if it depends on nothing private."""
    left: dict[str, Fraction]
    """The share that is left for the mechanism, of each private pattern that a count depends on.

    It is 0 if no query about single subjects depends on the pattern, or on one that shares an
    element with it.
    """
    from_answers: frozenset[str] = frozenset()
    """The counts that are estimated from released answers: they spend nothing."""


def split_epsilon(
    spec: Specification,
    subject_share: Fraction = SUBJECT_SHARE,
    from_answers: Collection[str] = (),
) -> EpsilonSplit:
    """Split the epsilons of a specification.

    A count with `share` gets that share of the least epsilon that it depends on; with share 0, and
    if it is among `from_answers`, it gets nothing. The others share what is left: all of it where
    nothing else is asked, and otherwise all but the `subject_share`.
    """
    shareless = {query.name for query in spec.count_queries if query.share == 0}
    sources = find_sources(spec)
    free = {name for name in (*shareless, *from_answers) if sources.get(name) is not None}
    claims = _Claims(spec, subject_share, free)
    counts = {name: claims.counts[name] for name in spec.count_patterns}
    return EpsilonSplit(counts, claims.left, frozenset(free))


def find_sources(spec: Specification) -> dict[str, str | None]:
    """Return by count that depends on private events the query whose answers tell it, if any.

    It is the first query about single subjects with the same pattern.
    """
    private = {name for pattern in spec.private_patterns for name in elements(pattern)}
    asked: dict[Pattern, str] = {}
    for name, pattern in spec.query_patterns.items():
        asked.setdefault(pattern, name)
    return {
        name: asked.get(pattern)
        for name, pattern in spec.count_patterns.items()
        if not private.isdisjoint(elements(pattern))
    }


def find_open_counts(spec: Specification) -> list[str]:
    """Return the counts without `share` that compete with answers about single subjects."""
    claims = _Claims(spec, SUBJECT_SHARE, ())
    return [
        query.name
        for query in spec.count_queries
        if query.share is None
        and any(claims.asked[n] for n in claims.find_touched(spec.count_patterns[query.name]))
    ]


def find_overspending(spec: Specification) -> Iterator[SpecFinding]:
    """Yield the counts whose shares leave nothing for another query, or give them nothing."""
    if not any(query.share is not None for query in spec.count_queries):
        return
    sources = find_sources(spec)
    for place, query in enumerate(spec.queries):
        if query.share == 0 and sources.get(query.name, "") is None:
            message = (
                "with share 0 a count is estimated from answers, and no query about single subjects"
                " has the same pattern; add one, or give the count a share above 0"
            )
            yield SpecFinding(("queries", place, "share"), message)
    claims = _Claims(spec, SUBJECT_SHARE, ())
    reported: set[int] = set()
    for place, query in enumerate(spec.queries):
        if query.share is None:
            continue
        for number in claims.find_touched(spec.count_patterns[query.name]):
            name, needed = spec.private[number].name, claims.needs_more[number]
            claimed = claims.declared[number]
            if number in reported or claimed < 1 or (claimed == 1 and not needed):
                continue
            reported.add(number)
            rest = ", and another query depends on it too" if needed else ""
            message = (
                f"the counts that depend on {name} claim {float(claimed):.6g} of its epsilon{rest};"
                " lower their shares, so that they sum to "
                + ("less than 1" if needed else "at most 1")
            )
            yield SpecFinding(("queries", place, "share"), message)


class _Claims:
    """What each count claims of each private pattern; patterns are numbered as declared."""

    def __init__(
        self, spec: Specification, subject_share: Fraction, from_answers: Collection[str]
    ) -> None:
        panes = spec.windows.panes
        self._private = [frozenset(elements(pattern)) for pattern in spec.private_patterns]
        self._epsilons = [
            Fraction(private.epsilon) / count_touched_windows(types, panes)
            for private, types in zip(spec.private, self._private, strict=True)
        ]
        """By private pattern: what a single window may spend, if all windows spend the same."""
        self.counts: dict[str, Fraction] = {}
        self.claimed = [Fraction(0)] * len(self._private)
        """By private pattern, the share of its epsilon that is claimed so far."""
        touched = {name: self.find_touched(found) for name, found in spec.count_patterns.items()}
        asked = self.asked = _find_connected(
            self._private, [frozenset(elements(p)) for p in spec.query_patterns.values()]
        )
        """By private pattern, whether a query about single subjects needs some of its epsilon."""
        self.counts |= dict.fromkeys(from_answers, Fraction(0))
        open_counts = [
            query.name
            for query in spec.count_queries
            if query.share is None and query.name not in from_answers
        ]
        self.needs_more = [
            asked[number] or any(number in touched[name] for name in open_counts)
            for number in range(len(self._private))
        ]
        """By private pattern, whether a query without `share` depends on it."""
        for query in spec.count_queries:
            if query.share is not None:
                self._claim(query.name, touched[query.name], [Fraction(query.share)])
        self.declared = list(self.claimed)
        """By private pattern, the share of its epsilon that counts claim with `share`."""
        free = [
            max(Fraction(0), 1 - claimed) * (1 - subject_share if others else 1)
            for claimed, others in zip(self.claimed, asked, strict=True)
        ]
        for name in open_counts:
            portions = [
                free[number] / sum(number in touched[other] for other in open_counts)
                for number in touched[name]
            ]
            self._claim(name, touched[name], portions)
        self.left: dict[str, Fraction] = {}
        for number in sorted({number for found in touched.values() for number in found}):
            left = 1 - self.claimed[number] if asked[number] else Fraction(0)
            name = spec.private[number].name
            self.left[name] = min(left, self.left.get(name, left))

    def find_touched(self, pattern: Pattern) -> list[int]:
        """Return the private patterns that share an element with a pattern."""
        found = {*elements(pattern)}
        return [number for number, types in enumerate(self._private) if types & found]

    def _claim(self, name: str, touched: Sequence[int], portions: Sequence[Fraction]) -> None:
        """Give a count the least of its portions; one portion applies to all patterns."""
        whole = portions if len(portions) == len(touched) else [*portions] * len(touched)
        found = [
            self._epsilons[number] * portion for number, portion in zip(touched, whole, strict=True)
        ]
        self.counts[name] = min(found, default=Fraction(0))
        for number in touched:
            self.claimed[number] += self.counts[name] / self._epsilons[number]


def _find_connected(
    private: Sequence[frozenset[str]], queries: Sequence[frozenset[str]]
) -> list[bool]:
    """Return which private patterns share an element with a query, or with one that does so."""
    found = [any(types & asked for asked in queries) for types in private]
    while True:
        reached = frozenset().union(
            *(types for types, own in zip(private, found, strict=True) if own)
        )
        wider = [own or bool(types & reached) for types, own in zip(private, found, strict=True)]
        if wider == found:
            return found
        found = wider
