"""Policies: which private patterns apply to which subjects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tacit.patterns.tree import elements
from tacit.spec.epsilon_split import count_touched_windows
from tacit.spec.specification import Private, Specification

if TYPE_CHECKING:  # importing it would load the compiler, which policies do not need
    from tacit.events.subjects import Subjects

_NONE: Final[Mapping[str, Fraction]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class PrivatePattern:
    """A private pattern as mechanisms use it: its elements and its epsilon."""

    name: str
    elements: frozenset[str]
    epsilon: Fraction
    """For one subject and window; with sliding windows, for one subject and occurrence."""

    def count_windows(self, panes: int) -> int:
        """Return how many windows of `panes` panes one occurrence may change."""
        return count_touched_windows(self.elements, panes)


@dataclass(frozen=True, slots=True)
class Policy:
    """The private patterns of a group of subjects. Which subject has which policy is public."""

    patterns: tuple[PrivatePattern, ...]

    @property
    def private(self) -> frozenset[str]:
        """The event types in any of the private patterns; all others are public."""
        return frozenset().union(*(pattern.elements for pattern in self.patterns))

    def scale(self, factor: Fraction, factors: Mapping[str, Fraction] = _NONE) -> Policy:
        """Return the policy with every epsilon multiplied by `factor`.

        `factors` has other factors for some private patterns, by name. A pattern with the factor 0
        is left out: only counts depend on it.
        """
        return Policy(
            tuple(
                replace(pattern, epsilon=pattern.epsilon * factors.get(pattern.name, factor))
                for pattern in self.patterns
                if factors.get(pattern.name, factor)
            )
        )

    def per_window(self, panes: int) -> Policy:
        """Return the policy with the epsilons of a single window, for windows of `panes` panes.

        All windows that an occurrence may change then spend the pattern's epsilon together.
        """
        return Policy(
            tuple(
                replace(pattern, epsilon=pattern.epsilon / pattern.count_windows(panes))
                for pattern in self.patterns
            )
        )


def declared_patterns(spec: Specification) -> list[PrivatePattern]:
    """Return the private patterns of a specification, in its order."""
    return [declare_pattern(spec, number) for number in range(len(spec.private))]


def declare_pattern(spec: Specification, number: int) -> PrivatePattern:
    """Return one of the private patterns of a specification."""
    private, resolved = spec.private[number], spec.private_patterns[number]
    return PrivatePattern(private.name, frozenset(elements(resolved)), Fraction(private.epsilon))


class Policies:
    """The policies of a specification. Policy 0 is for subjects that no pattern names."""

    def __init__(self, spec: Specification) -> None:
        patterns = declared_patterns(spec)
        chosen: dict[frozenset[int], int] = {spec.applying(None): 0}
        self._named: dict[str, int] = {}
        for named in (private.subjects or () for private in spec.private):
            for subject in named:
                self._named[subject] = chosen.setdefault(spec.applying(subject), len(chosen))
        self.policies: tuple[Policy, ...] = tuple(
            Policy(tuple(patterns[number] for number in sorted(numbers))) for numbers in chosen
        )
        self.declared: tuple[tuple[Private, ...], ...] = tuple(
            tuple(spec.private[number] for number in sorted(numbers)) for numbers in chosen
        )
        """The declarations of each policy."""

    def __len__(self) -> int:
        return len(self.policies)

    @property
    def named(self) -> Mapping[str, int]:
        """The policy number of each subject that a pattern names."""
        return self._named

    def assign(self, subjects: Subjects) -> NDArray[np.int32]:
        """Return the policy number of each registered subject, by slot."""
        numbers = np.zeros(len(subjects), dtype=np.int32)
        slots = subjects.slots(pa.array(list(self._named), pa.large_string()))
        known = slots >= 0
        numbers[slots[known]] = np.fromiter(self._named.values(), np.int32)[known]
        return numbers
