"""Three values: never decided where some choice of the unknown events would flip it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, product
from math import nan
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.patterns import ternary
from tacit.patterns.language import parse_pattern
from tacit.patterns.reference import Tuple, detect
from tacit.patterns.ternary import Ternary, find_status, overapproximate, underapproximate
from tacit.patterns.tree import And, Name, Not, Or, Pattern, Seq, elements
from tests.patterns.strategies import random_pattern, random_window

KNOWN = ("a", "b")
UNKNOWN = ("x", "y")
TIMES = (2, 4)
PLACES = (1, 2, 3, 4, 5)
"""Before, at, between and after the known times: there are no other places in time."""


def worlds(
    known: Sequence[Tuple], most: int, attributes: Sequence[dict[str, object]] = ({},)
) -> Iterator[list[Tuple]]:
    """The known window with every choice of up to `most` unknown events."""
    events = [
        Tuple(time, frozenset({type_}), values)
        for time, type_, values in product(PLACES, UNKNOWN, attributes)
    ]
    for number in range(most + 1):
        for added in combinations(events, number):
            yield [*known, *added]


def known_window(rng: Random, attributes: bool = False) -> list[Tuple]:
    """Up to four known tuples at the two known times."""
    window = random_window(rng, KNOWN, most=4, latest=1, attributes=attributes)
    return [Tuple(TIMES[t.time], t.types, t.attributes) for t in window]


def broken_promises(
    pattern: Pattern, known: Sequence[Tuple], most: int, **options: Sequence[dict[str, object]]
) -> Iterator[Sequence[Tuple]]:
    """The worlds in which a pattern that was decided turns out otherwise."""
    decided = find_status(pattern, frozenset(UNKNOWN), known)
    if decided is not Ternary.OPEN:
        for world in worlds(known, most, **options):
            if detect(pattern, world) != (decided is Ternary.TRUE):
                yield world


def sweep(seed: int, patterns: int, most: int) -> int:
    """How many decided patterns were checked in every world; fails where a promise is broken."""
    rng = Random(seed)
    checked = 0
    for _ in range(patterns):
        pattern = random_pattern(rng, KNOWN + UNKNOWN, 3)
        for _ in range(3):
            known = known_window(rng)
            if find_status(pattern, frozenset(UNKNOWN), known) is not Ternary.OPEN:
                checked += bool(set(elements(pattern)) & set(UNKNOWN))
                for world in broken_promises(pattern, known, most):
                    pytest.fail(f"{pattern} was decided on {known} but not in {world}")
    return checked


def test_a_decided_pattern_is_never_flipped_by_up_to_two_unknown_events() -> None:
    assert sweep(seed=1, patterns=400, most=2) > 150


def test_a_decided_pattern_is_never_flipped_by_three_unknown_events() -> None:
    assert sweep(seed=2, patterns=60, most=3) > 20


def test_a_sweep_finds_a_rewriting_that_keeps_the_not_beside_a_dropped_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ternary, "_keeps_its_gap", lambda *_: True)
    with pytest.raises(pytest.fail.Exception):
        sweep(seed=1, patterns=400, most=2)


def test_enumeration_finds_a_rewriting_that_looks_only_at_the_nearest_part_beside_a_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A part without a time does not bound a gap, so the next one must be looked at too."""
    monkeypatch.setattr(ternary, "_has_time", lambda *_: True)
    pattern = parse_pattern("SEQ(x, OR(a{2}, NOT a{3}), NOT b)")
    assert any(True for _ in broken_promises(pattern, [Tuple(2, frozenset("b"))], 1))


