"""Queries as mechanisms that flip elements see them: contexts and tables."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.patterns.language import parse_pattern
from tacit.patterns.reference import Tuple, detect
from tacit.patterns.tree import And, Name, Not, Or, Pattern, elements
from tacit.privacy.affected_queries import MOST_ELEMENTS, MOST_SIGNALS, AffectedQuery, find_affected
from tacit.privacy.policies import Policy, PrivatePattern
from tests.patterns.strategies import random_pattern, random_window

PUBLIC = ("a", "b", "c", "d")
HIDDEN = ("x", "y", "z")
POLICY = Policy(
    (
        PrivatePattern("p", frozenset({"x", "y"}), Fraction(1)),
        PrivatePattern("q", frozenset({"y", "z"}), Fraction(2)),
    )
)


def presence(rng: Random, depth: int) -> Pattern:
    """A pattern of names, AND, OR and NOT."""
    if depth == 0 or rng.random() < 0.15:
        return Name(rng.choice(PUBLIC + HIDDEN))
    if rng.random() < 0.3:
        return Not(presence(rng, depth - 1))
    return rng.choice((And, Or))(*(presence(rng, depth - 1) for _ in range(rng.choice((2, 2, 3)))))


def context(part: AffectedQuery, window: list[Tuple]) -> int:
    """The number of a window's context, by the reference."""
    public = [Tuple(t.time, t.types - POLICY.private) for t in window]
    return sum(detect(signal, public) << n for n, signal in enumerate(part.signals))


def there(part: AffectedQuery, window: list[Tuple]) -> int:
    """The number of a window's presence, by the reference."""
    return sum(detect(Name(name), window) << n for n, name in enumerate(part.elements))


@given(st.integers(0, 2**32).map(Random))
def test_the_table_tells_a_query_of_presence(rng: Random) -> None:
    query, window = presence(rng, 3), random_window(rng, PUBLIC + HIDDEN)
    for part in find_affected(POLICY, [query]):
        assert part.elements == tuple(sorted(POLICY.private.intersection(elements(query))))
        if part.table is None:
            assert len(part.signals) <= 2  # too many signals: the whole query is one variable
            continue
        assert part.table.shape == (1 << len(part.signals), 1 << len(part.elements))
        found = part.table[context(part, window), there(part, window)]
        assert found == detect(query, window), f"{query} on {window}"


@given(st.integers(0, 2**32).map(Random))
def test_a_decided_context_says_what_the_query_is(rng: Random) -> None:
    """For queries of presence and of order alike, whatever private events are added."""
    order = random_pattern(rng, PUBLIC[:2] + HIDDEN, 2)
    query = rng.choice((And, Or))(order, presence(rng, 1))
    window = random_window(rng, PUBLIC + HIDDEN, most=4)
    for part in find_affected(POLICY, [query]):
        decided = part.decided[context(part, window)]
        assert len(part.decided) == 1 << len(part.signals)
        if decided >= 0:
            assert detect(query, window) == bool(decided)
        if part.table is not None:
            rows = [set(row) for row in part.table.tolist()]
            assert [{0: False, 1: True}.get(d) for d in part.decided.tolist()] == [
                row.pop() if len(row) == 1 else None for row in rows
            ]


@given(st.integers(0, 2**32).map(Random))
def test_an_ordered_query_has_no_table(rng: Random) -> None:
    query = And(parse_pattern("SEQ(a, x)"), presence(rng, 2))
    (part,) = find_affected(POLICY, [query])
    assert part.table is None
    assert len(part.signals) <= MOST_SIGNALS


def test_only_queries_with_private_elements_are_touched_and_keep_their_numbers() -> None:
    queries = [parse_pattern(text) for text in ("a", "AND(a, x)", "SEQ(a, b)", "SEQ(a, NOT z)")]
    assert [part.query for part in find_affected(POLICY, queries)] == [1, 3]
    assert find_affected(Policy(()), queries) == ()


def wide_policy(count: int) -> tuple[Policy, list[str]]:
    names = [f"x{n}" for n in range(count)]
    return Policy((PrivatePattern("p", frozenset(names), Fraction(1)),)), names


@pytest.mark.parametrize("count", [MOST_ELEMENTS, MOST_ELEMENTS + 1, 20])
def test_a_query_of_many_private_elements_is_wide_and_has_no_table(count: int) -> None:
    policy, names = wide_policy(count)
    (part,) = find_affected(policy, [And("a", Or(*names))])
    assert part.wide == (count > MOST_ELEMENTS)
    assert (part.table is None) == part.wide
    assert [str(signal) for signal in part.signals] == ["a"]
    assert part.decided.tolist() == [0, -1]


def test_many_public_cofactors_leave_two_bounds_for_context() -> None:
    """Each private element goes with a public one of its own: 2**4 cofactors are too many."""
    query = Or(*(And(f"x{n}", f"b{n}") for n in range(4)))
    policy, _ = wide_policy(4)
    (part,) = find_affected(policy, [query])
    assert part.table is None
    assert len(part.signals) == 1
    rng = np.random.default_rng(1)
    for _ in range(50):
        types = {f"{kind}{n}" for kind in "xb" for n in range(4) if rng.random() < 0.4}
        public = [Tuple(0, frozenset(t for t in types if t[0] == "b"))]
        number = sum(detect(signal, public) << n for n, signal in enumerate(part.signals))
        if part.decided[number] >= 0:
            assert detect(query, [Tuple(0, frozenset(types))]) == bool(part.decided[number])
