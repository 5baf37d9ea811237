"""What remains of a query: right for the true values, and for every other private content."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.patterns import residuals
from tacit.patterns.language import parse_pattern
from tacit.patterns.reference import Tuple, detect
from tacit.patterns.residuals import (
    MOST_VARIABLES,
    Residual,
    find_private_atoms,
    find_residual,
    is_presence,
    lift_booleans,
)
from tacit.patterns.tree import And, Name, Not, Or, Pattern, elements
from tests.patterns.strategies import random_pattern, random_window

TYPES = ("a", "b", "x", "y")
PRIVATE_SETS = (("x",), ("x", "y"), ("a", "x", "y"), ("a", "b", "x", "y"))
PLACES = (1, 2, 3, 4, 5)


def public(window: Sequence[Tuple], private: Sequence[str]) -> list[Tuple]:
    """The window as it looks without private events; tuples keep their places."""
    return [Tuple(t.time, t.types - set(private), t.attributes) for t in window]


def number(left: Residual, window: Sequence[Tuple]) -> int:
    """The choice that a whole window makes."""
    return sum(detect(v.atom, window) << n for n, v in enumerate(left.variables))


def value(cofactor: Pattern | bool, window: Sequence[Tuple]) -> bool:
    """What a cofactor says about public events."""
    return cofactor if isinstance(cofactor, bool) else detect(cofactor, window)


def random_query(rng: Random, *, where: bool = False) -> Pattern:
    """A few random patterns under AND, OR and NOT, so that there are several atoms."""
    parts = [
        random_pattern(rng, TYPES, rng.choice((1, 2, 2)), where=where and rng.random() < 0.5)
        for _ in range(rng.choice((1, 2, 3)))
    ]
    whole: Pattern = rng.choice((And, Or))(*parts) if len(parts) > 1 else parts[0]
    return Not(whole) if rng.random() < 0.2 else whole


def broken(seed: int, queries: int, *, where: bool = False) -> Iterator[str]:
    """Windows whose true values lead to a cofactor that says something else than the query."""
    rng = Random(seed)
    for _ in range(queries):
        query, private = random_query(rng, where=where), rng.choice(PRIVATE_SETS)
        left = find_residual(query, set(private))
        for _ in range(5):
            window = random_window(rng, TYPES, most=5, attributes=where)
            found = value(left.cofactors[number(left, window)], public(window, private))
            if found != detect(query, window):
                yield f"{query} with {private} unknown: {left} on {window}"


def test_the_true_values_of_the_variables_and_public_events_say_what_the_query_is() -> None:
    assert not next(broken(seed=1, queries=600), None)


def test_this_holds_for_queries_with_conditions() -> None:
    assert not next(broken(seed=2, queries=250, where=True), None)


def test_a_sweep_finds_choices_whose_bits_are_the_wrong_way_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(residuals, "reversed", lambda values: values, raising=False)
    assert next(broken(seed=1, queries=200), None)


def test_a_sweep_finds_bounds_that_are_taken_for_the_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if an ordered sub-pattern could always be either."""
    monkeypatch.setattr(residuals, "_bounds", lambda *_: (True, False))
    assert next(broken(seed=1, queries=200), None)


def test_whatever_private_events_do_the_query_is_what_some_choice_says() -> None:
    """Where all choices agree, no private content may make the query another."""
    rng = Random(3)
    decided = 0
    for _ in range(150):
        query = random_query(rng)
        left = find_residual(query, {"x", "y"})
        known = random_window(rng, ("a", "b"), most=3, latest=1)
        known = [Tuple((2, 4)[t.time], t.types) for t in known]
        said = {value(cofactor, known) for cofactor in left.cofactors}
        decided += len(said) == 1 and bool(left.variables)
        events = [Tuple(time, frozenset({name})) for time, name in product(PLACES, ("x", "y"))]
        for count in range(3):
            for added in combinations(events, count):
                world = [*known, *added]
                assert detect(query, world) in said, f"{query} on {world}"
                assert value(left.cofactors[number(left, world)], known) == detect(query, world)
    assert decided > 20


def test_a_private_event_changes_only_variables_that_name_its_type() -> None:
    rng = Random(4)
    for _ in range(300):
        query, window = random_query(rng), random_window(rng, TYPES, most=4)
        left = find_residual(query, {"x", "y"})
        other = [*window, Tuple(rng.randint(0, 5), frozenset("x"))]
        for variable in left.variables:
            if "x" not in variable.elements:
                assert detect(variable.atom, window) == detect(variable.atom, other)


