"""Chains: event types in order, with absences between them, perhaps within a time.

Most ordered patterns are chains, or the OR of a few: `SEQ(a, NOT x, OR(b, c), d{3})
WITHIN 10 min`. A chain is matched by an automaton that is in state k after its k-th element, so
one pass over a window's tuples is enough (`bits` and `origins`).

An event is a tuple and a type, and equal times count as in order, so at one time a chain may
advance over several elements if there are enough distinct events. Two elements have the same set of
types and share events, or disjoint sets and use different events. A chain has only these two kinds,
so counting per set is exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from typing import TypeAlias

from tacit.patterns.tree import And, Name, Not, Or, Pattern, Repeat, Seq, Within

MOST_CHAINS = 24
DEEPEST = 16

Types: TypeAlias = frozenset[str]
_Element: TypeAlias = tuple[bool, Types]  # whether it is an absence, and of which types
_Line: TypeAlias = tuple[_Element, ...]


@dataclass(frozen=True, slots=True)
class Chain:
    """One event of each of these sets of types, in order.

    `gaps[k]` must be absent before element k, strictly after the one before it; the last
    of them after the last element. Two elements are the same set or have no type in common.
    """

    elements: tuple[Types, ...]
    gaps: tuple[Types, ...]
    span: int | None

    @property
    def types(self) -> Types:
        """All event types that it uses."""
        return frozenset().union(*self.elements, *self.gaps)

    @property
    def repeats(self) -> bool:
        """Whether two elements use the same events."""
        return len(set(self.elements)) < len(self.elements)

    @property
    def repeats_choice(self) -> bool:
        """Whether an element that may be of several types occurs twice."""
        return self.repeats and any(
            len(types) > 1 and self.elements.count(types) > 1 for types in set(self.elements)
        )


def find_chains(pattern: Pattern) -> list[Chain] | None:
    """Return chains of which one must match for the pattern to match; None if it is not a chain."""
    if isinstance(pattern, Within):
        span: int | None = pattern.span
        pattern = pattern.part
    else:
        span = None
    parts = list(pattern.parts) if isinstance(pattern, Seq) else [pattern]
    inner = [place for place, part in enumerate(parts) if not isinstance(part, Not)]
    first, last = inner[0], inner[-1] + 1
    before = [_absence(part) for part in parts[:first] if isinstance(part, Not)]
    after = [_absence(part) for part in parts[last:] if isinstance(part, Not)]
    lines = _lines(Seq(*parts[first:last]), bool(before), bool(after), DEEPEST)
    if lines is None or None in before or None in after:
        return None
    edges = [tuple(absence for absence in side if absence) for side in (before, after)]
    separate = [line for whole in lines for line in _separate((*edges[0], *whole, *edges[1]))]
    return None if len(separate) > MOST_CHAINS else [_chain(line, span) for line in separate]


def _lines(pattern: Pattern, left: bool, right: bool, depth: int) -> list[_Line] | None:
    """Return the ways to match a pattern as a line of elements and absences.

    `left` and `right` say whether an absence is next to it, so that a match that reaches further
    there may be better; only if both are true does `p+` differ from `p`.
    """
    if depth == 0:
        return None
    lines: list[_Line] | None = None
    match pattern:
        case Name(name):
            return [((False, frozenset({name})),)]
        case Or(parts):
            names = frozenset(part.name for part in parts if isinstance(part, Name))
            others = [part for part in parts if not isinstance(part, Name)]
            below = [_lines(part, left, right, depth - 1) for part in others]
            lines = [((False, names),)] if names else []
            for inner in below:
                lines = None if lines is None or inner is None else lines + inner
        case And(parts):
            names = frozenset(part.name for part in parts if isinstance(part, Name))
            if 1 < len(parts) == len(names) <= 4:
                kinds: list[_Element] = [(False, frozenset({name})) for name in sorted(names)]
                lines = list(permutations(kinds))
        case Repeat(part):
            lines = _lines(part, left, right, depth - 1)
            if lines is not None and left and right and len(lines) <= 4:
                lines = lines + _join_lines(lines, lines)
            elif left and right:
                lines = None
        case Seq(parts):
            lines = _lines_in_order(parts, left, right, depth)
    return lines if lines is not None and len(lines) <= MOST_CHAINS else None


def _lines_in_order(
    parts: Sequence[Pattern], left: bool, right: bool, depth: int
) -> list[_Line] | None:
    """Return the lines of a SEQ, which must not have absences at its edges."""
    if not parts or isinstance(parts[0], Not) or isinstance(parts[-1], Not):
        return None
    absent = [left, *(isinstance(part, Not) for part in parts), right]
    lines: list[_Line] = [()]
    for place, part in enumerate(parts):
        if isinstance(part, Not):
            absence = _absence(part)
            below: list[_Line] | None = None if absence is None else [(absence,)]
        else:
            below = _lines(part, absent[place], absent[place + 2], depth - 1)
        if below is None or len(lines) * len(below) > MOST_CHAINS:
            return None
        lines = _join_lines(lines, below)
    return lines


def _absence(part: Not) -> _Element | None:
    """Return the absence of event types; None if it is the absence of something else."""
    unwanted = part.part.parts if isinstance(part.part, Or) else (part.part,)
    names = frozenset(inner.name for inner in unwanted if isinstance(inner, Name))
    return (True, names) if names and len(names) == len(unwanted) else None


def _join_lines(earlier: Iterable[_Line], later: Iterable[_Line]) -> list[_Line]:
    return [first + second for first, second in product(earlier, later)]


def _separate(line: _Line) -> list[_Line]:
    """Split elements that share some but not all of their types into single types."""
    sets = {types for absence, types in line if not absence}
    mixed = {types for types in sets if any(types & other and types != other for other in sets)}
    lines: list[_Line] = [()]
    for absence, types in line:
        if not absence and types in mixed:
            choices: list[_Line] = [((False, frozenset({name})),) for name in sorted(types)]
        else:
            choices = [((absence, types),)]
        lines = _join_lines(lines, choices)
        if len(lines) > MOST_CHAINS:
            return lines
    return lines


def _chain(line: _Line, span: int | None) -> Chain:
    elements: list[Types] = []
    gaps: list[Types] = [frozenset()]
    for absence, types in line:
        if absence:
            gaps[-1] |= types
        else:
            elements.append(types)
            gaps.append(frozenset())
    return Chain(tuple(elements), tuple(gaps), span)
