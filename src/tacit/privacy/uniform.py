"""Uniform: all elements of a private pattern get the same share of its epsilon."""

from __future__ import annotations

from fractions import Fraction

from tacit.privacy.elements import Elements
from tacit.privacy.policies import Policy


def uniform(policy: Policy) -> Elements:
    """Flip the presence of each of a pattern's m elements with p = 1/(1 + exp(epsilon/m)).

    Guarantee: pattern-level epsilon-DP per subject, pattern and window.
    Neighbours: windows that differ anywhere inside the pattern's elements.
    Why: each bit's ratio is at most (1 - p) / p = exp(epsilon/m); they multiply over m elements.
    An element of several patterns has the least of its shares, so it fits into each of them.
    Spends: epsilon, once per window, whatever the number of queries; less where a shared
    element has to make do with the smaller share of another pattern.
    Paper: section V-A, Theorem 1. Differs: flips are rounded towards more privacy; there is one
    noisy copy of an element that patterns share.

    >>> from tacit.privacy.policies import PrivatePattern
    >>> visit = PrivatePattern("visit", frozenset({"hospital", "parked"}), Fraction(1))
    >>> stay = PrivatePattern("stay", frozenset({"parked", "night", "home"}), Fraction(1))
    >>> uniform(Policy((visit, stay)))
    Elements(epsilon per element and window: home 1/3, hospital 0.5, night 1/3, parked 1/3)
    """
    return Elements.flipped(policy, uniform_shares(policy))


def uniform_shares(policy: Policy) -> dict[str, Fraction]:
    """The epsilon of each private element: the least of its patterns' epsilon/m."""
    return {
        name: min(
            pattern.epsilon / len(pattern.elements)
            for pattern in policy.patterns
            if name in pattern.elements
        )
        for name in sorted(policy.private)
    }
