"""What detection means, sentence by sentence, in cases worked out by hand."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.patterns.language import parse_pattern
from tacit.patterns.reference import Event, Match, Tuple, detect, matches
from tests.patterns.strategies import patterns, windows


def window(text: str) -> list[Tuple]:
    """A window from text such as `a1 b2 ab3`: types, each one letter, and a time."""
    return [
        Tuple(int(word.lstrip("abcd")), frozenset(word.rstrip("0123456789")))
        for word in text.split()
    ]


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        # A single event.
        ("a", ["a1", "b0 a1", "ab1"], ["", "b1"]),
        # SEQ: in order of time, equal times count, other events do not hinder.
        ("SEQ(a, b)", ["a1 b2", "b2 a1", "a1 b1", "b1 a1", "a1 c1 c2 b3"], ["b1 a2", "a1", ""]),
        # One tuple that gives both types gives two events.
        ("SEQ(a, b)", ["ab1"], []),
        # SEQ uses distinct events.
        ("SEQ(a, a)", ["a1 a2", "a1 a1"], ["a1"]),
        ("SEQ(a, b, a)", ["a1 b2 a3", "ab1 a1"], ["a1 b2", "ab1"]),
        ("SEQ(OR(a, b), a)", ["b1 a1", "a1 a2"], ["a1"]),
        ("SEQ(AND(a, b), b)", ["a1 b2 b3"], ["a1 b2", "b1 b2 a3"]),
        # AND: any order, parts may share events.
        ("AND(a, b)", ["b1 a2", "a1 b2", "ab1"], ["a1", "b1"]),
        ("AND(a, a)", ["a1"], [""]),
        ("AND(SEQ(a, b), SEQ(b, c))", ["a1 b2 c3"], ["b1 a2 c3"]),
        # OR.
        ("OR(a, b)", ["a1", "b1", "a1 b1"], ["", "c1"]),
        # NOT between two parts: strictly between their times.
        ("SEQ(a, NOT b, c)", ["a1 c3", "a1 b1 c3", "a1 b3 c3", "b0 a1 c3 b4"], ["a1 b2 c3"]),
        # Another choice of neighbours may have a free gap.
        ("SEQ(a, NOT b, c)", ["a1 b2 a3 c4", "a1 c2 b3 c4", "abc1"], ["a1 b2 b3 c4"]),
        # NOT first or last reaches to the window's edge.
        ("SEQ(NOT a, b)", ["b1 a2", "a1 b1", "b1"], ["a1 b2", ""]),
        ("SEQ(b, NOT a)", ["a1 b2", "a2 b2", "b2"], ["b1 a2", ""]),
        ("SEQ(NOT a)", ["", "b1"], ["a1"]),
        # Two NOTs in one gap; a NOT in each of two gaps.
        ("SEQ(a, NOT b, NOT d, c)", ["a1 c3"], ["a1 b2 c3", "a1 d2 c3"]),
        ("SEQ(a, NOT b, c, NOT b, a)", ["a1 c2 a3", "a1 b2 c2 a3"], ["a1 b2 c3 a4"]),
        # NOT of a longer pattern: no match of it wholly and strictly inside the gap.
        (
            "SEQ(a, NOT SEQ(b, d), c)",
            ["a1 d2 b3 c4", "a1 b1 d2 c3", "a1 b2 d3 c3"],
            ["a1 b2 d3 c4", "a1 bd2 c3"],
        ),
        ("SEQ(a, NOT NOT b, c)", ["a1 c2 b3"], ["a1 c2"]),
        # NOT elsewhere: absent from the whole window, a match without a time.
        ("NOT a", ["", "b1"], ["a1"]),
        ("NOT SEQ(a, b)", ["b1 a2"], ["a1 b2"]),
        ("NOT NOT a", ["a1"], [""]),
        ("AND(b, NOT a)", ["b1"], ["b1 a2"]),
        ("SEQ(a, AND(NOT b), c)", ["a1 c2"], ["a1 c2 b3", "b0 a1 c2"]),
        ("SEQ(a, OR(d, NOT b), c)", ["a1 c2", "a1 d2 b2 c3"], ["a1 c2 b3"]),
        ("SEQ(a, SEQ(NOT b, c))", ["a1 c2", "a1 c2 b3"], ["b0 a1 c2"]),
        # A part without a time does not bound a gap: the next one does.
        ("SEQ(a, OR(d, NOT d), NOT b, c)", ["b0 a1 c2"], ["a1 b2 c3"]),
        ("NOT a{2}", ["", "a1"], ["a1 a2"]),
        # Repetition: several times in order, by distinct events.
        ("a+", ["a1", "a1 a2"], [""]),
        ("a{2}", ["a1 a1", "a1 a2 a3"], ["a1"]),
        ("a{2,}", ["a1 a2", "a1 a2 a3"], ["a1"]),
        ("a{2,3}", ["a1 a2", "a1 a2 a3 a4"], ["a1"]),
        ("SEQ(a, b){2}", ["a1 b2 a3 b4", "ab1 ab1"], ["a1 a2 b3 b4", "a1 b2"]),
        ("SEQ(a{2}, b)", ["a1 a2 b2"], ["a1 b2 a3"]),
        ("(NOT a){2}", ["", "b1"], ["a1"]),
        # The largest count matters beside a NOT; events inside the match do not hinder it.
        ("SEQ(NOT a, a{1}, NOT a)", ["a1", "a1 a1"], ["a1 a2"]),
        ("SEQ(NOT a, a{1,2}, NOT a)", ["a1 a2 a3"], [""]),
        # WITHIN: last minus first, inclusive.
        ("SEQ(a, b) WITHIN 2 us", ["a1 b3", "a1 a4 b5"], ["a1 b4"]),
        ("AND(a, b) WITHIN 0 s", ["a1 b1", "ab1"], ["a1 b2"]),
        ("SEQ(SEQ(a, b) WITHIN 1 us, c)", ["a1 b2 c9"], ["a1 b3 c9"]),
        ("SEQ(a, NOT b, c) WITHIN 2 us", ["b0 a1 c3 b4"], ["a1 c4"]),
        ("(NOT a) WITHIN 0 s", ["", "b1 b5"], ["a1"]),
        ("NOT (SEQ(a, b) WITHIN 1 us)", ["a1 b3"], ["a1 b2"]),
        ("a{2} WITHIN 1 us", ["a1 a5 a6"], ["a1 a5 a7"]),
    ],
)
def test_detection(pattern: str, yes: list[str], no: list[str]) -> None:
    tree = parse_pattern(pattern)
    assert [text for text in yes if not detect(tree, window(text))] == []
    assert [text for text in no if detect(tree, window(text))] == []


def pair(first: dict[str, Any], second: dict[str, Any]) -> list[Tuple]:
    return [Tuple(1, frozenset("a"), first), Tuple(2, frozenset("b"), second)]


@pytest.mark.parametrize(
    ("condition", "yes", "no"),
    [
        ("q.v > 2 * p.v", [(1, 3)], [(1, 2), (None, 3), (1, nan), (1, inf)]),
        ("NOT q.v > p.v", [(3, 1)], [(1, 3), (None, 3), (nan, nan)]),
        ("p.v = q.v", [(1, 1), (1, 1.0)], [(1, 2), (None, None)]),
        ("p.v <> q.v", [(1, 2)], [(1, 1), (None, 1)]),
        ("p.v = 1 OR q.v = 1", [(1, None), (None, 1)], [(2, 2), (2, None)]),
        ("p.v = 1 AND q.v = 1", [(1, 1)], [(1, None), (1, 2)]),
        ("NOT (p.v = 1 AND q.v = 1)", [(2, None), (1, 2)], [(1, 1), (1, None)]),
        ("p.v / q.v > 1", [(3, 2)], [(3, 0), (2, 3)]),
        ("p.v % q.v = 1", [(3, 2)], [(3, 0), (4, 2)]),
        ("p.v - q.v = -1", [(1, 2)], [(2, 1)]),
        ("p.v = 'it''s'", [("it's", 0)], [("its", 0), (None, 0)]),
        ("p.v = TRUE", [(True, 0)], [(False, 0)]),
    ],
)
def test_conditions(condition: str, yes: list[tuple[Any, Any]], no: list[tuple[Any, Any]]) -> None:
    tree = parse_pattern(f"SEQ(a p, b q) WHERE {condition}")
    for expected, cases in ((True, yes), (False, no)):
        for first, second in cases:
            assert detect(tree, pair({"v": first}, {"v": second})) is expected, (first, second)


def test_a_condition_chooses_among_all_matches() -> None:
    values = [("a", 1, 5), ("a", 2, 1), ("b", 3, 4)]
    found = [Tuple(time, frozenset(type_), {"v": v}) for type_, time, v in values]
    assert detect(parse_pattern("SEQ(a p, b q) WHERE p.v < q.v"), found)
    assert not detect(parse_pattern("SEQ(a p, b q) WHERE p.v = q.v"), found)


def test_a_condition_inside_a_not_tells_which_events_are_absent() -> None:
    found = [Tuple(1, frozenset("a")), Tuple(2, frozenset("b"), {"v": 5}), Tuple(3, frozenset("c"))]
    assert detect(parse_pattern("SEQ(a, NOT (b p WHERE p.v < 5), c)"), found)
    assert not detect(parse_pattern("SEQ(a, NOT (b p WHERE p.v <= 5), c)"), found)


def test_a_missing_attribute_meets_no_condition() -> None:
    assert not detect(parse_pattern("a p WHERE p.v = p.v"), window("a1"))


def test_matches_name_the_events_they_use() -> None:
    assert matches(parse_pattern("SEQ(a p, b)"), window("a1 b2")) == {
        Match(frozenset({Event(1, 0, "a"), Event(2, 1, "b")}), frozenset({("p", 0)}))
    }


@given(patterns(), windows(), st.randoms(use_true_random=False))
def test_the_order_of_arrival_does_not_matter(pattern: Any, found: Any, rng: Any) -> None:
    shuffled = list(found)
    rng.shuffle(shuffled)
    assert detect(pattern, found) == detect(pattern, shuffled)


@given(patterns(negation=False), windows(most=4), windows(most=2))
def test_more_events_never_hinder_a_pattern_without_not(
    pattern: Any, found: Any, more: Any
) -> None:
    assert detect(pattern, found) <= detect(pattern, [*found, *more])
