"""Large components: single elements stand for their patterns, and add up to them."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import AuditError
from tacit.patterns.tree import And, Name, Pattern
from tacit.privacy.components import find_exposure
from tacit.privacy.policies import Policy, PrivatePattern
from tacit.privacy.refinement import (
    MOST_VARIABLES,
    check_refinement,
    find_single_elements,
    refine_exposure,
    with_shares,
)


def chain(length: int) -> tuple[Policy, list[Pattern]]:
    """Private patterns that overlap one after the other, and queries about every element."""
    patterns = [
        PrivatePattern(f"p{n}", frozenset({f"e{n}", f"e{n + 1}"}), Fraction(n + 1))
        for n in range(length)
    ]
    queries: list[Pattern] = [And(f"e{n}", f"e{n + 1}") for n in range(length)]
    return Policy(tuple(patterns)), queries


def test_small_components_are_left_alone() -> None:
    policy, queries = chain(4)
    assert refine_exposure(policy, queries)[0] is policy


def test_a_large_component_becomes_single_elements_and_others_stay() -> None:
    policy, queries = chain(MOST_VARIABLES + 2)
    alone = PrivatePattern("alone", frozenset({"x", "y"}), Fraction(3))
    wider = Policy((alone, *policy.patterns))
    fine = refine_exposure(wider, [*queries, Name("x")])[0]
    assert fine.patterns[0] == alone
    assert {len(pattern.elements) for pattern in fine.patterns[1:]} == {1}
    assert fine.private == wider.private
    found = find_exposure(fine, [*queries, Name("x")])
    assert max(len(component.variables) for component in found.components) <= 4


@given(st.lists(st.fractions(0, 3, max_denominator=7), min_size=1, max_size=30))
@settings(max_examples=40, deadline=None)
def test_shares_that_add_up_to_more_than_a_pattern_allows_are_refused(
    amounts: list[Fraction],
) -> None:
    """Exactly those: the sum over each pattern's elements is compared, in fractions."""
    policy, queries = chain(MOST_VARIABLES + 2)
    fine = refine_exposure(policy, queries)[0]
    names = sorted(find_single_elements(policy, fine))
    shares = {name: amounts[n % len(amounts)] for n, name in enumerate(names)}
    within = all(
        sum((shares[name] for name in pattern.elements), Fraction(0)) <= pattern.epsilon
        for pattern in policy.patterns
    )
    if within:
        check_refinement(policy, with_shares(policy, fine, shares))
    else:
        with pytest.raises(AuditError):
            with_shares(policy, fine, shares)


def test_the_shares_to_begin_with_are_lawful() -> None:
    policy, queries = chain(MOST_VARIABLES + 5)
    check_refinement(policy, refine_exposure(policy, queries)[0])