def presence(rng: Random, depth: int) -> Pattern:
    """A pattern of names, AND, OR and NOT."""
    if depth == 0 or rng.random() < 0.15:
        return Name(rng.choice(TYPES))
    if rng.random() < 0.3:
        return Not(presence(rng, depth - 1))
    return rng.choice((And, Or))(*(presence(rng, depth - 1) for _ in range(rng.choice((2, 2, 3)))))


@given(st.integers(0, 2**32).map(Random))
def test_a_query_of_presence_is_tabled_exactly(rng: Random) -> None:
    """Every choice is possible, and its cofactor is the query with these events there or not."""
    query, private = presence(rng, 3), rng.choice(PRIVATE_SETS)
    left = find_residual(query, set(private))
    known = frozenset(name for name in TYPES if name not in private and rng.random() < 0.5)
    assert all(isinstance(variable.atom, Name) for variable in left.variables)
    assert len(left.cofactors) == 1 << len(left.variables)
    for choice, cofactor in enumerate(left.cofactors):
        there = {
            variable.atom.name
            for bit, variable in enumerate(left.variables)
            if choice >> bit & 1 and isinstance(variable.atom, Name)
        }
        window = [Tuple(0, known | there)]
        assert value(cofactor, [Tuple(0, known)]) == detect(query, window)


@given(st.integers(0, 2**32).map(Random))
def test_cofactors_hold_public_events_alone(rng: Random) -> None:
    query, private = random_query(rng, where=True), rng.choice(PRIVATE_SETS)
    for most in (0, MOST_VARIABLES):
        left = find_residual(query, set(private), most)
        for cofactor in left.cofactors:
            if not isinstance(cofactor, bool):
                assert set(elements(cofactor)).isdisjoint(private)
        for variable in left.variables:
            assert variable.elements == set(elements(variable.atom)) & set(private)


@given(st.integers(0, 2**32).map(Random))
def test_the_boolean_form_detects_the_same(rng: Random) -> None:
    query, window = random_query(rng, where=True), random_window(rng, TYPES, attributes=True)
    assert detect(lift_booleans(query), window) == detect(query, window)


@pytest.mark.parametrize("most", [0, 1, 2, MOST_VARIABLES])
def test_with_too_many_variables_the_whole_query_is_the_only_one(most: int) -> None:
    rng = Random(5)
    for _ in range(150):
        query, private = random_query(rng), rng.choice(PRIVATE_SETS)
        left = find_residual(query, set(private), most)
        atoms = find_private_atoms(lift_booleans(query), set(private))
        assert len(left.variables) == (len(atoms) if len(atoms) <= most else 1)
        window = random_window(rng, TYPES, most=5)
        said = value(left.cofactors[number(left, window)], public(window, private))
        assert said == detect(query, window)


def test_a_query_of_many_private_types_keeps_its_public_bounds() -> None:
    names = [f"x{n}" for n in range(10)]
    left = find_residual(And("a", Or(*names)), set(names))
    assert [v.elements for v in left.variables] == [frozenset(names)]
    assert left.cofactors == (False, Name("a"))


@pytest.mark.parametrize(
    ("text", "atoms", "cofactors"),
    [
        ("a", [], ["a"]),
        ("x", ["x"], ["False", "True"]),
        ("x q", ["x"], ["False", "True"]),
        ("AND(a, OR(x, b))", ["x"], ["AND(a, b)", "a"]),
        ("AND(x, NOT y)", ["x", "y"], ["False", "True", "False", "False"]),
        ("x+", ["x"], ["False", "True"]),
        ("SEQ(a, x)", ["SEQ(a, x)"], ["False", "a"]),
        ("OR(SEQ(a, x), AND(b, x))", ["SEQ(a, x)", "x"], ["False", "a", "b", "OR(a, b)"]),
        ("SEQ(a, NOT x, b)", ["SEQ(a, NOT x, b)"], ["False", "SEQ(a, b)"]),
        ("SEQ(x)", ["x"], ["False", "True"]),
        ("NOT SEQ(a, x)", ["SEQ(a, x)"], ["True", "NOT a"]),
        ("SEQ(a, a)", [], ["SEQ(a, a)"]),
    ],
)
def test_examples(text: str, atoms: list[str], cofactors: list[str]) -> None:
    left = find_residual(parse_pattern(text), {"x", "y"})
    assert [str(variable.atom) for variable in left.variables] == atoms
    assert [str(cofactor) for cofactor in left.cofactors] == cofactors


def test_only_names_and_or_and_not_are_presence() -> None:
    assert is_presence(parse_pattern("AND(a, NOT OR(b, x))"))
    assert not is_presence(parse_pattern("AND(a, SEQ(b, x))"))
    assert not is_presence(parse_pattern("a{2}"))
