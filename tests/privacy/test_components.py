"""Components: who must be protected together, and queries as parts of them."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.patterns.language import parse_pattern
from tacit.patterns.reference import Tuple, detect
from tacit.patterns.tree import And, Not, Or, Pattern, elements
from tacit.privacy import components
from tacit.privacy.components import Component, Exposure, find_exposure
from tacit.privacy.policies import Policy, PrivatePattern
from tests.patterns.strategies import random_pattern, random_window

TYPES = ("a", "b", "u", "v", "x", "y", "z")
HIDDEN = ("u", "v", "x", "y", "z")


def random_policy(rng: Random) -> Policy:
    """Up to four private patterns, which may overlap."""
    return Policy(
        tuple(
            PrivatePattern(
                f"p{n}", frozenset(rng.sample(HIDDEN, rng.choice((1, 1, 2)))), Fraction(n + 1)
            )
            for n in range(rng.randint(1, 4))
        )
    )


def random_query(rng: Random, depth: int = 2) -> Pattern:
    """AND, OR and NOT of random patterns."""
    if depth == 0 or rng.random() < 0.2:
        return random_pattern(rng, rng.sample(TYPES, 2), rng.choice((0, 0, 1)))
    if rng.random() < 0.2:
        return Not(random_query(rng, depth - 1))
    parts = [random_query(rng, depth - 1) for _ in range(rng.choice((2, 3)))]
    return rng.choice((And, Or))(*parts)


def random_exposure(rng: Random) -> tuple[Policy, list[Pattern], Exposure]:
    policy = random_policy(rng)
    queries = [random_query(rng) for _ in range(rng.randint(1, 4))]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(components, "MOST_JOINED", rng.choice((0, 4)))
        return policy, queries, find_exposure(policy, queries)


def signals(component: Component, window: list[Tuple], private: frozenset[str]) -> np.ndarray:
    """The context of a window, by the reference."""
    public = [Tuple(t.time, t.types - private) for t in window]
    return np.array([detect(signal, public) for signal in component.signals], np.bool_)


def values(component: Component, window: list[Tuple]) -> list[bool]:
    """The true values of a component's variables, by the reference."""
    return [detect(variable.atom, window) for variable in component.variables]


def part_answers(component: Component, window: list[Tuple], private: frozenset[str]) -> list[bool]:
    """What the tables of a window's context say about each part."""
    tables = component.tables(signals(component, window, private))
    known = values(component, window)
    found = []
    for part, table in zip(component.parts, tables, strict=True):
        choice = sum(known[v] << n for n, v in enumerate(part.variables))
        found.append(bool(table[choice]))
    return found


@given(st.integers(0, 2**32).map(Random))
def test_parts_put_together_are_the_query(rng: Random) -> None:
    """By the tables of the window's context and the true values, on random windows."""
    policy, queries, exposed = random_exposure(rng)
    for _ in range(4):
        window = random_window(rng, TYPES)
        parts = [part_answers(c, window, policy.private) for c in exposed.components]
        for query, question in zip(queries, exposed.questions, strict=True):
            if not question.parts:
                assert policy.private.isdisjoint(elements(query))
                continue
            found = [parts[component][part] for component, part in question.parts]
            whole = all(found) if question.every else any(found)
            assert whole == detect(query, window), f"{query} on {window}"


@given(st.integers(0, 2**32).map(Random))
def test_each_part_says_what_its_own_pattern_says(rng: Random) -> None:
    policy, _, exposed = random_exposure(rng)
    window = random_window(rng, TYPES)
    for component in exposed.components:
        found = part_answers(component, window, policy.private)
        assert found == [detect(part.pattern, window) for part in component.parts]


@given(st.integers(0, 2**32).map(Random))
def test_every_private_pattern_that_can_change_a_part_is_in_its_component(rng: Random) -> None:
    policy, _, exposed = random_exposure(rng)
    for component in exposed.components:
        for variable in component.variables:
            touching = {p.name for p in policy.patterns if p.elements & variable.elements}
            assert touching
            assert touching <= {p.name for p in component.patterns}
            changing = {
                p.name
                for p, changed in zip(component.patterns, component.changes, strict=True)
                if component.variables.index(variable) in changed
            }
            assert changing == touching
        for part in component.parts:
            hidden = policy.private & set(elements(part.pattern))
            asked = frozenset[str]().union(
                *(component.variables[v].elements for v in part.variables)
            )
            assert asked <= hidden
            touching = {p.name for p in policy.patterns if p.elements & hidden}
            assert touching <= {p.name for p in component.patterns}


