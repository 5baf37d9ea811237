"""Chains: which patterns they are, and that both automata and the intervals agree on them."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
from numpy.typing import NDArray

from tacit.patterns.bits import ChainBits
from tacit.patterns.chains import Chain, find_chains
from tacit.patterns.event_lists import EventLists, Selection
from tacit.patterns.intervals import Intervals
from tacit.patterns.language import parse_pattern
from tacit.patterns.matcher import Matcher
from tacit.patterns.origins import Origins
from tacit.patterns.reference import Tuple
from tacit.patterns.simplification import simplify
from tacit.patterns.tree import Name, Not, Or, Pattern, Repeat, Seq, Within
from tests.longer import longer
from tests.patterns.strategies import random_window
from tests.patterns.windowing import answers, event_lists

TYPES = "abcdef"
NUMBERS = {name: number for number, name in enumerate(TYPES)}


def chains(text: str) -> list[Chain] | None:
    return find_chains(simplify(parse_pattern(text)))


def types(*names: str) -> tuple[frozenset[str], ...]:
    return tuple(map(frozenset, names))


def test_a_chain_has_elements_gaps_and_a_span() -> None:
    assert chains("SEQ(NOT x, a, NOT y, NOT z, OR(b, c), d+) WITHIN 5 us") == [
        Chain(types("a", "bc", "d"), types("x", "yz", "", ""), 5)
    ]
    assert chains("SEQ(a{2,}, SEQ(b, NOT x, c))") == [
        Chain(types("a", "a", "b", "c"), types("", "", "", "x", ""), None)
    ]


def test_a_choice_becomes_several_chains() -> None:
    found = chains("SEQ(OR(a, SEQ(b, c)), d)")
    assert found is not None
    assert {chain.elements for chain in found} == {types("a", "d"), types("b", "c", "d")}
    assert len(chains("AND(a, b, c) WITHIN 1 s") or []) == 6
    assert len(chains("SEQ(NOT x, a+, NOT y, b)") or []) == 2
    assert len(chains("SEQ(a+, NOT y, b)") or []) == 1


def test_elements_that_share_some_types_are_taken_apart() -> None:
    found = chains("SEQ(OR(a, b), a)")
    assert found is not None
    assert {chain.elements for chain in found} == {types("a", "a"), types("b", "a")}


@pytest.mark.parametrize(
    "text",
    [
        "SEQ(a, NOT SEQ(b, c), d)",
        "SEQ(SEQ(a, b) WITHIN 1 s, c)",
        "SEQ(a, SEQ(NOT x, b))",
        "SEQ(AND(a, SEQ(b, c)), d)",
        "SEQ(OR(a, b), OR(b, c), OR(c, d), OR(d, e), OR(e, a))",
    ],
)
def test_other_patterns_are_no_chains(text: str) -> None:
    assert chains(text) is None


def random_chain(rng: Random, names: Sequence[str], longest: int) -> Pattern:
    parts: list[Pattern] = []
    for _ in range(rng.randint(1, longest)):
        if rng.random() < 0.25:
            parts.append(Not(Or(*rng.sample(names, rng.randint(1, 2)))))
        element: Pattern = Name(rng.choice(names))
        if rng.random() < 0.2:
            element = Or(*rng.sample(names, 2))
        if rng.random() < 0.3:
            element = Repeat(element, rng.randint(1, 3), None)
        parts.append(element)
    if rng.random() < 0.15:
        parts.append(Not(rng.choice(names)))
    parts.append(Name(rng.choice(names)))
    if rng.random() < 0.25:
        parts.append(Not(rng.choice(names)))
    return Seq(*parts)


def by_origins(found: Sequence[Chain], lists: EventLists) -> NDArray[np.bool_]:
    out = np.zeros((len(lists), len(found)), np.bool_)
    origins = Origins.of(found, Selection.of(TYPES, NUMBERS))
    origins.run(lists, np.arange(len(lists)), np.arange(len(found)), out)
    return out


@pytest.mark.parametrize("seed", [0, *longer(*range(1, 6))])
@pytest.mark.parametrize("latest", [15, 5000])
def test_chains_and_intervals_agree_on_big_windows(seed: int, latest: int) -> None:
    rng = Random(seed)
    queries: list[Pattern] = []
    while len(queries) < 15:
        pattern = random_chain(rng, TYPES, 6)
        if rng.random() < 0.5:
            pattern = Within(pattern, rng.randint(0, latest // 4))
        if find_chains(simplify(pattern)) is not None:
            queries.append(pattern)
    names = TYPES[: rng.randint(4, 6)]
    cases = [random_window(rng, names, most=200, latest=latest) for _ in range(12)]
    lists = event_lists(cases, TYPES)
    found = answers(Matcher(queries, TYPES), cases, TYPES)
    out = np.zeros((len(lists), 1), np.bool_)
    for query, pattern in enumerate(queries):
        Intervals.of(simplify(pattern), NUMBERS).run(lists, 0, out)
        assert np.array_equal(found[:, query], out[:, 0]), pattern
        assert np.array_equal(
            found[:, query], by_origins(find_chains(simplify(pattern)) or [], lists).any(axis=1)
        ), pattern


def test_many_chains_fill_several_words_and_long_ones_run_over() -> None:
    rng = Random(3)
    queries = [
        Seq(*rng.choices(TYPES, k=rng.choice((2, 3, 5, 40, 64, 65, 130)))) for _ in range(60)
    ]
    queries += [Seq(Not("f"), *rng.choices("abcde", k=length)) for length in (3, 63, 64, 128, 200)]
    found = [chain for query in queries for chain in find_chains(simplify(query)) or []]
    assert len(found) == len(queries)
    bits = ChainBits.of(found, Selection.of(TYPES, NUMBERS))
    cases = [
        [
            Tuple(time, frozenset(rng.sample(TYPES, rng.choice((1, 1, 2, 3)))))
            for time in range(rng.choice((5, 60, 300, 900)))
        ]
        for _ in range(20)
    ]
    lists = event_lists(cases, TYPES)
    out = np.zeros((len(lists), len(found)), np.bool_)
    assert not bits.run(lists, np.arange(len(found)), out).any()
    assert np.array_equal(out, by_origins(found, lists))
    assert 0.2 < out.mean() < 0.95


@pytest.mark.parametrize("together", [1, 3])
def test_slow_200_times_needs_200_events(together: int) -> None:
    slow = parse_pattern("slow{200,}")
    cases = [
        [Tuple(place // together, frozenset({"slow"})) for place in range(count)]
        for count in (0, 1, 199, 200, 201, 500)
    ]
    found = answers(Matcher([slow, Within(slow, 198)], ["slow"]), cases, ["slow"])
    assert found[:, 0].tolist() == [False, False, False, True, True, True]
    assert found[:, 1].any() == (together > 1)


def test_a_type_that_occurs_twice_at_once_is_reported() -> None:
    found = chains("SEQ(a, b)") or []
    lists = event_lists(
        [[Tuple(0, frozenset("a")), Tuple(0, frozenset("ab"))], [Tuple(0, frozenset("ab"))]], TYPES
    )
    bits = ChainBits.of(found, Selection.of("ab", NUMBERS))
    out = np.zeros((2, 1), np.bool_)
    assert bits.run(lists, np.arange(1), out).tolist() == [True, False]
    assert out.tolist() == [[True], [True]]


def test_absences_around_a_repetition_agree_on_windows_of_many_times() -> None:
    rng = Random(5)
    pattern = simplify(parse_pattern("SEQ(a, NOT d, b+, NOT e, c, NOT b)"))
    cases = [
        [
            Tuple(time, frozenset(rng.choices("abcde", (1, 4, 1, share, share))))
            for time in range(400)
        ]
        for share in (0.02, 0.05, 0.2, 1.0)
        for _ in range(5)
    ]
    lists = event_lists(cases, TYPES)
    out = np.zeros((len(lists), 1), np.bool_)
    Intervals.of(pattern, NUMBERS).run(lists, 0, out)
    assert np.array_equal(out[:, 0], by_origins(find_chains(pattern) or [], lists).any(axis=1))
    assert 0 < out.mean() < 1
