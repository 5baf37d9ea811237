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


def split_epsilon(spec: Specification) -> EpsilonSplit:
    """Split the epsilons of a specification.

    A count with `share` gets that share of the least epsilon that it depends on. The others share
    what is left, all of it where nothing else is asked, and half of it otherwise.
    """
    claims = _Claims(spec)
    return EpsilonSplit({name: claims.counts[name] for name in spec.count_patterns}, claims.left)


def find_overspending(spec: Specification) -> Iterator[SpecFinding]:
    """Yield the counts whose shares leave nothing for another query."""
    if not any(query.share is not None for query in spec.count_queries):
        return
    claims = _Claims(spec)
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

    def __init__(self, spec: Specification) -> None:
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
        asked = _connected(
            self._private, [frozenset(elements(p)) for p in spec.query_patterns.values()]
        )
        open_counts = [query.name for query in spec.count_queries if query.share is None]
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
            max(Fraction(0), 1 - claimed) * (1 - SUBJECT_SHARE if others else 1)
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


def _connected(private: Sequence[frozenset[str]], queries: Sequence[frozenset[str]]) -> list[bool]:
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
