"""Flipped elements keep every private pattern within its epsilon, or they cannot be built."""

from __future__ import annotations

import json
import pickle
from fractions import Fraction
from itertools import product
from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import AuditError, PrivacyError
from tacit.privacy.channel_audit import Neighbours
from tacit.privacy.channels import Channel
from tacit.privacy.elements import Elements
from tacit.privacy.exponentials import exp_below
from tacit.privacy.policies import Policy, PrivatePattern
from tests.privacy.strategies import epsilons


def pattern(name: str, elements: str, epsilon: Fraction | int) -> PrivatePattern:
    return PrivatePattern(name, frozenset(elements), Fraction(epsilon))


@st.composite
def shared(draw: st.DrawFn) -> tuple[Policy, dict[str, Fraction]]:
    """Policies that may overlap, and shares that fit, fit just so, or do not fit."""
    some = st.sets(st.sampled_from("abcd"), min_size=1, max_size=3)
    patterns = tuple(
        PrivatePattern(f"p{number}", frozenset(names), draw(epsilons(-3, 1)))
        for number, names in enumerate(draw(st.lists(some, min_size=1, max_size=3)))
    )
    policy = Policy(patterns)
    share = st.sampled_from([Fraction(0), Fraction(1, 3), Fraction(1, 2), Fraction(1)])
    least = min(found.epsilon for found in patterns)
    return policy, {name: draw(share) * least for name in sorted(policy.private)}


def worst_ratio(elements: Elements, pattern: PrivatePattern) -> Fraction:
    """Over all neighbours and all outcomes of all elements, word for word."""
    names = sorted(elements.policy.private)
    windows = list(product((0, 1), repeat=len(names)))

    def chance(window: tuple[int, ...], outcome: tuple[int, ...]) -> Fraction:
        return prod(
            (
                elements.channels[n].probability(x, y)
                for n, x, y in zip(names, window, outcome, strict=True)
            ),
            start=Fraction(1),
        )

    chances = {window: [chance(window, outcome) for outcome in windows] for window in windows}
    public = [place for place, name in enumerate(names) if name not in pattern.elements]
    return max(
        here / there
        for first, second in product(windows, windows)
        if all(first[place] == second[place] for place in public)
        for here, there in zip(chances[first], chances[second], strict=True)
    )


@given(shared())
def test_elements_can_be_built_if_and_only_if_no_outcome_tells_neighbours_apart(
    case: tuple[Policy, dict[str, Fraction]],
) -> None:
    policy, shares = case
    if any(sum(shares[name] for name in p.elements) > p.epsilon for p in policy.patterns):
        with pytest.raises(AuditError) as refused:
            Elements.from_epsilons(policy, shares)
        assert refused.value.true is not None
        assert refused.value.true > refused.value.asked
        return
    built = Elements.from_epsilons(policy, shares)
    for private, loss in zip(policy.patterns, built.losses(), strict=True):
        ratio = worst_ratio(built, private)
        assert ratio <= exp_below(private.epsilon, 256)
        assert ratio <= exp_below(loss.whole, 256)
        assert loss.element <= loss.whole <= private.epsilon


def test_shares_that_add_up_to_epsilon_fit_and_a_little_more_does_not() -> None:
    policy = Policy((pattern("visit", "abc", 1),))
    third = Fraction(1, 3)
    built = Elements.from_epsilons(policy, dict.fromkeys("abc", third))
    assert built.epsilons == dict.fromkeys("abc", third)
    [loss] = built.losses()
    assert 1 - Fraction(1, 10**12) < loss.whole <= 1
    assert third - Fraction(1, 10**12) < loss.element <= third
    assert "1 of 1 for one subject and window (0.333333333333 per element)" in str(loss)
    with pytest.raises(AuditError) as refused:
        Elements.from_epsilons(policy, {"a": third, "b": third, "c": third + Fraction(1, 10**6)})
    assert refused.value.asked == 1


