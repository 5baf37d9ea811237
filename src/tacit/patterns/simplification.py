"""Simplify patterns into an equivalent form.

The rest of a pattern depends on a match only by its first and last time and by the events it uses
at these two times. A match that starts no earlier, ends no later and uses no more there is at least
as good, except that a `NOT` next to it may prefer one that reaches further: then the first or last
time must be equal. Each rule below preserves the matches of a pattern in this sense. Patterns with
a WHERE are not changed, since they also depend on attributes.

After `simplify` a pattern has no aliases; the only repetition left is `p+`; a SEQ contains no SEQ
that could be merged into it; and what does not depend on order (absences in the whole window) is
outside of SEQ and WITHIN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from tacit.errors import PatternError
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

T = TypeVar("T")

MOST_ELEMENTS = 100_000


def fold(
    pattern: Pattern,
    combine: Callable[[Pattern, list[T]], T],
    parts: Callable[[Pattern], Sequence[Pattern]] = children,
) -> T:
    """Combine from the leaves up; without recursion, so that any depth of nesting works."""
    pending: list[tuple[Pattern, int | None]] = [(pattern, None)]
    done: list[T] = []
    while pending:
        node, count = pending.pop()
        below = parts(node) if count is None else ()
        if below:
            pending.append((node, len(below)))
            pending.extend((part, None) for part in reversed(below))
        else:
            first = len(done) - (count or 0)
            done[first:] = [combine(node, done[first:])]
    return done[0]


def simplify(pattern: Pattern) -> Pattern:
    """Return a simpler pattern that is detected in the same windows.

    >>> from tacit.patterns.tree import Name, Not, Seq
    >>> simplify(Seq(Seq("a", Name("b").repeat(2, 5)), Seq(Not("x")), "c"))
    AND(NOT x, SEQ(a, b, b, c))
    """
    return fold(pattern, _simplify_node)


def holds_condition(pattern: Pattern) -> bool:
    """Return whether there is a WHERE in it."""
    return any(isinstance(node, Where) for node in walk(pattern))


def may_be_empty(pattern: Pattern) -> bool:
    """Return whether it can have a match without events, such as an absence in the whole window."""

    def combine(node: Pattern, below: list[bool]) -> bool:
        match node:
            case Name():
                return False
            case Not():
                return True
            case Or():
                return any(below)
            case _:
                return all(below)

    return fold(pattern, combine)


def _simplify_node(node: Pattern, below: list[Pattern]) -> Pattern:
    match node:
        case Name(name):
            return Name(name)
        case Not():
            return Not(below[0])
        case And():
            return _all(below)
        case Or():
            return _any(below)
        case Seq(parts):
            return _sequence([isinstance(part, Not) for part in parts], below)
        case Repeat(_, least, most):
            return _repetition(below[0], least, most)
        case Within(_, span):
            return limit_span(below[0], span)
        case Where():
            raise AssertionError("a pattern with a condition is not simplified")


def _all(parts: Iterable[Pattern]) -> Pattern:
    flat = [inner for part in parts for inner in (part.parts if isinstance(part, And) else (part,))]
    return flat[0] if len(flat) == 1 else And(*flat)


def _any(parts: Iterable[Pattern]) -> Pattern:
    flat = dict.fromkeys(
        inner for part in parts for inner in (part.parts if isinstance(part, Or) else (part,))
    )
    return next(iter(flat)) if len(flat) == 1 else Or(*flat)


def _sequence(negated: Sequence[bool], below: Sequence[Pattern]) -> Pattern:
    """Build a SEQ with inner SEQs merged and window-wide absences moved out."""
    outside: list[Pattern] = []
    kept: list[tuple[bool, Pattern]] = []
    for absence, part in zip(negated, below, strict=True):
        if absence:
            kept.append((True, part))
            continue
        apart, rest = _split(part)
        outside += apart
        kept += [(False, rest)] if rest is not None else []
    places = [place for place, (absence, _) in enumerate(kept) if not absence]
    flat: list[Pattern] = []
    for place, (absence, part) in enumerate(kept):
        inner = isinstance(part, Seq) and _opens(part, place == places[0], place == places[-1])
        flat += part.parts if not absence and inner and isinstance(part, Seq) else [part]
    if not places or len(flat) == 1:
        return _all(dict.fromkeys([*outside, *flat]))
    return _all(dict.fromkeys([*outside, Seq(*flat)]))


def _split(part: Pattern) -> tuple[list[Pattern], Pattern | None]:
    """Split a pattern into the part that depends only on the whole window, and the rest."""
    if _only_empty(part):
        return [part], None
    if not isinstance(part, And):
        return [], part
    apart = [inner for inner in part.parts if _only_empty(inner)]
    return apart, _all(inner for inner in part.parts if not _only_empty(inner))


def _only_empty(pattern: Pattern) -> bool:
    """Return whether no match of it has events."""
    return fold(pattern, lambda node, below: not isinstance(node, Name) and all(below), _inside)


def _inside(node: Pattern) -> tuple[Pattern, ...]:
    return () if isinstance(node, Not) else children(node)


def _opens(inner: Seq, first: bool, last: bool) -> bool:
    """Return whether an inner SEQ may be replaced by its parts.

    Its absences must keep their extent: one at its edge extends to the window's edge, so the SEQ
    must be there, and no part next to an absence may be empty and so extend it.
    """
    absences = [isinstance(part, Not) for part in inner.parts]
    if not any(absences):
        return True
    return (
        (first or not absences[0])
        and (last or not absences[-1])
        and not any(may_be_empty(p) for p in inner.parts if not isinstance(p, Not))
    )


def _repetition(part: Pattern, least: int, most: int | None) -> Pattern:
    """Twice or more: the first, the last and enough between have the same first and last time."""
    if _only_empty(part) or (least, most) == (1, 1):
        return part
    if least == 1:
        return part if isinstance(part, Repeat) else Repeat(part, 1, None)
    if least * (len(part.parts) if isinstance(part, Seq) else 1) > MOST_ELEMENTS:
        raise PatternError(
            f"a pattern asks for at most {MOST_ELEMENTS} events in a row; "
            f"this one repeats a repetition for more: lower the counts"
        )
    return _sequence([False] * least, [part] * least)


def limit_span(part: Pattern, span: int) -> Pattern:
    """Return a simplified pattern within a time, in plain form."""
    match part:
        case Within(inner, tighter):
            return Within(inner, min(span, tighter))
        case Name():
            return part
        case Or(parts):
            return _any(limit_span(inner, span) for inner in parts)
    apart, rest = _split(part)
    if rest is None:
        return part
    return _all([*apart, limit_span(rest, span)]) if apart else Within(part, span)
