"""The reference matcher: a simple definition of detection that the fast matchers must equal.

A match is the set of events it uses, with the tuples bound to names. All matches are listed, so it
is only suitable for small windows.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import inf, isfinite
from typing import Any, NamedTuple

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
from tacit.patterns.tree import And, Name, Not, Or, Pattern, Repeat, Seq, Where, Within


@dataclass(frozen=True)
class Tuple:
    """A tuple in a window: its time, the event types it gives, and its attributes."""

    time: int
    types: frozenset[str]
    attributes: Mapping[str, Any] = field(default_factory=dict)


class Event(NamedTuple):
    """One event: of the tuple at this place in the window, of this type."""

    time: int
    place: int
    type: str


class Match(NamedTuple):
    """The events of a match and the places of the tuples bound to names."""

    events: frozenset[Event] = frozenset()
    bound: frozenset[tuple[str, int]] = frozenset()

    @property
    def first(self) -> float:
        """The time of its first event."""
        return min((event.time for event in self.events), default=inf)

    @property
    def last(self) -> float:
        """The time of its last event."""
        return max((event.time for event in self.events), default=-inf)


def detect(pattern: Pattern, window: Sequence[Tuple]) -> bool:
    """Return whether the window contains a match of the pattern."""
    return bool(matches(pattern, window))


def matches(pattern: Pattern, window: Sequence[Tuple]) -> set[Match]:
    """Return every match of the pattern among the window's events."""
    match pattern:
        case Name(name, alias):
            return {
                Match(
                    frozenset({Event(tuple_.time, place, name)}),
                    frozenset({(alias, place)} if alias else ()),
                )
                for place, tuple_ in enumerate(window)
                if name in tuple_.types
            }
        case Or(parts):
            return set().union(*(matches(part, window) for part in parts))
        case And(parts):
            return {_union(chosen) for chosen in product(*(matches(p, window) for p in parts))}
        case Not(part):
            return set() if matches(part, window) else {Match()}
        case Seq(parts):
            return {_union(chosen) for chosen in _choose_in_order(parts, window)}
        case Repeat(part, least, most):
            return _several_times(matches(part, window), least, most, window)
        case Within(part, span):
            return {m for m in matches(part, window) if not m.events or m.last - m.first <= span}
        case Where(part, condition):
            return {m for m in matches(part, window) if holds(condition, m, window)}


def _choose_in_order(
    parts: Sequence[Pattern], window: Sequence[Tuple]
) -> Iterator[tuple[Match, ...]]:
    """Yield every choice of matches, one for each part that is not negated, that is in order."""
    choices: list[tuple[Match, ...]] = [()]
    absent: list[tuple[int, set[Match]]] = []
    gap = 0
    for part in parts:
        if isinstance(part, Not):
            absent.append((gap, matches(part.part, window)))
        else:
            gap += 1
            found = matches(part, window)
            choices = [
                (*c, later) for c in choices for later in found if _follows(_union(c), later)
            ]
    for chosen in choices:
        if not any(
            _lies_between(unwanted, _union(chosen[:gap]).last, _union(chosen[gap:]).first)
            for gap, found in absent
            for unwanted in found
        ):
            yield chosen


def _several_times(
    found: set[Match], least: int, most: int | None, window: Sequence[Tuple]
) -> set[Match]:
    """Return every union of `least` to `most` matches in order, at most one per event."""
    enough = max(least, sum(len(tuple_.types) for tuple_ in window))
    runs, result = {Match()}, set[Match]()
    for count in range(1, (enough if most is None else min(most, enough)) + 1):
        runs = {_union((run, later)) for run in runs for later in found if _follows(run, later)}
        result |= runs if count >= least else set()
    return result


def _follows(earlier: Match, later: Match) -> bool:
    """Equal times count as in order; no event is used twice; a match without events has no time."""
    return earlier.last <= later.first and not earlier.events & later.events


def _lies_between(match: Match, after: float, before: float) -> bool:
    return not match.events or (after < match.first and match.last < before)


def _union(chosen: Sequence[Match]) -> Match:
    return Match(
        frozenset().union(*(m.events for m in chosen)),
        frozenset().union(*(m.bound for m in chosen)),
    )


_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_COMPUTE: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "%": operator.mod,
}


def holds(condition: Condition, match: Match, window: Sequence[Tuple]) -> bool:
    """Return whether a condition is met by the tuples bound in a match; unknown is not met."""
    bound = {alias: window[place].attributes for alias, place in match.bound}
    return _truth(condition, bound) is True


def _truth(condition: Condition, bound: Mapping[str, Mapping[str, Any]]) -> bool | None:
    match condition:
        case Comparison(comparator, left, right):
            ours, theirs = _value(left, bound), _value(right, bound)
            return None if None in (ours, theirs) else bool(_COMPARE[comparator](ours, theirs))
        case Negation(part):
            truth = _truth(part, bound)
            return None if truth is None else not truth
        case Conjunction(left, right):
            truths = {_truth(left, bound), _truth(right, bound)}
            return False if False in truths else None if None in truths else True
        case Disjunction(left, right):
            truths = {_truth(left, bound), _truth(right, bound)}
            return True if True in truths else None if None in truths else False


def _value(term: Term, bound: Mapping[str, Mapping[str, Any]]) -> Any:
    """Return a term's value; None where it is unknown, infinite or not a number."""
    value: Any
    match term:
        case Constant(constant):
            return constant
        case Attribute(alias, column):
            value = bound[alias].get(column) if alias in bound else None
        case Arithmetic(sign, left, right):
            ours, theirs = _value(left, bound), _value(right, bound)
            by_zero = sign in "/%" and theirs == 0
            value = None if None in (ours, theirs) or by_zero else _COMPUTE[sign](ours, theirs)
    return None if isinstance(value, float) and not isfinite(value) else value
