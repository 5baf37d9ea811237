"""Adaptive moves epsilon where it helps, conserves every sum, and always comes to an end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from math import exp, sin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import AuditError
from tacit.privacy.elements import Elements, uniform_shares
from tacit.privacy.mechanisms.adaptive import TRIALS, move_shares
from tacit.privacy.mechanisms.uniform import flip_uniformly
from tacit.privacy.policies import Policy, PrivatePattern
from tests.privacy.mechanisms.test_uniform import policies

Value = Callable[[Mapping[str, float]], float]


class Plain:
    """An objective and its standing, by a function that is computed from scratch each time."""

    def __init__(self, function: Value) -> None:
        self._function = function
        self.trials: list[dict[str, float]] = []
        self.now: dict[str, float] = {}

    def at(self, epsilons: Mapping[str, float]) -> Plain:
        """Start here."""
        self.now = dict(epsilons)
        return self

    @property
    def value(self) -> float:
        """The function of what is now."""
        return self._function(self.now)

    def try_changes(self, changes: Mapping[str, float]) -> float:
        """Remember what was tried."""
        self.trials.append(dict(changes))
        return self._function(self.now | dict(changes))

    def move(self, changes: Mapping[str, float]) -> None:
        """Make the changes."""
        self.now |= changes


def lone(epsilon: Fraction | int, elements: str = "abc") -> Policy:
    return Policy((PrivatePattern("p", frozenset(elements), Fraction(epsilon)),))


def floats(shares: Mapping[str, Fraction]) -> dict[str, float]:
    return {name: float(share) for name, share in shares.items()}


@st.composite
def values(draw: st.DrawFn) -> Value:
    """Functions of all kinds: straight, bent either way, wavy, and with many ties."""
    number = st.floats(-2, 2, allow_nan=False)
    weights = {name: draw(number) for name in "abcdefg"}
    bend: Callable[[float], float] = draw(
        st.sampled_from(
            [float, lambda x: 1 / (1 + exp(-x)), lambda x: x * x, lambda x: sin(9 * x), round]
        )
    )
    return lambda epsilons: sum(weights[name] * bend(x) for name, x in epsilons.items())


@given(policies(), values())
def test_every_sum_is_kept_and_the_objective_is_never_worse_than_uniform(
    policy: Policy, function: Value
) -> None:
    objective = Plain(function)
    found = move_shares(policy, objective)
    shares = found.epsilons
    for pattern in policy.patterns:
        assert sum(shares[name] for name in pattern.elements) <= pattern.epsilon
        assert all(0 <= shares[name] <= pattern.epsilon for name in pattern.elements)
    assert objective.now == floats(shares)
    assert function(floats(shares)) >= function(floats(uniform_shares(policy)))


@given(policies(1), values())
def test_the_sum_of_a_lone_pattern_is_conserved_exactly(policy: Policy, function: Value) -> None:
    shares = move_shares(policy, Plain(function)).epsilons
    assert sum(shares.values()) == sum((p.epsilon for p in policy.patterns), start=Fraction(0))


@pytest.mark.parametrize("size", [2, 3, 4, 6, 9])
def test_a_step_takes_its_part_from_each_of_the_others(size: int) -> None:
    # Paper: delta = m * epsilon / 100. Ours takes delta / (m - 1) from each of the others.
    objective = Plain(lambda epsilons: 0.0)
    names = "abcdefghi"[:size]
    move_shares(lone(7, names), objective, halvings=0)
    delta = Fraction(7 * size, 100)
    up, down = Fraction(7, size) + delta, Fraction(7, size) - delta / (size - 1)
    assert objective.trials[:size] == [
        {name: float(up if name == chosen else down) for name in names} for chosen in names
    ]


def test_all_of_epsilon_can_go_to_the_one_element_that_matters() -> None:
    for elements in ("ab", "abc", "abcdefgh"):
        shares = move_shares(lone(1, elements), Plain(lambda epsilons: epsilons["a"])).epsilons
        assert shares == dict.fromkeys(elements, Fraction(0)) | {"a": Fraction(1)}


def test_an_element_that_has_too_little_gives_what_it_has_and_the_others_the_rest() -> None:
    # b is worth nothing, and soon has nothing to give: a and c go on between themselves.
    shares = move_shares(
        lone(1), Plain(lambda epsilons: epsilons["a"] + 0.9 * min(0.3, epsilons["c"]))
    ).epsilons
    assert shares["b"] == 0
    assert float(shares["a"]) > 0.95


def test_halving_the_step_finds_what_lies_between_two_steps() -> None:
    best = 0.4567

    def function(epsilons: Mapping[str, float]) -> float:
        return -((epsilons["a"] - best) ** 2)

    found = [
        abs(float(move_shares(lone(1), Plain(function), halvings=times).epsilons["a"]) - best)
        for times in (0, 4)
    ]
    assert found[1] < 0.001 < 0.003 < found[0]


def test_a_pattern_of_one_element_is_left_alone() -> None:
    objective = Plain(lambda epsilons: sum(epsilons.values()))
    policy = Policy(tuple(PrivatePattern(name, frozenset(name), Fraction(1)) for name in "ab"))
    assert move_shares(policy, objective) == flip_uniformly(policy)
    assert objective.trials == []


def test_without_private_patterns_there_is_nothing_to_do() -> None:
    assert move_shares(Policy(()), Plain(lambda epsilons: 0.0)).epsilons == {}


def test_ties_leave_uniform_as_it_is() -> None:
    objective = Plain(lambda epsilons: 0.5)
    assert move_shares(lone(1), objective) == flip_uniformly(lone(1))
    # Five sizes of a step and three large ones, each towards each of the elements.
    assert len(objective.trials) == 3 * (5 + 3)


def test_gains_that_are_only_rounding_are_no_gains() -> None:
    policy = lone(1)
    assert move_shares(policy, Plain(lambda e: 0.5 + 1e-14 * e["a"])) == flip_uniformly(policy)
    assert move_shares(policy, Plain(lambda e: 0.5 + 1e-9 * e["a"])) != flip_uniformly(policy)


def test_what_a_shared_element_leaves_over_is_used() -> None:
    wide = PrivatePattern("wide", frozenset("ab"), Fraction(1))
    strict = PrivatePattern("strict", frozenset("b"), Fraction(1, 10))
    shares = move_shares(
        Policy((wide, strict)), Plain(lambda epsilons: sum(epsilons.values()))
    ).epsilons
    assert shares == {"a": Fraction(9, 10), "b": Fraction(1, 10)}


def test_a_shared_element_is_raised_only_as_far_as_all_of_its_patterns_pay_for() -> None:
    first = PrivatePattern("first", frozenset("ab"), Fraction(1))
    second = PrivatePattern("second", frozenset("bcd"), Fraction(3, 5))
    shares = move_shares(Policy((first, second)), Plain(lambda epsilons: epsilons["b"])).epsilons
    assert shares["b"] == Fraction(3, 5)
    assert shares["c"] == shares["d"] == 0
    assert shares["a"] == Fraction(2, 5)


def test_an_objective_that_always_claims_to_improve_is_not_followed_for_ever() -> None:
    calls = iter(range(10**9))
    objective = Plain(lambda epsilons: float(next(calls)))
    found = move_shares(lone(1), objective)
    assert TRIALS <= len(objective.trials) <= 3 * TRIALS + 3
    assert sum(found.epsilons.values()) == 1


def printed(policy: Policy, function: Value, steps: int) -> dict[str, Fraction]:
    """Algorithm 1 as the paper prints it, but for an i that advances and trials that are undone."""
    [pattern] = policy.patterns
    size = len(pattern.elements)
    delta = size * pattern.epsilon / 100
    shares = uniform_shares(policy)
    for _ in range(steps):
        trials = [
            {name: s + delta if name == up else s - delta / size for name, s in shares.items()}
            for up in sorted(shares)
        ]
        best = max(trials, key=lambda trial: function(floats(trial)))
        if function(floats(best)) < function(floats(shares)) or min(best.values()) < 0:
            break
        shares = best
    return shares


@pytest.mark.parametrize("steps", [1, 5, 50])
@pytest.mark.parametrize("elements", ["a", "abc", "abcde"])
def test_the_algorithm_as_printed_is_refused_by_the_audit(elements: str, steps: int) -> None:
    policy = lone(1, elements)
    shares = printed(policy, lambda epsilons: epsilons["a"], steps)
    assert sum(shares.values()) > 1
    with pytest.raises(AuditError):
        Elements.from_epsilons(policy, shares)
    Elements.from_epsilons(policy, printed(policy, lambda epsilons: 0.0, 0))
