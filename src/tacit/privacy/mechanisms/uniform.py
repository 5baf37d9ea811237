"""Uniform: give all elements of a private pattern the same share of its epsilon."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from tacit.privacy.elements import Elements, uniform_shares
from tacit.privacy.mechanisms.flips import Flips
from tacit.privacy.mechanisms.mechanism import PlanGoal
from tacit.privacy.policies import Policy
from tacit.privacy.statistics import Statistics


@dataclass(frozen=True, eq=False)
class Uniform(Flips):
    """Flip the presence of each of a pattern's m elements with p = 1/(1 + exp(epsilon/m)).

    Guarantee: pattern-level epsilon-DP per subject, pattern and window.
    Neighbours: windows that differ anywhere inside the pattern's elements.
    Why: each bit's ratio is at most (1 - p) / p = exp(epsilon/m); they multiply over m elements.
    An element of several patterns gets the least of its shares, so no pattern exceeds its epsilon.
    Spends: epsilon, once per window, whatever the number of queries; less if a shared element
    gets a smaller share from another pattern.
    Paper: section V-A, Theorem 1. Differs: flips are rounded towards more privacy; patterns that
    share an element use one noisy copy of it; with sliding windows, panes are flipped.
    Proof: docs/guarantee.md#uniform
    """

    name: ClassVar[str] = "uniform"
    needs = "nothing"

    @classmethod
    def propose(
        cls,
        policy: Policy,
        statistics: Statistics,  # noqa: ARG003 - shares do not depend on history
        goal: PlanGoal,  # noqa: ARG003
    ) -> Iterator[Elements]:
        """Propose uniform shares."""
        yield flip_uniformly(policy)


def flip_uniformly(policy: Policy) -> Elements:
    """Return the elements of a policy, each flipped with its uniform share.

    >>> from fractions import Fraction
    >>> from tacit.privacy.policies import PrivatePattern
    >>> visit = PrivatePattern("visit", frozenset({"hospital", "parked"}), Fraction(1))
    >>> stay = PrivatePattern("stay", frozenset({"parked", "night", "home"}), Fraction(1))
    >>> flip_uniformly(Policy((visit, stay)))
    Elements(epsilon per element and window: home 1/3, hospital 0.5, night 1/3, parked 1/3)
    """
    return Elements.from_epsilons(policy, uniform_shares(policy))
