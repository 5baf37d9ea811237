"""Three values: what a window's known events imply about a pattern, whatever the others do.

`underapproximate` and `overapproximate` rewrite a pattern into one over the known events alone.
For every choice of unknown events (any number, times and attributes):

- each match of `underapproximate(p)` among the known events is a match of `p` among all events;
- each match of `p` among all events contains a match of `overapproximate(p)` among the known ones:
  the same events or fewer, and no others.

Why this goes through every operator: unknown events only ever drop out of a match. Fewer events
stay in order, stay distinct and stay within a span; they lie in every gap that the whole lies in.
Under `NOT` the two are swapped. The one thing that dropping events can break is the gap of a
`NOT` in a `SEQ`, which grows when a part beside it loses events: then `overapproximate` drops that
`NOT`.

A pattern of presence alone (names, `AND`, `OR`, `NOT`) is decided exactly. Elsewhere a pattern
may be reported as open although it is decided: `SEQ(a, NOT x, b)` with `x` unknown, for example,
where `a` and `b` have equal times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import IntEnum
from itertools import product
from typing import NamedTuple

from tacit.patterns.aliases import find_bound_aliases
from tacit.patterns.conditions import (
    Comparison,
    Condition,
    Conjunction,
    Disjunction,
    Negation,
    attributes,
)
from tacit.patterns.reference import Tuple, detect
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
    walk,
)

MAX_BOTH_WAYS = 4
"""How many unknown elements that occur both negated and not are tried in all combinations."""


class Ternary(IntEnum):
    """The status of a pattern in a window."""

    FALSE = 0
    OPEN = 1
    TRUE = 2


def find_status(pattern: Pattern, unknown: AbstractSet[str], window: Sequence[Tuple]) -> Ternary:
    """Return the pattern's status in a window, whose unknown events are not looked at."""
    if _holds(underapproximate(pattern, unknown), window):
        return Ternary.TRUE
    return Ternary.OPEN if _holds(overapproximate(pattern, unknown), window) else Ternary.FALSE


def underapproximate(pattern: Pattern, unknown: AbstractSet[str]) -> Pattern | bool:
    """If this is detected, the pattern is detected whatever the unknown events do.

    >>> underapproximate(Or("a", And("b", "x")), {"x"})
    a
    >>> underapproximate(Seq("a", Not("x")), {"x"})
    False
    """
    return make_and(
        case if isinstance(case, bool) else _surely(case, unknown)
        for case in _cases(pattern, unknown)
    )


def overapproximate(pattern: Pattern, unknown: AbstractSet[str]) -> Pattern | bool:
    """If this is not detected, the pattern is not detected whatever the unknown events do.

    >>> overapproximate(Seq("a", Not("b"), "x", "c"), {"x"})
    SEQ(a, c)
    """
    return make_or(
        case if isinstance(case, bool) else _possibly(case, unknown).pattern
        for case in _cases(pattern, unknown)
    )


def drop_conditions(pattern: Pattern, unknown: AbstractSet[str]) -> Pattern:
    """Return the pattern where comparisons of unknown events' attributes count as met.

    >>> from tacit.patterns.language import parse_pattern
    >>> pattern = parse_pattern("SEQ(a p, b q) WHERE q.n > p.n AND p.n > 2")
    >>> drop_conditions(pattern, {"b"})
    SEQ(a p, b q) WHERE p.n > 2
    """
    match pattern:
        case Name():
            return pattern
        case And(parts):
            return And(*(drop_conditions(part, unknown) for part in parts))
        case Or(parts):
            return Or(*(drop_conditions(part, unknown) for part in parts))
        case Seq(parts):
            return Seq(*(drop_conditions(part, unknown) for part in parts))
        case Not(part):
            return Not(drop_conditions(part, unknown))
        case Repeat(part, least, most):
            return Repeat(drop_conditions(part, unknown), least, most)
        case Within(part, span):
            return Within(drop_conditions(part, unknown), span)
        case Where(part, condition):
            names = [node for node in walk(part) if isinstance(node, Name)]
            hidden = {node.alias for node in names if node.name in unknown}
            inner = drop_conditions(part, unknown)
            looser = _loosen(condition, find_bound_aliases(part) - hidden, wanted=True)
            return inner if looser is None else Where(inner, looser)


def _surely(pattern: Pattern, unknown: AbstractSet[str]) -> Pattern | bool:
    match pattern:
        case Name(name):
            return False if name in unknown else pattern
        case And(parts):
            return make_and(_surely(part, unknown) for part in parts)
        case Or(parts):
            return make_or(_surely(part, unknown) for part in parts)
        case Not(part):
            return make_not(_possibly(part, unknown).pattern)
        case Seq(parts):
            return _seq((part, _surely(part, unknown)) for part in parts)
        case _:
            return _list_around(pattern, _surely(pattern.part, unknown))


class _PossibleMatch(NamedTuple):
    """A rewritten pattern, and whether its matches are complete: none lost an event."""

    pattern: Pattern | bool
    whole: bool


def _possibly(pattern: Pattern, unknown: AbstractSet[str]) -> _PossibleMatch:
    if isinstance(pattern, Not):
        return _PossibleMatch(make_not(_surely(pattern.part, unknown)), True)
    below = [_possibly(part, unknown) for part in children(pattern)]
    whole = all(part.whole for part in below)
    match pattern:
        case Name(name):
            return _PossibleMatch(True, False) if name in unknown else _PossibleMatch(pattern, True)
        case And():
            return _PossibleMatch(make_and(part.pattern for part in below), whole)
        case Or():
            # If one branch is always met, the matches of the others need not be distinguished.
            made = make_or(part.pattern for part in below)
            return _PossibleMatch(made, whole and made is not True)
        case Seq(parts):
            kept = [
                (part, made.pattern)
                for place, (part, made) in enumerate(zip(parts, below, strict=True))
                if not isinstance(part, Not) or _keeps_its_gap(parts, below, place)
            ]
            return _PossibleMatch(_seq(kept), whole)
        case Where(_, condition):
            return _PossibleMatch(_loosely_where(below[0].pattern, condition), whole)
        case _:
            return _PossibleMatch(_list_around(pattern, below[0].pattern), whole)


