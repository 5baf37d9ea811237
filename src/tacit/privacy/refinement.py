"""Refinement: split the private patterns of large components into single elements.

A component with many variables has too many classes for a channel. Its private patterns are then
replaced by their single elements, each protected separately, with epsilons that add up to at most
the pattern's epsilon.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Final

from tacit.errors import AuditError
from tacit.patterns.tree import Pattern
from tacit.privacy.components import Exposure, find_exposure, split_queries
from tacit.privacy.elements import uniform_shares
from tacit.privacy.policies import Policy, PrivatePattern

MOST_VARIABLES: Final = 12
"""A component with more variables than this is refined."""


def refine_exposure(policy: Policy, queries: Sequence[Pattern]) -> tuple[Policy, Exposure]:
    """Replace the private patterns of large components by single elements.

    Returns the refined policy and its components.

    Guarantee: a mechanism that protects the refined policy protects the policy.
    Why: a change inside a private pattern changes only the elements that replace it, so their
    ratios multiply; their epsilons add up to at most the pattern's, as in uniform.
    """
    split = split_queries(policy, queries)
    large = split.list_large(MOST_VARIABLES)
    if not large:
        return policy, split.build()
    shares = uniform_shares(policy)
    names = sorted({name for pattern in large for name in pattern.elements})
    kept = tuple(pattern for pattern in policy.patterns if pattern not in large)
    fine = Policy((*kept, *(_single(name, shares[name]) for name in names)))
    return fine, find_exposure(fine, queries)


def with_epsilons(fine: Policy, policy: Policy, now: Policy) -> Policy:
    """Return a refined policy in which the patterns of `policy` have the epsilons of `now`."""
    if fine == policy:
        return now
    kept = dict(zip(policy.patterns, now.patterns, strict=True))
    shares = uniform_shares(now)
    return Policy(
        tuple(
            kept[pattern]
            if pattern in kept
            else replace(pattern, epsilon=shares[next(iter(pattern.elements))])
            for pattern in fine.patterns
        )
    )


def find_single_elements(policy: Policy, fine: Policy) -> dict[str, Fraction]:
    """Return the single elements of a refined policy, with their epsilons."""
    coarse = set(policy.patterns)
    return {
        next(iter(pattern.elements)): pattern.epsilon
        for pattern in fine.patterns
        if pattern not in coarse
    }


def with_shares(policy: Policy, fine: Policy, shares: Mapping[str, Fraction]) -> Policy:
    """Return a refined policy with other epsilons for its single elements; check them."""
    coarse = set(policy.patterns)
    made = Policy(
        tuple(
            pattern
            if pattern in coarse
            else _single(next(iter(pattern.elements)), shares[next(iter(pattern.elements))])
            for pattern in fine.patterns
        )
    )
    check_refinement(policy, made)
    return made


def check_refinement(policy: Policy, fine: Policy) -> None:
    """Raise AuditError if a refined policy exceeds the epsilons of the policy.

    A pattern that was not refined keeps its epsilon. If it shares an element with a refined
    pattern, no query depends on that element; otherwise both would be in one component.
    """
    shares = find_single_elements(policy, fine)
    for pattern in policy.patterns:
        if pattern not in fine.patterns:
            own = [shares[name] for name in pattern.elements]
            total = sum(own, Fraction(0))
            if total > pattern.epsilon or min(own) < 0:
                raise AuditError(asked=pattern.epsilon, true=total, high=0, low=0, column=0)


def _single(name: str, epsilon: Fraction) -> PrivatePattern:
    return PrivatePattern(f"element {name}", frozenset({name}), epsilon)
