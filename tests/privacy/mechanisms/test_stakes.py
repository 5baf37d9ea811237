"""What is at stake in a part: checked by working out the query as a whole."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from tacit.patterns.tree import And, Or, Pattern
from tacit.privacy import components
from tacit.privacy.components import find_exposure
from tacit.privacy.context_counts import ContextCounts
from tacit.privacy.mechanisms.optimal.stakes import PartModel
from tacit.privacy.policies import Policy, PrivatePattern
from tacit.privacy.prior import Prior


def outlook(query: Pattern, rates: tuple[float, float], epsilon: int) -> PartModel:
    """Two private patterns of one element each, in components of their own."""
    policy = Policy(
        tuple(PrivatePattern(name, frozenset(name), Fraction(epsilon)) for name in "xy")
    )
    found = find_exposure(policy, [query])
    assert len(found.components) == 2
    priors = [Prior.from_rates(np.array([rate]), 0) for rate in rates]
    assert all(not component.signals for component in found.components)
    return PartModel(found, priors, [ContextCounts.empty(0, 1)] * 2)


@pytest.fixture(autouse=True)
def _apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small components would be joined, and there would be no parts."""
    monkeypatch.setattr(components, "MOST_JOINED", 0)


def test_a_query_with_one_part_has_all_at_stake() -> None:
    policy = Policy((PrivatePattern("x", frozenset("x"), Fraction(1)),))
    found = find_exposure(policy, [And("x", "a")])
    prior = Prior.from_rates(np.array([0.5]), 1)
    (stakes,) = PartModel(found, [prior], [ContextCounts.empty(1, 1)]).stakes(
        np.array([[0.7, 0.3]])
    )
    assert stakes.tolist() == [[pytest.approx(0.7), pytest.approx(0.3)]]


def test_a_part_of_an_and_earns_what_the_other_leaves() -> None:
    """With nearly perfect knowledge of y, a yes to x pays where y is said to be there."""
    first, _ = outlook(And("x", "y"), (0.5, 0.5), 30).stakes(np.array([[0.6, 0.4]]))
    assert first[0].tolist() == [pytest.approx(0.5 * 0.6), pytest.approx(0.5 * 0.4)]


def test_a_part_of_an_and_earns_nothing_if_the_other_is_hopeless() -> None:
    """Without knowledge of y, both together are never likely enough."""
    first, _ = outlook(And("x", "y"), (0.5, 0.3), 0).stakes(np.array([[0.4, 0.6]]))
    assert first[0].tolist() == [0.0, 0.0]


def test_a_part_of_an_or_matters_where_the_other_is_unlikely() -> None:
    first, _ = outlook(Or("x", "y"), (0.5, 0.5), 30).stakes(np.array([[0.6, 0.4]]))
    assert first[0].tolist() == [pytest.approx(0.5 * 0.6), pytest.approx(0.5 * 0.4)]