@given(st.integers(0, 2**32).map(Random))
def test_components_share_neither_a_private_pattern_nor_anything_that_one_may_change(
    rng: Random,
) -> None:
    """So that what is drawn for one says nothing about the private patterns of another."""
    _, _, exposed = random_exposure(rng)
    names = [p.name for component in exposed.components for p in component.patterns]
    assert len(names) == len(set(names))
    for component in exposed.components:
        for other in exposed.components:
            if other is not component:
                own = frozenset[str]().union(*(p.elements for p in component.patterns))
                assert all(own.isdisjoint(v.elements) for v in other.variables)


@given(st.integers(0, 2**32).map(Random))
def test_a_change_of_one_private_pattern_changes_nothing_outside_what_it_is_said_to_change(
    rng: Random,
) -> None:
    policy, _, exposed = random_exposure(rng)
    private = rng.choice(policy.patterns)
    before = random_window(rng, TYPES)
    after = [Tuple(t.time, t.types - private.elements) for t in before]
    after += [
        Tuple(rng.randint(0, 5), frozenset({rng.choice(sorted(private.elements))}))
        for _ in range(rng.randint(0, 3))
    ]
    for component in exposed.components:
        assert np.array_equal(
            signals(component, before, policy.private), signals(component, after, policy.private)
        )
        changed: frozenset[int] = frozenset()
        if private in component.patterns:
            changed = component.changes[component.patterns.index(private)]
        pairs = zip(values(component, before), values(component, after), strict=True)
        assert {n for n, (one, other) in enumerate(pairs) if one != other} <= changed


def policy_of(*groups: str) -> Policy:
    return Policy(
        tuple(PrivatePattern(g, frozenset(g), Fraction(n + 1)) for n, g in enumerate(groups))
    )


