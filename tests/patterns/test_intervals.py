"""The general matcher on windows that are too big for the reference."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from tacit.errors import PatternError
from tacit.patterns.intervals import Intervals
from tacit.patterns.language import parse_pattern
from tacit.patterns.reference import Tuple
from tacit.patterns.simplification import simplify
from tacit.patterns.tree import Pattern, Repeat
from tests.patterns.strategies import random_window
from tests.patterns.windowing import Window, event_lists

TYPES = "abcd"
NUMBERS = {name: number for number, name in enumerate(TYPES)}


def run(pattern: Pattern, cases: list[Window]) -> list[bool]:
    lists = event_lists(cases, TYPES)
    out = np.zeros((len(lists), 1), np.bool_)
    Intervals.of(pattern, NUMBERS).run(lists, 0, out)
    return [bool(row) for row in out[:, 0]]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("SEQ(a, SEQ(b, c) WITHIN 1 h)", "SEQ(a, b, c)"),
        ("SEQ(AND(a, b), c)", "OR(SEQ(a, b, c), SEQ(b, a, c))"),
        ("SEQ(a, NOT SEQ(b), c)", "SEQ(a, NOT b, c)"),
        (
            "SEQ(NOT d, AND(a, b), NOT d, c)",
            "OR(SEQ(NOT d, a, b, NOT d, c), SEQ(NOT d, b, a, NOT d, c))",
        ),
        ("(SEQ(a, b) WITHIN 1 h){3}", "SEQ(a, b, a, b, a, b)"),
        ("(a WITHIN 0 s){4}", "a{4}"),
        ("SEQ(AND(a, NOT d), c)", "SEQ(AND(NOT d), a, c)"),
    ],
)
@pytest.mark.parametrize("latest", [10, 60, 1000])
def test_equivalent_patterns_agree_on_big_windows(one: str, other: str, latest: int) -> None:
    rng = Random(latest)
    sizes = (3, 10, 100, 200)
    cases: list[Window] = [
        random_window(rng, TYPES, most=rng.choice(sizes), latest=latest) for _ in range(40)
    ]
    assert run(simplify(parse_pattern(one)), cases) == run(simplify(parse_pattern(other)), cases)


def test_absences_on_both_sides_keep_every_interval_and_stay_bounded() -> None:
    pattern = parse_pattern("SEQ(a, NOT d, AND(SEQ(b, c), SEQ(c, b)), NOT d, a)")
    times = range(0, 120, 2)
    busy = [Tuple(time, frozenset("bc")) for time in times]
    around = [Tuple(-1, frozenset("a")), Tuple(130, frozenset("a"))]
    late = [*around, *busy, Tuple(119, frozenset("d")), Tuple(125, frozenset("d"))]
    early = [*around, *busy[1:-1], Tuple(0, frozenset("d")), Tuple(118, frozenset("d"))]
    assert run(pattern, [[*around, *busy], late, early]) == [True, False, False]


def test_two_parts_do_not_use_the_same_event_however_many_there_are() -> None:
    pattern = parse_pattern("SEQ(AND(a{30}, b), AND(a{30}, c))")
    for count in (59, 60, 61):
        together: Window = [
            Tuple(0, frozenset("abc" if place == 0 else "a")) for place in range(count)
        ]
        assert run(simplify(pattern), [together]) == [count >= 60]


def test_many_counted_types_take_several_words() -> None:
    names = [f"t{number}" for number in range(40)]
    both = f"AND({', '.join(names)})"
    pattern = parse_pattern(f"SEQ({both}, {both})")
    numbers = {name: number for number, name in enumerate(names)}
    once = [Tuple(0, frozenset(names))]
    lists = event_lists([once, once * 2, [*once, Tuple(0, frozenset(names[:-1]))]], names)
    out = np.zeros((3, 1), np.bool_)
    intervals = Intervals.of(pattern, numbers)
    intervals.run(lists, 0, out)
    assert intervals.units.shape[1] > 1
    assert out[:, 0].tolist() == [False, True, False]


def test_a_window_of_thousands_of_tuples_works() -> None:
    rng = Random(1)
    case: Window = [Tuple(time, frozenset(rng.choice("ab"))) for time in range(3000)]
    assert run(parse_pattern("SEQ(a, NOT SEQ(b, c), b)"), [case]) == [True]
    assert run(parse_pattern("SEQ(AND(a, SEQ(b, a)), SEQ(b, a) WITHIN 1 us)"), [case]) == [True]
    assert run(parse_pattern("SEQ(SEQ(a, b) WITHIN 0 s, a)"), [case]) == [False]


def test_repetitions_of_repetitions_are_bounded() -> None:
    pattern = parse_pattern("a")
    for _ in range(3):
        pattern = Repeat(pattern, 1000, None)
    with pytest.raises(PatternError, match="lower the counts"):
        simplify(pattern)