def test_a_shared_element_counts_in_each_of_its_patterns() -> None:
    policy = Policy((pattern("p", "ab", 1), pattern("q", "bc", Fraction(1, 2))))
    shares = {"a": Fraction(3, 4), "b": Fraction(1, 4), "c": Fraction(1, 4)}
    whole = [loss.whole for loss in Elements.from_epsilons(policy, shares).losses()]
    assert [round(float(loss), 9) for loss in whole] == [1.0, 0.5]
    with pytest.raises(AuditError) as refused:
        Elements.from_epsilons(policy, shares | {"c": Fraction(1, 3)})
    assert refused.value.asked == Fraction(1, 2)


def test_each_private_element_has_a_flip_and_no_other() -> None:
    policy = Policy((pattern("p", "ab", 1),))
    half = Channel.flip(Fraction(1, 2))
    for names in ("a", "abc", ""):
        with pytest.raises(PrivacyError, match="every private element"):
            Elements(policy, dict.fromkeys(names, half))
    assert Elements(Policy(()), {}).losses() == ()


@pytest.mark.parametrize(
    "other",
    [
        Channel([[3, 1], [1, 3]], []),
        Channel([[2, 2], [1, 3]], [Neighbours([0, 1], 1)]),
        Channel([[1, 3], [3, 1]], [Neighbours([0, 1], 2)]),
        Channel([[4], [4]], [Neighbours([0, 1], 1)]),
        Channel([[2, 1, 1], [1, 2, 1]], [Neighbours([0, 1], 1)]),
        Channel([[2, 2], [2, 2], [2, 2]], [Neighbours([0, 1, 2], 1)]),
    ],
)
def test_only_flips_are_taken(other: Channel) -> None:
    with pytest.raises(PrivacyError, match=r"Channel\.flip"):
        Elements(Policy((pattern("p", "a", 2),)), {"a": other})


def built() -> Elements:
    policy = Policy((pattern("p", "ab", 1), pattern("q", "bc", Fraction(2, 3))))
    return Elements.from_epsilons(
        policy, {"a": Fraction(2, 3), "b": Fraction(1, 3), "c": Fraction(1, 3)}
    )


def test_elements_come_back_from_json_and_from_pickle_as_they_were() -> None:
    first = built()
    for again in (
        Elements.from_dict(json.loads(json.dumps(first.to_dict()))),
        pickle.loads(pickle.dumps(first)),
    ):
        assert again == first
        assert hash(again) == hash(first)
        assert again.epsilons == first.epsilons
    assert list(first.channels) == ["a", "b", "c"]
    assert first != Elements.from_epsilons(first.policy, dict.fromkeys("abc", Fraction(0)))


def test_elements_that_were_changed_in_a_file_are_refused() -> None:
    plain = built().to_dict()
    # A channel that is lawful by itself, and too much beside the others.
    plain["channels"]["b"] = Channel.flip(Fraction(1, 2)).to_dict()
    with pytest.raises(AuditError):
        Elements.from_dict(plain)
    plain = built().to_dict()
    plain["patterns"][0]["epsilon"] = "0.9"
    with pytest.raises(AuditError):
        Elements.from_dict(plain)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("patterns", None),
        ("patterns", [{"name": "p", "elements": "ab", "epsilon": "1"}]),
        ("patterns", [{"name": 1, "elements": ["a"], "epsilon": "1"}]),
        ("patterns", [{"name": "p", "elements": ["a", "b", "c"], "epsilon": "1/0"}]),
        ("patterns", [{"name": "p", "elements": ["a", "b", "c"], "epsilon": "-1"}]),
        ("channels", 3),
        ("channels", {"a": {}}),
    ],
)
def test_damaged_elements_are_refused(place: str, value: Any) -> None:
    with pytest.raises(PrivacyError):
        Elements.from_dict(built().to_dict() | {place: value})


def test_flips_are_those_of_the_tables() -> None:
    flips = built().flips(["c", "a"])
    assert flips.tolist() == [float(built().channels[n].probability(0, 1)) for n in "ca"]


def test_it_shows_each_share_with_its_unit() -> None:
    assert repr(built()) == "Elements(epsilon per element and window: a 2/3, b 1/3, c 1/3)"
