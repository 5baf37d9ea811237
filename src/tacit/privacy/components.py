"""Components: private patterns that must be protected together, and the queries about them.

Two private patterns belong to the same component if some part of a query depends on both,
directly or through other patterns. A query over several components is split if it is an AND or
an OR of parts that each depend on one component. A query that cannot be split merges the
components it spans. Components that a query spans are also merged if the result is small.

Whether a query is open is decided once, with all private types of the policy unknown. A part of a
query that the other parts decide (an AND with a part that is certainly false) is decided too: its
component has nothing to draw for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.patterns.residuals import (
    Variable,
    find_private_atoms,
    find_residual,
    lift_booleans,
    list_atoms,
)
from tacit.patterns.ternary import make_and, make_or
from tacit.patterns.tree import And, Not, Or, Pattern, elements
from tacit.privacy.policies import Policy, PrivatePattern

MOST_JOINED: Final = 4
"""Components that a query spans are merged if together they have at most this many variables."""

PatternKey: TypeAlias = tuple[str, frozenset[str]]
"""The name and the elements of a private pattern."""


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a query that depends on one component."""

    query: int
    pattern: Pattern
    variables: tuple[int, ...]
    """The numbers of its variables in the component."""
    cofactors: tuple[int, ...]
    """For each choice of its variables: 0 is false, 1 true, 2 + n the component's signal n."""


@dataclass(frozen=True)
class Component:
    """Private patterns that are protected together, and the parts of queries about them.

    `signals` are patterns over public events; their values in a window are its context.
    """

    patterns: tuple[PrivatePattern, ...]
    variables: tuple[Variable, ...]
    parts: tuple[Part, ...]
    signals: tuple[Pattern, ...]

    @cached_property
    def changes(self) -> tuple[frozenset[int], ...]:
        """For each private pattern, the variables that its elements may change."""
        return tuple(self.find_changed(pattern.elements) for pattern in self.patterns)

    def find_changed(self, elements: frozenset[str]) -> frozenset[int]:
        """Return the variables that some elements may change."""
        return frozenset(
            number
            for number, variable in enumerate(self.variables)
            if not variable.elements.isdisjoint(elements)
        )

    def with_epsilons(self, policy: Policy) -> Component:
        """Return the component with the epsilons of `policy`, matched by name and elements."""
        return self.with_patterns(_key_patterns(policy))

    def with_patterns(self, known: Mapping[PatternKey, PrivatePattern]) -> Component:
        """Return the component with other epsilons for its patterns."""
        return replace(
            self, patterns=tuple(known[pattern.name, pattern.elements] for pattern in self.patterns)
        )

    def tables(self, signals: NDArray[np.bool_]) -> list[NDArray[np.bool_]]:
        """Return for each part its value for each choice of its variables, in a context."""
        values = np.concatenate([[False, True], signals])
        return [values[list(part.cofactors)] for part in self.parts]


@dataclass(frozen=True, slots=True)
class Question:
    """A query as a conjunction (`every`) or disjunction of parts."""

    parts: tuple[tuple[int, int], ...]
    """Component and number of each part; empty if the query depends on nothing private."""
    every: bool = True


@dataclass(frozen=True)
class Exposure:
    """How a policy's private events may change the answers to queries."""

    components: tuple[Component, ...]
    questions: tuple[Question, ...]

    def replace_patterns(self, others: Mapping[PrivatePattern, PrivatePattern]) -> Exposure:
        """Return the exposure with other private patterns of the same elements."""
        return replace(
            self,
            components=tuple(
                replace(part, patterns=tuple(others[pattern] for pattern in part.patterns))
                for part in self.components
            ),
        )

    def with_epsilons(self, policy: Policy) -> Exposure:
        """Return the exposure with the epsilons of `policy`."""
        known = _key_patterns(policy)
        return replace(
            self, components=tuple(part.with_patterns(known) for part in self.components)
        )


def _key_patterns(policy: Policy) -> dict[PatternKey, PrivatePattern]:
    """Return the patterns by name and elements; of two equal ones the smaller epsilon counts."""
    strict = sorted(policy.patterns, key=lambda pattern: -pattern.epsilon)
    return {(pattern.name, pattern.elements): pattern for pattern in strict}


def find_exposure(policy: Policy, queries: Sequence[Pattern]) -> Exposure:
    """Find the components of a policy and the parts of each query in them."""
    return split_queries(policy, queries).build()


def split_queries(policy: Policy, queries: Sequence[Pattern]) -> SplitQueries:
    """Split queries into parts, each about one component."""
    private = policy.private
    plain = [lift_booleans(query) for query in queries]
    groups = _Groups(policy.patterns)
    atoms = dict.fromkeys(atom for query in plain for atom in find_private_atoms(query, private))
    for atom in atoms:
        groups.join(groups.find(atom))
    while not all(_settle(query, groups) for query in plain):
        pass
    _join_small(plain, groups, Counter(groups.find(atom)[0] for atom in atoms))
    split = [_decide_together(*_split(query, groups), private) for query in plain]
    found = dict.fromkeys(group for parts, _ in split for group in parts)
    return SplitQueries(private, {group: groups.members(group) for group in found}, split)


