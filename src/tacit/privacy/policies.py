"""Policies: which private patterns apply to which subjects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tacit.patterns.tree import elements
from tacit.spec.specification import Private, Specification

if TYPE_CHECKING:  # it would bring the compiler along, which a look at policies does not need
    from tacit.events.subjects import Subjects


@dataclass(frozen=True, slots=True)
class PrivatePattern:
    """A private pattern as mechanisms see it: its elements, and what may be given away."""

    name: str
    elements: frozenset[str]
    epsilon: Fraction
    """For each subject and window."""


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


class Policies:
    """The policies of a specification: number 0 is that of all subjects that no one names."""

    def __init__(self, spec: Specification) -> None:
        patterns = [
            PrivatePattern(private.name, frozenset(elements(resolved)), Fraction(private.epsilon))
            for private, resolved in zip(spec.private, spec.private_patterns, strict=True)
        ]
        chosen: dict[frozenset[int], int] = {_applying(spec.private, None): 0}
        self._named: dict[str | int, int] = {}
        for private in spec.private:
            for subject in private.subjects or ():
                applying = _applying(spec.private, subject)
                self._named[subject] = chosen.setdefault(applying, len(chosen))
        self.policies: tuple[Policy, ...] = tuple(
            Policy(tuple(patterns[number] for number in sorted(numbers))) for numbers in chosen
        )

    def __len__(self) -> int:
        return len(self.policies)

    def of(self, subjects: Subjects) -> NDArray[np.int32]:
        """The number of the policy of each registered subject, in the order of their slots."""
        numbers = np.zeros(len(subjects), dtype=np.int32)
        if not self._named or not len(subjects):
            return numbers
        names = _as_kept(list(self._named), subjects.names.type)
        slots = subjects.slots(names)
        known = slots >= 0
        numbers[slots[known]] = np.fromiter(self._named.values(), np.int32)[known]
        return numbers


def _applying(private: Sequence[Private], subject: str | int | None) -> frozenset[int]:
    """The private patterns that a subject has, or everyone who is not named."""
    return frozenset(
        number
        for number, declared in enumerate(private)
        if declared.subjects is None or subject in declared.subjects
    )


def _as_kept(named: list[str | int], kind: pa.DataType) -> pa.Array:
    """Subjects as the registry holds them; a number that it holds as text has its digits."""
    if not pa.types.is_integer(kind):
        return pa.array([str(subject) for subject in named], pa.string())
    return pa.array([s if isinstance(s, int) else None for s in named], pa.int64())
