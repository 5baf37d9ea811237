"""Components: private patterns that must be protected together, and the queries about them.

Private patterns belong together if something that a query asks depends on both, directly or
by way of others. A query over several components splits if it is an AND or an OR of parts that
each ask about one of them; a query that does not split makes one component of those it spans.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tacit.patterns.residuals import Variable, boolean_form, private_atoms, residual
from tacit.patterns.ternary import all_of, any_of
from tacit.patterns.tree import And, Not, Or, Pattern, elements
from tacit.privacy.policies import Policy, PrivatePattern


@dataclass(frozen=True, slots=True)
class Part:
    """What a query asks about one component."""

    query: int
    pattern: Pattern
    variables: tuple[int, ...]
    """The numbers of its variables in the component."""
    cofactors: tuple[int, ...]
    """For each choice of its variables: 0 is false, 1 true, 2 + n the component's signal n."""


@dataclass(frozen=True)
class Component:
    """Private patterns that belong together, and all that is asked about them.

    `signals` are patterns over public events; what they say in a window is its context.
    """

    patterns: tuple[PrivatePattern, ...]
    variables: tuple[Variable, ...]
    parts: tuple[Part, ...]
    signals: tuple[Pattern, ...]

    @cached_property
    def changes(self) -> tuple[frozenset[int], ...]:
        """For each private pattern, the variables that its elements may change."""
        return tuple(
            frozenset(
                number
                for number, variable in enumerate(self.variables)
                if not variable.elements.isdisjoint(pattern.elements)
            )
            for pattern in self.patterns
        )

    def scaled(self, share: Fraction) -> Component:
        """The same with a share of every private pattern's epsilon."""
        return replace(self, patterns=Policy(self.patterns).scaled(share).patterns)

    def tables(self, signals: NDArray[np.bool_]) -> list[NDArray[np.bool_]]:
        """Each part in a context: its value for each choice of its variables."""
        values = np.concatenate([[False, True], signals])
        return [values[list(part.cofactors)] for part in self.parts]


@dataclass(frozen=True, slots=True)
class Question:
    """A query as its parts: all of them must hold, or any, and the whole may be negated."""

    parts: tuple[tuple[int, int], ...]
    """Component and number of the part there; none if the query touches nothing private."""
    every: bool = True
    negated: bool = False


@dataclass(frozen=True)
class Exposure:
    """What a policy's private events may change in the answers to queries."""

    components: tuple[Component, ...]
    questions: tuple[Question, ...]

    def under(self, components: tuple[Component, ...]) -> Exposure:
        """The same with other epsilons."""
        return replace(self, components=components)


def exposure(policy: Policy, queries: Sequence[Pattern]) -> Exposure:
    """Find the components of a policy and the parts of each query in them."""
    private = policy.private
    plain = [boolean_form(query) for query in queries]
    groups = _Groups(policy.patterns)
    for query in plain:
        for atom in private_atoms(query, private):
            groups.join(groups.touched(atom))
    while not all(_settle(query, groups) for query in plain):
        pass
    split = [_split(query, groups) for query in plain]
    names = dict.fromkeys(group for parts, *_ in split for group in parts)
    builders = {group: _Builder(groups.members(group)) for group in names}
    questions = []
    for number, (parts, every, negated) in enumerate(split):
        places = [
            (list(names).index(group), builders[group].add(number, pattern, private))
            for group, pattern in parts.items()
        ]
        questions.append(Question(tuple(places), every, negated))
    return Exposure(tuple(builder.build() for builder in builders.values()), tuple(questions))


class _Groups:
    """Private patterns in groups that grow together."""

    def __init__(self, patterns: Sequence[PrivatePattern]) -> None:
        self._patterns = patterns
        self._group = list(range(len(patterns)))

    def touched(self, pattern: Pattern) -> list[int]:
        """The groups whose private patterns may change what this pattern finds."""
        found = frozenset(elements(pattern))
        touching = (
            self._group[number]
            for number, private in enumerate(self._patterns)
            if not private.elements.isdisjoint(found)
        )
        return list(dict.fromkeys(touching))

    def join(self, groups: Iterable[int]) -> None:
        joined = set(groups)
        if len(joined) > 1:
            first = min(joined)
            self._group = [first if group in joined else group for group in self._group]

    def members(self, group: int) -> tuple[PrivatePattern, ...]:
        return tuple(
            pattern
            for pattern, own in zip(self._patterns, self._group, strict=True)
            if own == group
        )


def _settle(query: Pattern, groups: _Groups) -> bool:
    """Join what a query spans if it does not split; whether that changed nothing."""
    parts, _, _ = _top(query)
    spans = [groups.touched(part) for part in parts]
    if all(len(span) <= 1 for span in spans):
        return True
    groups.join(group for span in spans for group in span)
    return False


def _top(query: Pattern) -> tuple[tuple[Pattern, ...], bool, bool]:
    """The parts of an AND or an OR, whether all are needed, and whether it is negated."""
    negated = False
    while isinstance(query, Not):
        query, negated = query.part, not negated
    match query:
        case And(parts):
            return parts, True, negated
        case Or(parts):
            return parts, False, negated
        case _:
            return (query,), True, negated


def _split(query: Pattern, groups: _Groups) -> tuple[dict[int, Pattern], bool, bool]:
    """The part of a query for each group that it touches; public parts go with the first."""
    touched = groups.touched(query)
    if len(touched) <= 1:
        return dict.fromkeys(touched, query), True, False
    parts, every, negated = _top(query)
    found: dict[int, list[Pattern]] = {group: [] for group in touched}
    for part in parts:
        found[next(iter(groups.touched(part)), touched[0])].append(part)
    combine = all_of if every else any_of
    joined = {group: combine(inner) for group, inner in found.items()}
    return (
        {group: part for group, part in joined.items() if not isinstance(part, bool)},
        every,
        negated,
    )


class _Builder:
    """Collects what is asked about a component."""

    def __init__(self, patterns: tuple[PrivatePattern, ...]) -> None:
        self._patterns = patterns
        self._variables: dict[Variable, int] = {}
        self._signals: dict[Pattern, int] = {}
        self._parts: list[Part] = []

    def add(self, query: int, pattern: Pattern, private: frozenset[str]) -> int:
        """Add a part and give its number."""
        left = residual(pattern, private)
        variables = tuple(
            self._variables.setdefault(variable, len(self._variables))
            for variable in left.variables
        )
        cofactors = tuple(
            int(cofactor)
            if isinstance(cofactor, bool)
            else 2 + self._signals.setdefault(cofactor, len(self._signals))
            for cofactor in left.cofactors
        )
        self._parts.append(Part(query, pattern, variables, cofactors))
        return len(self._parts) - 1

    def build(self) -> Component:
        return Component(
            self._patterns, tuple(self._variables), tuple(self._parts), tuple(self._signals)
        )