@dataclass(frozen=True, slots=True)
class SplitQueries:
    """The parts of queries by component, before their cofactors are computed."""

    private: frozenset[str]
    patterns: Mapping[int, tuple[PrivatePattern, ...]]
    """The private patterns of each component, by its key."""
    queries: list[tuple[dict[int, Pattern], bool]]
    """For each query its parts, by component, and whether all of them are needed."""

    def list_large(self, most: int) -> set[PrivatePattern]:
        """Return the private patterns of components with more than `most` variables."""
        atoms: dict[int, set[Pattern]] = {group: set() for group in self.patterns}
        for parts, _ in self.queries:
            for group, part in parts.items():
                atoms[group].update(list_atoms(part, self.private))
        return {
            pattern
            for group, own in atoms.items()
            if len(own) > most
            for pattern in self.patterns[group]
        }

    def build(self) -> Exposure:
        """Compute the cofactors of each part."""
        names = {group: number for number, group in enumerate(self.patterns)}
        builders = [_ComponentBuilder(patterns) for patterns in self.patterns.values()]
        questions = []
        for number, (parts, every) in enumerate(self.queries):
            places = [
                (names[group], builders[names[group]].add(number, pattern, self.private))
                for group, pattern in parts.items()
            ]
            questions.append(Question(tuple(places), every))
        return Exposure(tuple(builder.build() for builder in builders), tuple(questions))


class _Groups:
    """Groups of private patterns, which can be merged."""

    def __init__(self, patterns: Sequence[PrivatePattern]) -> None:
        self._patterns = patterns
        self._group = list(range(len(patterns)))
        self._having: dict[str, list[int]] = {}
        self._affecting: dict[int, tuple[Pattern, list[int]]] = {}
        for number, pattern in enumerate(patterns):
            for name in pattern.elements:
                self._having.setdefault(name, []).append(number)

    def find(self, pattern: Pattern) -> list[int]:
        """Return the groups whose private patterns may change whether this pattern matches."""
        known = self._affecting.get(id(pattern))
        if known is None:
            found = {n for name in elements(pattern) for n in self._having.get(name, ())}
            known = self._affecting[id(pattern)] = pattern, sorted(found)
        return list(dict.fromkeys([self._group[number] for number in known[1]]))

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
    """Merge the groups that each part of a query spans; return whether nothing changed."""
    settled = True
    for part in _top(query)[0]:
        span = groups.find(part)
        groups.join(span)
        settled &= len(span) <= 1
    return settled


def _join_small(queries: Sequence[Pattern], groups: _Groups, sizes: Counter[int]) -> None:
    """Merge small components that a query spans: one channel for both gives better quality."""
    for query in queries:
        span = groups.find(query)
        together = sum(sizes[group] for group in span)
        if len(span) > 1 and together <= MOST_JOINED:
            groups.join(span)
            sizes[groups.find(query)[0]] = together


def _top(query: Pattern) -> tuple[tuple[Pattern, ...], bool]:
    """Return the parts of an AND or OR, and whether all are needed; NOT is moved inside."""
    core, negated = query, False
    while isinstance(core, Not):
        core, negated = core.part, not negated
    every = isinstance(core, Or) == negated
    return tuple(_flat(query, every)), every


def _flat(pattern: Pattern, every: bool, negated: bool = False) -> Iterator[Pattern]:
    """Yield the parts of an AND (or OR) at any depth, by De Morgan's laws below a NOT."""
    match pattern:
        case Not(part):
            yield from _flat(part, every, not negated)
        case And(parts) | Or(parts) if every == (isinstance(pattern, And) != negated):
            for part in parts:
                yield from _flat(part, every, negated)
        case _:
            yield Not(pattern) if negated else pattern


def _split(query: Pattern, groups: _Groups) -> tuple[dict[int, Pattern], bool]:
    """Return the part of a query for each group that it spans; public parts go to the first."""
    spanned = groups.find(query)
    if len(spanned) <= 1:
        return dict.fromkeys(spanned, query), True
    parts, every = _top(query)
    found: dict[int, list[Pattern]] = {group: [] for group in spanned}
    for part in parts:
        found[next(iter(groups.find(part)), spanned[0])].append(part)
    combine = make_and if every else make_or
    joined = {group: combine(inner) for group, inner in found.items()}
    return {group: part for group, part in joined.items() if not isinstance(part, bool)}, every


def _decide_together(
    parts: dict[int, Pattern], every: bool, private: frozenset[str]
) -> tuple[dict[int, Pattern], bool]:
    """Let each part be open only where the other parts leave the query open.

    A part of an AND is joined with what the others may at most be, a part of an OR with what they
    are at least. These are patterns over public events, and change no answer.
    """
    if len(parts) == 1:
        return parts, every
    bounds = {group: _bound(part, every, private) for group, part in parts.items()}
    for group, bound in bounds.items():
        if bound is not every and isinstance(bound, bool):  # this part decides the query
            return {group: parts[group]}, every
    combine = make_and if every else make_or
    joined = {}
    for group, part in parts.items():
        whole = combine([part, *(bound for other, bound in bounds.items() if other != group)])
        assert not isinstance(whole, bool)
        joined[group] = whole
    return joined, every


def _bound(part: Pattern, every: bool, private: frozenset[str]) -> Pattern | bool:
    """Return where a part may be true (`every`), or where it is true, whatever is private."""
    cofactors = dict.fromkeys(find_residual(part, private).cofactors)
    return make_or(cofactors) if every else make_and(cofactors)


class _ComponentBuilder:
    """Collects the parts of queries about one component."""

    def __init__(self, patterns: tuple[PrivatePattern, ...]) -> None:
        self._patterns = patterns
        self._variables: dict[Variable, int] = {}
        self._signals: dict[Pattern, int] = {}
        self._parts: list[Part] = []

    def add(self, query: int, pattern: Pattern, private: frozenset[str]) -> int:
        """Add a part and return its number."""
        left = find_residual(pattern, private)
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
