"""Policies: which private patterns apply to which subjects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tacit.patterns.tree import elements
from tacit.spec.specification import Specification

if TYPE_CHECKING:  # it would bring the compiler along, which a look at policies does not need
    from tacit.events.subjects import Subjects


@dataclass(frozen=True, slots=True)
class PrivatePattern:
    """A private pattern as mechanisms see it: its elements, and what may be given away."""

    name: str
    elements: frozenset[str]
    epsilon: Fraction
    """For each subject and window; where windows slide, for each subject and occurrence."""

    def windows(self, panes: int) -> int:
        """How many windows of so many panes one occurrence may change.

        An occurrence has an event of each element, all of them inside one window. A single event
        is in `panes` windows. The first and the last of several may be a whole window apart, and
        each window that holds either is changed.
        """
        return 2 * panes - 1 if len(self.elements) > 1 else panes


@dataclass(frozen=True, slots=True)
class Policy:
    """The private patterns of a group of subjects. Who has which policy is public knowledge."""

    patterns: tuple[PrivatePattern, ...]

    @property
    def private(self) -> frozenset[str]:
        """The event types in any of the private patterns; all others are public."""
        return frozenset().union(*(pattern.elements for pattern in self.patterns))

    def scaled(self, factor: Fraction) -> Policy:
        """The same patterns, each with so many times its epsilon."""
        return Policy(
            tuple(
                PrivatePattern(pattern.name, pattern.elements, pattern.epsilon * factor)
                for pattern in self.patterns
            )
        )

    def per_window(self, panes: int) -> Policy:
        """The same patterns, each with what one window of so many panes may give away.

        All windows that an occurrence may change then give away its epsilon together.
        """
        return Policy(
            tuple(
                replace(pattern, epsilon=pattern.epsilon / pattern.windows(panes))
                for pattern in self.patterns
            )
        )


def declared_patterns(spec: Specification) -> list[PrivatePattern]:
    """The private patterns of a specification, in its order."""
    return [
        PrivatePattern(private.name, frozenset(elements(resolved)), Fraction(private.epsilon))
        for private, resolved in zip(spec.private, spec.private_patterns, strict=True)
    ]


class Policies:
    """The policies of a specification: number 0 is that of all subjects that no one names."""

    def __init__(self, spec: Specification) -> None:
        patterns = declared_patterns(spec)
        having = [
            None if private.subjects is None else frozenset(private.subjects)
            for private in spec.private
        ]
        chosen: dict[frozenset[int], int] = {_applying(having, None): 0}
        self._named: dict[str, int] = {}
        for named in (private.subjects or () for private in spec.private):
            for subject in named:
                self._named[subject] = chosen.setdefault(_applying(having, subject), len(chosen))
        self.policies: tuple[Policy, ...] = tuple(
            Policy(tuple(patterns[number] for number in sorted(numbers))) for numbers in chosen
        )

    def __len__(self) -> int:
        return len(self.policies)

    def of(self, subjects: Subjects) -> NDArray[np.int32]:
        """The number of the policy of each registered subject, in the order of their slots."""
        numbers = np.zeros(len(subjects), dtype=np.int32)
        slots = subjects.slots(pa.array(list(self._named), pa.large_string()))
        known = slots >= 0
        numbers[slots[known]] = np.fromiter(self._named.values(), np.int32)[known]
        return numbers


def _applying(having: Sequence[frozenset[str] | None], subject: str | None) -> frozenset[int]:
    """The private patterns that a subject has, or everyone who is not named."""
    return frozenset(
        number for number, named in enumerate(having) if named is None or subject in named
    )
