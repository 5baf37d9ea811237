"""Uniform gives all elements of a pattern the same share, and shared ones the least."""

from __future__ import annotations

from fractions import Fraction
from math import exp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.privacy.elements import uniform_shares
from tacit.privacy.mechanisms.uniform import flip_uniformly
from tacit.privacy.policies import Policy, PrivatePattern
from tests.privacy.strategies import epsilons


def policies(most: int = 4) -> st.SearchStrategy[Policy]:
    """Private patterns of any size that may share elements."""
    some = st.frozensets(st.sampled_from("abcdefg"), min_size=1, max_size=5)
    one = st.builds(PrivatePattern, st.sampled_from("pqr"), some, epsilons(-2, 2))
    return st.lists(one, min_size=0, max_size=most).map(lambda found: Policy(tuple(found)))


@given(policies())
def test_each_pattern_is_kept_and_some_pattern_sets_each_share(policy: Policy) -> None:
    shares = uniform_shares(policy)
    assert shares.keys() == policy.private
    for pattern in policy.patterns:
        assert sum(shares[name] for name in pattern.elements) <= pattern.epsilon
    for name, share in shares.items():
        having = [p for p in policy.patterns if name in p.elements]
        assert share in {p.epsilon / len(p.elements) for p in having}
    assert flip_uniformly(policy).epsilons == shares


@given(st.integers(1, 9), epsilons(-2, 2))
def test_a_lone_pattern_spends_its_epsilon_exactly(size: int, epsilon: Fraction) -> None:
    names = frozenset(f"e{number}" for number in range(size))
    shares = uniform_shares(Policy((PrivatePattern("p", names, epsilon),)))
    assert set(shares.values()) == {epsilon / size}
    assert sum(shares.values()) == epsilon


def test_flips_have_the_probability_of_the_paper() -> None:
    elements = flip_uniformly(Policy((PrivatePattern("p", frozenset("abc"), Fraction(3, 2)),)))
    for flip in elements.flips("abc"):
        assert flip == pytest.approx(1 / (1 + exp(0.5)), abs=1e-15)
        assert flip != pytest.approx(1 / (1 + exp(1.5)), abs=1e-3)


def test_a_shared_element_gets_the_least_of_its_shares_once() -> None:
    wide = PrivatePattern("wide", frozenset("abc"), Fraction(1))
    strict = PrivatePattern("strict", frozenset("cd"), Fraction(1, 10))
    shares = uniform_shares(Policy((wide, strict)))
    assert shares == {
        "a": Fraction(1, 3),
        "b": Fraction(1, 3),
        "c": Fraction(1, 20),
        "d": Fraction(1, 20),
    }
