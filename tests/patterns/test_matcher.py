"""The fast matchers equal the reference, on every path and whatever the pattern."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings

from tacit.errors import PatternError
from tacit.patterns.language import parse_pattern
from tacit.patterns.matcher import Matcher, scatter, to_columns
from tacit.patterns.reference import Tuple, detect
from tacit.patterns.tree import And, Name, Not, Or, Pattern, Repeat, Seq, Within
from tests.longer import longer
from tests.patterns.strategies import TYPES, patterns, random_pattern, random_window, windows
from tests.patterns.windowing import Window, answers, bits, event_lists

# The larger sweep: TACIT_SWEEP=50 runs 50 times as many pairs, with other seeds.
SWEEP = int(os.environ.get("TACIT_SWEEP", "1"))


def windows_of(*texts: str) -> list[Window]:
    """Windows such as `0:a 1:ab 1:c`, times before types of one letter each."""
    return [
        [
            Tuple(int(time), frozenset(names))
            for time, names in (tuple_.split(":") for tuple_ in text.split())
        ]
        for text in texts
    ]


def check(queries: Sequence[Pattern], cases: Sequence[Window], types: Sequence[str]) -> Matcher:
    """Compare every query in every window with the reference."""
    matcher = Matcher(queries, types)
    found = answers(matcher, cases, types)
    for query, pattern in enumerate(queries):
        for case, window in enumerate(cases):
            wanted = detect(pattern, window)
            assert found[case, query] == wanted, (pattern, window, wanted)
    return matcher


def composite(rng: Random, types: Sequence[str], depth: int) -> Pattern:
    """What a chain cannot be: orders, ANDs and absences inside each other."""

    def inner() -> Pattern:
        return composite(rng, types, depth - 1)

    makers: list[Callable[[], Pattern]] = [
        lambda: Seq(inner(), inner()),
        lambda: Seq(inner(), inner()),
        lambda: And(inner(), inner()),
        lambda: Or(inner(), inner()),
        lambda: Or(inner(), And(Not(inner()))),
        lambda: Within(inner(), rng.randint(0, 2)),
        lambda: Repeat(inner(), *rng.choice([(1, None), (2, 2), (2, None), (1, 2)])),
        lambda: Seq(Not(inner()), inner()),
        lambda: Seq(inner(), Not(inner()), inner(), Not(inner())),
    ]
    return Name(rng.choice(types)) if depth == 0 or rng.random() < 0.2 else rng.choice(makers)()


def between_absences(rng: Random, types: Sequence[str], depth: int = 2) -> Pattern:
    """A SEQ of composites with absences around some of them."""
    parts: list[Pattern] = []
    for _ in range(2):
        parts += [Not(composite(rng, types, 1))] * rng.randint(0, 1)
        parts.append(composite(rng, types, depth))
    parts += [Not(composite(rng, types, 1))] * rng.randint(0, 1)
    return Seq(*parts) if rng.random() < 0.7 else Within(Seq(*parts), rng.randint(0, 3))


@pytest.mark.parametrize("seed", [0, *longer(1)])
def test_random_queries_are_detected_where_the_reference_detects_them(seed: int) -> None:
    rng = Random(f"{SWEEP} {seed}")
    paths: Counter[str] = Counter()
    for _ in range(20 * SWEEP):
        types = TYPES[: rng.choice((2, 3, 3))]
        queries = [random_pattern(rng, types, rng.choice((1, 2, 2, 3))) for _ in range(40)]
        latest = rng.choice((0, 1, 3, 5))
        cases = [random_window(rng, types, most=4, latest=latest) for _ in range(40)]
        paths.update(check(queries, cases, types).explain())
    assert all(paths[path] > 60 for path in ("presence", "order", "intervals"))


@pytest.mark.cases(1)
@pytest.mark.parametrize("seed", range(2))
def test_nested_orders_between_absences_are_exact(seed: int) -> None:
    rng = Random(f"{SWEEP} {seed}")
    paths: Counter[str] = Counter()
    for _ in range(8 * SWEEP):
        types = TYPES[: rng.choice((1, 2, 3))]
        queries = [between_absences(rng, types) for _ in range(20)]
        latest = rng.choice((0, 1, 3))
        cases = [random_window(rng, types, most=3, latest=latest) for _ in range(30)]
        paths.update(check(queries, cases, types).explain())
    assert paths["intervals"] > 100


@pytest.mark.cases(1)
@pytest.mark.parametrize("seed", range(2))
def test_absences_prefer_matches_that_reach_further(seed: int) -> None:
    """More tuples, one event each: the nearest match is often not the one that counts."""
    rng = Random(f"{SWEEP} {seed}")
    for _ in range(8 * SWEEP):
        queries = [between_absences(rng, "abcd", 1) for _ in range(30)]
        cases = [
            [Tuple(time, frozenset(rng.choice("aabbcd"))) for time in range(rng.randint(4, 8))]
            for _ in range(30)
        ]
        check(queries, cases, "abcd")


@settings(max_examples=40, deadline=None)
@given(patterns(depth=2), windows(most=5))
def test_a_pattern_is_detected_where_the_reference_detects_it(
    pattern: Pattern, window: list[Tuple]
) -> None:
    check([pattern], [window], TYPES)


def test_equal_times_count_as_in_order_and_events_are_used_once() -> None:
    cases = windows_of(
        "", "0:a", "0:ab", "0:a 0:a", "0:b 0:a", "0:ab 0:a", "0:ab 0:ab", "0:a 1:ab 1:a 2:b",
        "3:aab 3:b 3:b", "0:abc", "0:abc 0:abc", "0:ac 1:b 1:a",
    )  # fmt: skip
    texts = [
        "SEQ(a, b)", "SEQ(b, a)", "SEQ(a, a)", "SEQ(a, b, a)", "SEQ(a, a, b, b)", "a{3}",
        "SEQ(OR(a, b), OR(a, b))", "SEQ(OR(a, b), a)", "SEQ(OR(a, b), OR(b, c), OR(a, c))",
        "SEQ(a, b) WITHIN 0 s", "SEQ(a, NOT b, a)", "SEQ(AND(a, b), a)",
        "SEQ(AND(a, b), AND(a, b))", "SEQ(SEQ(a, b) WITHIN 0 s, SEQ(a, b) WITHIN 0 s)",
        "AND(SEQ(a, b), SEQ(b, a)) WITHIN 0 s", "SEQ(AND(SEQ(a, a), b), SEQ(b, a))",
    ]  # fmt: skip
    check([parse_pattern(text) for text in texts], cases, "abc")


def test_an_absence_is_strictly_between_and_reaches_to_the_edge() -> None:
    cases = windows_of(
        "0:a 0:b 2:c", "0:a 1:b 2:c", "0:a 2:b 2:c", "0:a 1:b 1:a 2:c", "0:a 2:c 3:b",
        "0:b 1:a 2:c", "0:a 1:b 2:c 3:b", "0:c 1:a", "0:ab 1:bc", "0:a 1:b 1:c 2:b 3:c",
    )  # fmt: skip
    texts = [
        "SEQ(a, NOT b, c)", "SEQ(NOT b, a, c)", "SEQ(a, c, NOT b)", "SEQ(NOT b, a+, NOT b)",
        "SEQ(a, NOT b, c) WITHIN 2 us", "SEQ(NOT b, a, NOT b, c, NOT b)", "SEQ(NOT a, NOT b)",
        "SEQ(a, NOT SEQ(b, b), c)", "SEQ(a, NOT AND(b, c), c)", "SEQ(AND(a, NOT b), c)",
        "SEQ(OR(a, NOT b), c)", "SEQ(a, SEQ(NOT b, c))", "SEQ(NOT b, SEQ(a, c), NOT b)",
        "NOT SEQ(a, NOT b, c)", "SEQ(NOT b, AND(a, c), NOT b)", "SEQ(c, NOT b, a+, NOT b, c)",
    ]  # fmt: skip
    check([parse_pattern(text) for text in texts], cases, "abc")


def test_more_than_64_event_types_take_several_words() -> None:
    rng = Random(7)
    types = [f"t{number}" for number in range(150)]
    for _ in range(6):
        few = rng.sample(types, 4)
        queries = [random_pattern(rng, few, 2) for _ in range(40)]
        cases = [random_window(rng, few, most=5) for _ in range(40)]
        check(queries, cases, types)


def test_an_empty_window_gives_what_the_reference_gives() -> None:
    rng = Random(8)
    queries = [random_pattern(rng, TYPES, 3) for _ in range(500)]
    check(queries, [[]] * 3, TYPES)


def test_no_queries_no_types_and_no_windows_work() -> None:
    matcher = Matcher([], TYPES)
    assert not matcher.ordered_types.any()
    assert matcher.ordered_when_empty.shape == (0,)
    assert matcher.combine(np.zeros((2, 3, 4), np.uint64)).shape == (2, 0, 4)
    assert answers(matcher, [[]], TYPES).shape == (1, 0)
    always, never = Or("a", Not("a")), And("a", Not("a"))
    columns = np.array([[[0b10], [0], [0]]], np.uint64)
    assert Matcher([always, never], TYPES).combine(columns).tolist() == [[[2**64 - 1], [0]]]
    ordered = Matcher([Seq("a", "b")], TYPES)
    assert answers(ordered, [], TYPES).shape == (0, 1)


def test_ten_thousand_queries_work() -> None:
    rng = Random(9)
    types = [f"t{number}" for number in range(30)]
    queries: list[Pattern] = []
    for number in range(10_000):
        chosen = rng.sample(types, 3)
        queries.append(Seq(*chosen) if number % 5 == 0 else And(*chosen))
    cases = [random_window(rng, types, most=60, latest=20) for _ in range(70)]
    found = answers(Matcher(queries, types), cases, types)
    for query in rng.sample(range(10_000), 200):
        for case in rng.sample(range(70), 5):
            assert found[case, query] == detect(queries[query], cases[case])


@pytest.mark.parametrize(
    "wrap",
    [
        lambda inner: Not(inner),
        lambda inner: And(inner, "a"),
        lambda inner: Or(And(inner, "b"), "c"),
        lambda inner: Seq(inner, "a"),
        lambda inner: Seq("b", inner),
        lambda inner: Within(Seq(inner, "a"), 3),
        lambda inner: Seq("a", Not(inner)),
        lambda inner: Repeat(inner, 1, None),
        lambda inner: Or(Seq(inner, "b"), "c"),
    ],
)
def test_patterns_nested_200_deep_work(wrap: Callable[[Pattern], Pattern]) -> None:
    deep = shallow = parse_pattern("SEQ(a, b)")
    for level in range(200):
        deep = wrap(deep)
        shallow = deep if level < 4 else shallow
    cases = windows_of("", "0:a", "0:b 1:a", "0:a 1:b", "0:c 1:a 2:b")
    assert answers(Matcher([deep], TYPES), cases, TYPES).shape == (5, 1)
    check([shallow], cases, TYPES)


def test_the_same_sub_pattern_is_matched_once() -> None:
    ordered = parse_pattern("SEQ(a, b)")
    matcher = Matcher([ordered, Not(ordered), And(ordered, "c"), Seq(Seq("a"), "b")], TYPES)
    assert matcher.ordered_when_empty.tolist() == [False]


def test_only_types_in_ordered_parts_need_lists() -> None:
    assert Matcher([parse_pattern("AND(a, SEQ(c, b))")], TYPES).ordered_types.tolist() == [0b110]
    assert Matcher([parse_pattern("AND(a+, SEQ(b), NOT c{1,4})")], TYPES).ordered_types[0] == 0


def test_each_query_says_which_path_it_takes() -> None:
    texts = {
        "AND(a, NOT b)": "presence",
        "a{1,3} WITHIN 1 s": "presence",
        "SEQ(NOT a, NOT b)": "presence",
        "SEQ(a, NOT c, b{2,}) WITHIN 1 s": "order",
        "AND(a, b) WITHIN 1 s": "order",
        "SEQ(OR(SEQ(a, b), c), AND(a, NOT b))": "order",
        "SEQ(a, NOT SEQ(b, c), c)": "intervals",
        "AND(c, SEQ(a x, b y) WHERE x.v < y.v)": "conditions",
    }
    matcher = Matcher([parse_pattern(text) for text in texts], TYPES)
    assert matcher.explain() == list(texts.values())


def test_conditional_parts_are_supplied_by_the_caller() -> None:
    condition = parse_pattern("SEQ(a x, b y) WHERE x.v < y.v")
    matcher = Matcher([Or(And("c", condition), Not(condition)), condition], TYPES)
    assert matcher.conditional == (condition,)
    columns = np.array([[[0], [0], [0b1100], [0b1010]]], np.uint64)
    found = bits(matcher.combine(columns), 4)[0]
    assert found.tolist() == [[True, False, True, True], [False, True, False, True]]


def test_an_unknown_event_type_is_named() -> None:
    with pytest.raises(PatternError, match=r"'stoped'\. Did you mean 'stopped'\?"):
        Matcher([Seq("stoped", "a")], ["a", "stopped"])


def test_many_windows_and_subjects_keep_apart() -> None:
    rng = Random(10)
    queries = [random_pattern(rng, TYPES, 2) for _ in range(20)]
    matcher = Matcher(queries, TYPES)
    cases = [[random_window(rng, TYPES, most=3) for _ in range(130)] for _ in range(3)]
    whole = [answers(matcher, window, TYPES) for window in cases]
    words = np.array(
        [[[sum(1 << TYPES.index(n) for n in frozenset().union(*(t.types for t in c)))] for c in w]
         for w in cases], np.uint64,
    )  # fmt: skip
    keys, rows = [], []
    for place in rng.sample(range(390), 390):
        window, subject = divmod(place, 130)
        if cases[window][subject]:
            keys.append(place)
            rows.append((window, subject))
    ordered = matcher.match_ordered(event_lists([cases[w][s] for w, s in rows], TYPES))
    columns = scatter(np.array(keys), ordered, matcher.ordered_when_empty, 3, 130)
    found = bits(matcher.combine(np.concatenate([to_columns(words, 3), columns], axis=1)), 130)
    for window in range(3):
        assert np.array_equal(found[window].T, whole[window])