@pytest.mark.parametrize(
    ("groups", "queries", "expected"),
    [
        (["xy"], ["x", "y"], [["xy"]]),
        (["x", "y"], ["x", "y"], [["x"], ["y"]]),
        (["x", "y"], ["AND(x, y)"], [["x"], ["y"]]),
        (["x", "y"], ["NOT OR(x, y)"], [["x"], ["y"]]),
        (["x", "y"], ["SEQ(x, y)"], [["x", "y"]]),
        (["x", "y"], ["AND(a, OR(x, y))"], [["x", "y"]]),
        (["x", "y"], ["AND(x, a, AND(b, y))"], [["x"], ["y"]]),
        (["x", "y"], ["AND(a, AND(x, y))"], [["x"], ["y"]]),
        (["x", "y"], ["NOT AND(NOT x, NOT y)"], [["x"], ["y"]]),
        (["x", "y"], ["AND(a, NOT OR(x, NOT y))"], [["x"], ["y"]]),
        (["x", "y"], ["OR(a, NOT AND(x, y))"], [["x"], ["y"]]),
        (["x", "y"], ["OR(a, NOT OR(x, y))"], [["x", "y"]]),
        (["x", "y"], ["SEQ(a, NOT OR(x, y))"], [["x", "y"]]),
        (["xy", "yz"], ["x", "z"], [["xy"], ["yz"]]),
        (["xy", "yz"], ["y"], [["xy", "yz"]]),
        (["xy", "yz"], ["AND(x, z)"], [["xy"], ["yz"]]),
        (["u", "v", "x"], ["SEQ(u, v)", "AND(x, SEQ(a, v))"], [["u", "v"], ["x"]]),
        (["u", "v", "x"], ["AND(u, v)", "OR(AND(u, v), x)"], [["u", "v"], ["x"]]),
        (["u", "v", "x"], ["SEQ(u, v)", "SEQ(v, x)"], [["u", "v", "x"]]),
        (["x", "y"], ["a"], []),
    ],
)
def test_what_belongs_together(
    groups: list[str],
    queries: list[str],
    expected: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However few variables there are."""
    monkeypatch.setattr(components, "MOST_JOINED", 0)
    found = find_exposure(policy_of(*groups), [parse_pattern(query) for query in queries])
    assert sorted([p.name for p in c.patterns] for c in found.components) == expected


def test_a_merge_that_a_later_query_makes_reaches_those_before_it() -> None:
    """The first query splits only as long as nothing else joins what it spans."""
    queries = [parse_pattern(text) for text in ("AND(x, OR(y, a), b)", "SEQ(x, y)")]
    found = find_exposure(policy_of("x", "y"), queries)
    assert len(found.components) == 1
    assert [len(question.parts) for question in found.questions] == [1, 1]


@pytest.mark.parametrize(
    ("query", "parts"),
    [
        ("AND(a, x, y)", ["AND(a, x)", "AND(y, a)"]),
        ("OR(a, x, y)", ["OR(a, x)", "OR(y, a)"]),
        ("AND(x, y)", ["x", "y"]),
        ("AND(x, OR(y, a))", ["x", "OR(y, a)"]),
        ("AND(SEQ(a, x), SEQ(b, y))", ["AND(SEQ(a, x), b)", "AND(SEQ(b, y), a)"]),
    ],
)
def test_what_decides_one_part_of_a_query_decides_the_others(
    query: str, parts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(components, "MOST_JOINED", 0)
    found = find_exposure(policy_of("x", "y"), [parse_pattern(query)])
    assert [str(part.pattern) for c in found.components for part in c.parts] == parts


@given(st.integers(0, 2**32).map(Random))
def test_no_part_of_a_decided_query_is_open(rng: Random) -> None:
    """The query is decided with the private types of all components unknown."""
    policy, queries, exposed = random_exposure(rng)
    window = random_window(rng, TYPES)
    tables = [c.tables(signals(c, window, policy.private)) for c in exposed.components]
    for query, question in zip(queries, exposed.questions, strict=True):
        own = [tables[component][part] for component, part in question.parts]
        if own and any(len(set(table.tolist())) == 1 and table[0] != question.every
                       for table in own):  # fmt: skip
            assert all(len(set(table.tolist())) == 1 for table in own), f"{query} on {window}"


def test_small_components_that_a_query_spans_are_joined_and_large_ones_are_not() -> None:
    """Two variables here, two there: four are few enough. With one more they stay apart."""
    texts = ["AND(x, z)", "y", "u"]
    policy = policy_of("xy", "zu")
    assert len(find_exposure(policy, [parse_pattern(t) for t in texts]).components) == 1
    texts.append("SEQ(a, u)")
    assert len(find_exposure(policy, [parse_pattern(t) for t in texts]).components) == 2
    assert len(find_exposure(policy, [parse_pattern(t) for t in ("x", "z")]).components) == 2


def test_a_sweep_finds_a_split_of_what_must_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without merging, some part has variables of private patterns that are not its own."""
    monkeypatch.setattr(components, "_settle", lambda *_: True)
    monkeypatch.setattr(components, "MOST_JOINED", 0)
    found = find_exposure(policy_of("x", "y"), [parse_pattern("AND(a, OR(x, y))")])
    known = {p.name for p in found.components[0].patterns}
    assert {e for v in found.components[0].variables for e in v.elements} - known


def test_a_component_under_another_policy_has_its_epsilons_and_nothing_else_new() -> None:
    policy = policy_of("x", "y")
    found = find_exposure(policy, [parse_pattern("SEQ(x, y)")])
    scaled = found.components[0].with_epsilons(policy.scale(Fraction(1, 3)))
    assert [p.epsilon for p in scaled.patterns] == [Fraction(1, 3), Fraction(2, 3)]
    assert scaled.parts == found.components[0].parts
    assert found.with_epsilons(policy.scale(Fraction(1, 3))).components == (scaled,)


def test_a_chain_of_queries_over_many_private_patterns_is_one_component() -> None:
    names = [f"x{n}" for n in range(30)]
    policy = Policy(tuple(PrivatePattern(n, frozenset({n}), Fraction(1)) for n in names))
    queries = [parse_pattern(f"SEQ({a}, {b})") for a, b in pairwise(names)]
    found = find_exposure(policy, queries)
    assert len(found.components) == 1
    assert len(found.components[0].patterns) == 30