def test_enumeration_finds_a_rewriting_that_puts_a_whole_window_not_into_a_gap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SEQ(a, OR(NOT b, x), a) must not become SEQ(a, NOT b, a)."""
    monkeypatch.setattr(
        ternary, "_seq", lambda made: Seq(*(r for _, r in made if not isinstance(r, bool)))
    )
    known = [Tuple(t, frozenset(e)) for t, e in ((2, "b"), (4, "a"), (4, "a"))]
    assert any(True for _ in broken_promises(parse_pattern("SEQ(a, OR(NOT b, x), a)"), known, 1))


def test_conditions_on_unknown_elements_never_decide() -> None:
    rng = Random(3)
    values: list[dict[str, object]] = [{"v": v, "w": w} for v, w in ((0, 1), (2, 0), (nan, 1))]
    checked = 0
    for _ in range(500):
        pattern = random_pattern(rng, KNOWN + UNKNOWN, 2, where=True)
        known = known_window(rng, attributes=True)
        if find_status(pattern, frozenset(UNKNOWN), known) is not Ternary.OPEN:
            checked += bool(set(elements(pattern)) & set(UNKNOWN))
            assert not any(True for _ in broken_promises(pattern, known, 1, attributes=values)), (
                f"{pattern} on {known}"
            )
    assert checked > 50


def presence(rng: Random, depth: int) -> Pattern:
    """A pattern of names, AND, OR and NOT."""
    if depth == 0 or rng.random() < 0.15:
        return Name(rng.choice(KNOWN + UNKNOWN))
    if rng.random() < 0.3:
        return Not(presence(rng, depth - 1))
    parts = [presence(rng, depth - 1) for _ in range(rng.choice((2, 2, 3)))]
    return rng.choice((And, Or))(*parts)


@given(st.randoms(use_true_random=False))
def test_presence_alone_is_decided_exactly(rng: Random) -> None:
    pattern = presence(rng, 3)
    known = [Tuple(0, frozenset(name for name in KNOWN if rng.random() < 0.5))]
    answers = {
        detect(pattern, [*known, Tuple(0, frozenset(chosen))])
        for number in range(3)
        for chosen in combinations(UNKNOWN, number)
    }
    expected = (
        Ternary.OPEN if len(answers) > 1 else Ternary.TRUE if True in answers else Ternary.FALSE
    )
    assert find_status(pattern, frozenset(UNKNOWN), known) is expected


@pytest.mark.parametrize(
    ("text", "sure", "possible"),
    [
        ("x", "False", "True"),
        ("NOT x", "False", "True"),
        ("a", "a", "a"),
        ("AND(a, x)", "False", "a"),
        ("OR(a, x)", "a", "True"),
        ("OR(x, NOT x)", "True", "True"),
        ("AND(x, NOT x)", "False", "False"),
        ("NOT AND(a, x)", "NOT a", "True"),
        ("NOT NOT x", "False", "True"),
        ("SEQ(a, NOT x, b)", "False", "SEQ(a, b)"),
        ("SEQ(a, NOT b, x, a)", "False", "SEQ(a, a)"),
        ("SEQ(a, NOT b, a, x)", "False", "SEQ(a, NOT b, a)"),
        ("SEQ(NOT b, x, a)", "False", "SEQ(a)"),
        ("SEQ(a, NOT b, OR(a, NOT x))", "SEQ(a, NOT b, a)", "SEQ(a)"),
        ("SEQ(a, NOT AND(b, x), a)", "SEQ(a, NOT b, a)", "SEQ(a, a)"),
        ("SEQ(a, OR(NOT b, x), a)", "SEQ(a, AND(NOT b), a)", "SEQ(a, a)"),
        ("SEQ(a{2}, x+, b) WITHIN 5 s", "False", "SEQ(a{2}, b) WITHIN 5 s"),
        ("(SEQ(a, x)){2,3}", "False", "SEQ(a){2,3}"),
        ("SEQ(a p, x q) WHERE p.v < q.v", "False", "SEQ(a p)"),
        (
            "SEQ(a p, x q) WHERE NOT (p.v < q.v OR p.v > 3)",
            "False",
            "SEQ(a p) WHERE NOT (p.v > 3)",
        ),
        ("OR(a p, b p) WHERE p.v < 1", "OR(a p, b p) WHERE p.v < 1", "OR(a p, b p) WHERE p.v < 1"),
    ],
)
def test_rewriting(text: str, sure: str, possible: str) -> None:
    pattern = parse_pattern(text)
    assert (str(underapproximate(pattern, {"x"})), str(overapproximate(pattern, {"x"}))) == (
        sure,
        possible,
    )


def test_nothing_unknown_leaves_a_pattern_as_it_is() -> None:
    rng = Random(4)
    for _ in range(300):
        pattern = random_pattern(rng, KNOWN)
        known = random_window(rng, KNOWN)
        expected = Ternary.TRUE if detect(pattern, known) else Ternary.FALSE
        assert find_status(pattern, frozenset(), known) is expected


def test_unknown_events_in_the_window_are_not_looked_at() -> None:
    window = [Tuple(1, frozenset("ax")), Tuple(2, frozenset("x"))]
    assert find_status(parse_pattern("SEQ(a, x)"), {"x"}, window) is Ternary.OPEN


def test_many_elements_that_occur_both_ways_take_no_exponential_time() -> None:
    names = [f"x{i}" for i in range(40)]
    pattern = And(*(Or(name, Not(name)) for name in names))
    assert underapproximate(pattern, set(names)) is False
    assert overapproximate(pattern, set(names)) is True


def test_a_pattern_nested_200_deep_is_rewritten() -> None:
    pattern = parse_pattern("SEQ(a, NOT " * 100 + "x" + ")" * 100)
    assert underapproximate(pattern, {"x"}) is not True
    assert overapproximate(pattern, {"x"}) is not False