def _keeps_its_gap(parts: Sequence[Pattern], made: Sequence[_PossibleMatch], place: int) -> bool:
    """Return whether the gap of the NOT at this place is unchanged without unknown events."""
    beside = list(zip(parts, made, strict=True))
    return _keeps_events(reversed(beside[:place])) and _keeps_events(beside[place + 1 :])


def _keeps_events(beside: Iterable[tuple[Pattern, _PossibleMatch]]) -> bool:
    """Return whether the nearest part that always has events, and those before it, lose none."""
    for part, made in beside:
        if not made.whole:
            return False
        if _has_time(part):
            return True
    return True


def _has_time(pattern: Pattern) -> bool:
    """Return whether every match has an event."""
    match pattern:
        case Name():
            return True
        case Not():
            return False
        case Or(parts):
            return all(_has_time(part) for part in parts)
        case _:
            return any(_has_time(part) for part in children(pattern))


def _loosely_where(part: Pattern | bool, condition: Condition) -> Pattern | bool:
    if isinstance(part, bool):
        return part
    looser = _loosen(condition, find_bound_aliases(part), wanted=True)
    return part if looser is None else Where(part, looser)


def _loosen(condition: Condition, known: AbstractSet[str], *, wanted: bool) -> Condition | None:
    """Return the condition on known elements for the result to be `wanted`, or None."""
    match condition:
        case Comparison():
            if not {found.alias for found in attributes(condition)} <= known:
                return None
            return condition if wanted else Negation(condition)
        case Negation(part):
            return _loosen(part, known, wanted=not wanted)
        case Conjunction(left, right) | Disjunction(left, right):
            sides = [_loosen(side, known, wanted=wanted) for side in (left, right)]
            needed = [side for side in sides if side is not None]
            if isinstance(condition, Conjunction) == wanted:
                return Conjunction(*needed) if len(needed) == 2 else next(iter(needed), None)
            return Disjunction(*needed) if len(needed) == 2 else None


def _cases(pattern: Pattern, unknown: AbstractSet[str]) -> list[Pattern | bool]:
    """Return a pattern of presence for each combination of elements that occur both ways.

    An unknown element that is always negated, or never, is at its worst in a single case.
    """
    if not all(isinstance(node, Name | And | Or | Not) for node in walk(pattern)):
        return [pattern]
    found = set(_polarities(pattern))
    both = sorted(name for name in unknown if {(name, True), (name, False)} <= found)
    if len(both) > MAX_BOTH_WAYS:
        return [pattern]
    choices = product((False, True), repeat=len(both))
    return [_substitute(pattern, dict(zip(both, choice, strict=True))) for choice in choices]


def _polarities(pattern: Pattern, positive: bool = True) -> Iterator[tuple[str, bool]]:
    if isinstance(pattern, Name):
        yield pattern.name, positive
    for part in children(pattern):
        yield from _polarities(part, positive != isinstance(pattern, Not))


def _substitute(pattern: Pattern, present: Mapping[str, bool]) -> Pattern | bool:
    """Return a pattern of presence where the presence of some elements is given."""
    match pattern:
        case Name(name):
            return present.get(name, pattern)
        case And(parts):
            return make_and(_substitute(part, present) for part in parts)
        case Or(parts):
            return make_or(_substitute(part, present) for part in parts)
        case Not(part):
            return make_not(_substitute(part, present))
        case _:
            raise AssertionError("only patterns of presence are split into cases")


def make_and(parts: Iterable[Pattern | bool]) -> Pattern | bool:
    """Build an AND without the parts that are always met."""
    made = list(parts)
    if any(part is False for part in made):
        return False
    needed = [part for part in made if not isinstance(part, bool)]
    return And(*needed) if len(needed) > 1 else next(iter(needed), True)


def make_or(parts: Iterable[Pattern | bool]) -> Pattern | bool:
    """OR, without the parts that are never met."""
    made = list(parts)
    if any(part is True for part in made):
        return True
    needed = [part for part in made if not isinstance(part, bool)]
    return Or(*needed) if len(needed) > 1 else next(iter(needed), False)


def make_not(part: Pattern | bool) -> Pattern | bool:
    """NOT of what may be met always or never."""
    return not part if isinstance(part, bool) else Not(part)


def _seq(made: Iterable[tuple[Pattern, Pattern | bool]]) -> Pattern | bool:
    """SEQ of what was made of its parts, without those that are always met.

    A part that has become a NOT refers to the whole window. It must not be directly in the SEQ,
    where it would refer to a gap.
    """
    needed: list[Pattern] = []
    for part, result in made:
        if result is False:
            return False
        if not isinstance(result, bool):
            moved = isinstance(result, Not) and not isinstance(part, Not)
            needed.append(And(result) if moved else result)
    return Seq(*needed) if needed else True


def _list_around(pattern: Repeat | Within | Where, part: Pattern | bool) -> Pattern | bool:
    if isinstance(part, bool):
        return part
    match pattern:
        case Repeat(_, least, most):
            return Repeat(part, least, most)
        case Within(_, span):
            return Within(part, span)
        case Where(_, condition):
            return Where(part, condition)


def _holds(pattern: Pattern | bool, window: Sequence[Tuple]) -> bool:
    return pattern if isinstance(pattern, bool) else detect(pattern, window)
