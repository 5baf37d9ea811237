"""Components: private patterns that must be protected together, and the queries about them.

Private patterns belong together if something that a query asks depends on both, directly or
by way of others. A query over several components splits if it is an AND or an OR of parts that
each ask about one of them; a query that does not split makes one component of those it spans,
and so does any query if that component is small.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tacit.patterns.residuals import Variable, boolean_form, private_atoms, residual
from tacit.patterns.ternary import all_of, any_of
from tacit.patterns.tree import And, Not, Or, Pattern, elements
from tacit.privacy.policies import Policy, PrivatePattern

MOST_JOINED: Final = 4
"""Components that a query spans are joined if together they have no more variables than these."""


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

    def under(self, policy: Policy) -> Component:
        """The same where private patterns of the same elements have other epsilons."""
        # Of two that are alike the stricter one stays.
        strict = sorted(policy.patterns, key=lambda pattern: -pattern.epsilon)
        known = {(pattern.name, pattern.elements): pattern for pattern in strict}
        return replace(
            self, patterns=tuple(known[pattern.name, pattern.elements] for pattern in self.patterns)
        )

    def tables(self, signals: NDArray[np.bool_]) -> list[NDArray[np.bool_]]:
        """Each part in a context: its value for each choice of its variables."""
        values = np.concatenate([[False, True], signals])
        return [values[list(part.cofactors)] for part in self.parts]


@dataclass(frozen=True, slots=True)
class Question:
    """A query as its parts: all of them must hold, or any."""

    parts: tuple[tuple[int, int], ...]
    """Component and number of the part there; none if the query touches nothing private."""
    every: bool = True


@dataclass(frozen=True)
class Exposure:
    """What a policy's private events may change in the answers to queries."""

    components: tuple[Component, ...]
    questions: tuple[Question, ...]

    def under(self, policy: Policy) -> Exposure:
        """The same where private patterns of the same names have other epsilons."""
        return replace(self, components=tuple(part.under(policy) for part in self.components))


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
    _join_small(plain, groups, private)
    split = [_split(query, groups) for query in plain]
    names = dict.fromkeys(group for parts, _ in split for group in parts)
    builders = {group: _ComponentBuilder(groups.members(group)) for group in names}
    questions = []
    for number, (parts, every) in enumerate(split):
        places = [
            (list(names).index(group), builders[group].add(number, pattern, private))
            for group, pattern in parts.items()
        ]
        questions.append(Question(tuple(places), every))
    return Exposure(tuple(builder.build() for builder in builders.values()), tuple(questions))


class _Groups:
    """Private patterns in groups that grow together."""

    def __init__(self, patterns: Sequence[PrivatePattern]) -> None:
        self._patterns = patterns
        self._group = list(range(len(patterns)))
        self._having: dict[str, list[int]] = {}
        for number, pattern in enumerate(patterns):
            for name in pattern.elements:
                self._having.setdefault(name, []).append(number)

    def touched(self, pattern: Pattern) -> list[int]:
        """The groups whose private patterns may change what this pattern finds."""
        found = {n for name in elements(pattern) for n in self._having.get(name, ())}
        return list(dict.fromkeys(self._group[number] for number in sorted(found)))

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
    """Join what each part of a query spans, so that it splits; whether that changed nothing."""
    settled = True
    for part in _top(query)[0]:
        span = groups.touched(part)
        groups.join(span)
        settled &= len(span) <= 1
    return settled


def _join_small(queries: Sequence[Pattern], groups: _Groups, private: frozenset[str]) -> None:
    """Join components that a query spans if they are small: together they do better."""
    atoms = dict.fromkeys(atom for query in queries for atom in private_atoms(query, private))
    sizes = Counter(groups.touched(atom)[0] for atom in atoms)
    for query in queries:
        span = groups.touched(query)
        together = sum(sizes[group] for group in span)
        if len(span) > 1 and together <= MOST_JOINED:
            groups.join(span)
            sizes[groups.touched(query)[0]] = together


def _top(query: Pattern) -> tuple[tuple[Pattern, ...], bool]:
    """The parts of an AND or an OR, and whether all are needed; a NOT around it is moved inside."""
    core, negated = query, False
    while isinstance(core, Not):
        core, negated = core.part, not negated
    every = isinstance(core, Or) == negated
    return tuple(_flat(query, every)), every


def _flat(pattern: Pattern, every: bool, negated: bool = False) -> Iterator[Pattern]:
    """The parts of an AND (or an OR), at any depth: NOT of an OR is an AND of what is not."""
    match pattern:
        case Not(part):
            yield from _flat(part, every, not negated)
        case And(parts) | Or(parts) if every == (isinstance(pattern, And) != negated):
            for part in parts:
                yield from _flat(part, every, negated)
        case _:
            yield Not(pattern) if negated else pattern


def _split(query: Pattern, groups: _Groups) -> tuple[dict[int, Pattern], bool]:
    """The part of a query for each group that it touches; public parts go with the first."""
    touched = groups.touched(query)
    if len(touched) <= 1:
        return dict.fromkeys(touched, query), True
    parts, every = _top(query)
    found: dict[int, list[Pattern]] = {group: [] for group in touched}
    for part in parts:
        found[next(iter(groups.touched(part)), touched[0])].append(part)
    combine = all_of if every else any_of
    joined = {group: combine(inner) for group, inner in found.items()}
    return {group: part for group, part in joined.items() if not isinstance(part, bool)}, every


class _ComponentBuilder:
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
