"""The joins against the reference matcher, on random patterns and windows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf, isfinite, nan
from random import Random
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import SchemaError
from tacit.patterns import reference, relational
from tacit.patterns.aliases import iterate_given_aliases, rebuild, rename
from tacit.patterns.conditions import (
    Arithmetic,
    Attribute,
    Comparator,
    Comparison,
    Condition,
    Conjunction,
    Constant,
    Disjunction,
    Negation,
    Operator,
    Term,
)
from tacit.patterns.joins import find_ranges, iterate_pairs
from tacit.patterns.reference import Tuple
from tacit.patterns.relational import Relational
from tacit.patterns.tree import And, Name, Not, Or, Pattern, Repeat, Seq, Where, Within
from tests.patterns.strategies import random_pattern, random_window

# Two words of masks: `a` and `b` in the first, `c` in the second.
TYPES = ("a", *(f"unused{i}" for i in range(63)), "c", "b")
STREAMS = {type_: "other" if type_ == "c" else "main" for type_ in TYPES}


def split(window: Sequence[Tuple], rng: Random) -> list[Tuple]:
    """The window with each tuple in one stream only: it gives no events of the other."""
    kept = []
    for tuple_ in window:
        stream = rng.choice(("main", "main", "other"))
        types = frozenset(type_ for type_ in tuple_.types if STREAMS[type_] == stream)
        kept.append(Tuple(tuple_.time, types, {**tuple_.attributes, "stream": stream}))
    return kept


def frames(
    windows: Sequence[Sequence[Tuple]], schema: dict[str, Any], rng: Random
) -> dict[str, pl.DataFrame]:
    """The tuples of all windows in any order; the windows are buckets 0, 3, 6 and so on."""
    rows: dict[str, list[tuple[Any, ...]]] = {"main": [], "other": []}
    for bucket, window in enumerate(windows):
        for tuple_ in window:
            bits = sum(1 << TYPES.index(type_) for type_ in tuple_.types)
            values = [tuple_.attributes.get(column) for column in schema]
            stream = tuple_.attributes["stream"]
            row = 2 * sum(map(len, rows.values()))
            masks = bits & (2**64 - 1), bits >> 64
            rows[stream].append((3 * bucket, row, tuple_.time, *masks, *values))
    columns = {
        "bucket": pl.Int64,
        "row": pl.Int64,
        "time": pl.Int64,
        "mask0": pl.UInt64,
        "mask1": pl.UInt64,
        **{f"@{column}": dtype for column, dtype in schema.items()},
    }
    for listed in rows.values():
        rng.shuffle(listed)
    return {
        stream: pl.DataFrame(listed, schema=columns, orient="row")
        for stream, listed in rows.items()
    }


def differences(
    pattern: Pattern, windows: Sequence[Sequence[Tuple]], tuples: dict[str, pl.DataFrame]
) -> list[int]:
    """The windows in which the joins and the reference disagree."""
    matcher = Relational(pattern, TYPES, STREAMS)
    found = matcher.detect(tuples)
    assert found.dtype == np.int64
    assert (np.diff(found) > 0).all()
    return [
        place
        for place, window in enumerate(windows)
        if reference.detect(pattern, window)
        != (3 * place in found if window else matcher.when_empty)
    ]


def inserted(pattern: Pattern, rng: Random) -> Pattern:
    """The pattern with some of its nameless elements replaced by patterns with conditions."""
    count = iter(range(1000))

    def leaf(node: Name) -> Pattern:
        if node.alias or rng.random() < 0.6:
            return node
        part = random_pattern(rng, depth=2, where=True)
        prefix = f"s{next(count)}"
        return rename(part, {alias: prefix + alias for alias in iterate_given_aliases(part)})

    return rebuild(pattern, leaf)


COMPARATORS: tuple[Comparator, ...] = ("=", "<>", "<", "<=", ">", ">=")
NUMBERS = {"v": pl.Float64, "w": pl.Float64}


def compare(patterns: Iterable[Pattern], rng: Random, *, most: int = 5) -> None:
    """Compare on many windows of up to `most` tuples for each pattern."""
    for pattern in patterns:
        latest = rng.choice((1, 3, 5))
        windows = [
            split(random_window(rng, most=most, latest=latest, attributes=True), rng)
            for _ in range(50)
        ]
        wrong = differences(pattern, windows, frames(windows, NUMBERS, rng))
        assert not wrong, (pattern, windows[wrong[0]])


def with_comparisons(rng: Random) -> Pattern:
    """Three or four elements, of which some are compared with one another."""
    names = [Name(rng.choice("aabc"), alias) for alias in "xyz"]
    low, high = Seq(*names[1:]), And(*names[1:])
    part = rng.choice((Seq(*names), And(*names), Seq(names[0], high), And(names[0], low)))
    if rng.random() < 0.3:
        part = Seq(*names[:2], Not(rng.choice("abc")), names[2])
    if rng.random() < 0.3:
        part = Seq(part, rng.choice("abc")) if rng.random() < 0.5 else Seq("a", part)
    condition: Condition | None = None
    for _ in range(rng.choice((1, 2, 2, 3))):
        ours, theirs = rng.sample("xyz", 2)
        left: Term = Attribute(ours, rng.choice("vw"))
        if rng.random() < 0.3:
            sign: Operator = rng.choice(("+", "-", "*"))
            left = Arithmetic(sign, left, Constant(rng.choice((1, 2, -1))))
        comparison = Comparison(rng.choice(COMPARATORS), left, Attribute(theirs, rng.choice("vw")))
        condition = Conjunction(condition, comparison) if condition else comparison
    assert condition
    return Where(Within(part, 2) if rng.random() < 0.3 else part, condition)


def with_gaps(rng: Random) -> Pattern:
    """A SEQ with absences beside repetitions and parts that may be empty."""

    def part() -> Pattern:
        one, other = rng.choice("abc"), rng.choice("abc")
        match rng.randrange(6):
            case 0 | 1:
                return Not(rng.choice((Name(one), Seq(one, other))))
            case 2:
                return Or(Not(one), other)
            case 3:
                return Repeat(repeated(), rng.choice((1, 2)), rng.choice((2, None)))
            case _:
                return Name(one)

    def repeated() -> Pattern:
        one, other = rng.choice("abc"), rng.choice("abc")
        short = Within(Seq(one, other), rng.choice((0, 1)))
        return rng.choice((Name(one), short, Or(Not(one), other)))

    if rng.random() < 0.3:
        # A longer repetition is better here than a shorter one: it leaves less of the gaps.
        return Seq("a", Not("c"), Repeat(repeated(), 1, rng.choice((2, None))), Not("c"), "a")
    sequence = Seq(*(part() for _ in range(rng.choice((3, 4, 5)))))
    return Within(sequence, rng.choice((0, 1, 2))) if rng.random() < 0.3 else sequence


def test_joins_equal_the_reference_on_patterns_with_conditions() -> None:
    rng = Random(1)
    compare((random_pattern(rng, where=True) for _ in range(100)), rng)


def test_joins_equal_the_reference_where_conditions_stand_anywhere() -> None:
    rng = Random(2)
    compare((inserted(random_pattern(rng, depth=2, where=True), rng) for _ in range(100)), rng)


def test_joins_equal_the_reference_on_patterns_without_conditions() -> None:
    rng = Random(3)
    compare((random_pattern(rng) for _ in range(60)), rng)


def test_joins_equal_the_reference_where_elements_are_compared() -> None:
    rng = Random(4)
    compare((with_comparisons(rng) for _ in range(120)), rng, most=8)


def test_joins_equal_the_reference_where_gaps_meet_what_may_be_empty() -> None:
    rng = Random(5)
    compare((with_gaps(rng) for _ in range(120)), rng)


@pytest.mark.parametrize("part", [Name("b"), Seq("b", "b"), Within(Seq("b", "b"), 0)], ids=repr)
@pytest.mark.parametrize(("least", "most"), [(1, 1), (1, 2), (1, None), (2, 2), (3, None)])
def test_a_repetition_may_span_what_its_parts_alone_do_not(
    part: Pattern, least: int, most: int | None
) -> None:
    pattern = Seq("a", Not("c"), Repeat(part, least, most), Not("c"), "a")
    windows = [
        [
            Tuple(time, frozenset({type_}), {"stream": STREAMS[type_]})
            for time, types in enumerate(text.split())
            for type_ in types
        ]
        for text in ("a b c b a", "a bb c bb a", "a b b c b b a", "a bb c bb bb a", "a bb c a", "a")
    ]
    assert not differences(pattern, windows, frames(windows, {}, Random(0)))


def test_cutting_the_work_into_pieces_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relational, "PAIRS_AT_ONCE", 7)
    monkeypatch.setattr(relational, "ROWS_AT_ONCE", 20)
    rng = Random(6)
    compare((make(rng) for make in (with_comparisons, with_gaps) for _ in range(6)), rng)


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False), st.booleans())
def test_any_pattern_in_any_window_is_detected_as_the_reference_does(
    rng: Random, insert: bool
) -> None:
    pattern = random_pattern(rng, depth=2, where=True)
    pattern = inserted(pattern, rng) if insert else pattern
    window = split(random_window(rng, attributes=True), rng)
    assert not differences(pattern, [window], frames([window], NUMBERS, rng))


def pair_windows(values: Sequence[Any], rng: Random, count: int) -> list[list[Tuple]]:
    """Windows of an `a` and a `b`, each with a value in column `v`."""
    return [
        [
            Tuple(time, frozenset({type_}), {"v": rng.choice(values), "stream": "main"})
            for time, type_ in enumerate("ab")
        ]
        for _ in range(count)
    ]


def random_term(rng: Random, signs: Sequence[Operator], constants: Sequence[Any]) -> Term:
    if signs and rng.random() < 0.5:
        sign = rng.choice(signs)
        return Arithmetic(sign, random_term(rng, signs, constants), random_term(rng, (), constants))
    if rng.random() < 0.25:
        return Constant(rng.choice(constants))
    return Attribute(rng.choice("xy"), "v")


WIDE = [0, 1, -1, 3, -3, 7, -7, 2**31, 2**62 + 1, 2**63 - 1, -(2**63), None]
UNSIGNED = [0, 1, 3, 7, 2**63 + 5, 2**64 - 1, None]
NARROW = [0, 1, -1, 5, 127, -128, None]
FLOATING = [0.0, -0.0, 0.1, -0.1, 5.5, -7.5, 3.0, 1e17, 1e300, -1e300, nan, inf, -inf, None]
TEXTS = ["", "a", "b", "ab", "\u00e9", "\U0001f600", "\uffff", None]


@pytest.mark.cases(3)
@pytest.mark.parametrize(
    ("dtype", "values", "signs"),
    [
        (pl.Int64, WIDE, "+-*%"),
        (pl.UInt64, UNSIGNED, "+-%"),
        (pl.Int8, NARROW, "+-*/%"),
        (pl.Float64, FLOATING, "+-*/%"),
        (pl.String, TEXTS, ""),
        (pl.Categorical(), TEXTS, ""),
        (pl.Boolean, [True, False, None], ""),
    ],
    ids=("wide", "unsigned", "narrow", "floating", "text", "category", "truth"),
)
def test_conditions_give_what_the_reference_gives(
    dtype: Any, values: Sequence[Any], signs: Sequence[Operator]
) -> None:
    rng = Random(5)
    windows = pair_windows(values, rng, 60)
    tuples = frames(windows, {"v": dtype}, rng)
    constants = [v for v in values if v is not None and not (signs and not isfinite(v))]
    mixed = [2, 0.5, -3.0, *constants] if max(map(len, map(str, constants))) < 6 and signs else None
    for _ in range(60):
        sides = [random_term(rng, signs, mixed or constants) for _ in "lr"]
        condition: Condition = Comparison(rng.choice(COMPARATORS), *sides)
        if rng.random() < 0.3:
            other = Comparison("<>", Attribute("x", "v"), Attribute("y", "v"))
            condition = Negation(rng.choice((Conjunction, Disjunction))(condition, other))
        pattern = Where(Seq(Name("a", "x"), Name("b", "y")), condition)
        wrong = differences(pattern, windows, tuples)
        assert not wrong, (condition, windows[wrong[0]])


def test_a_whole_number_is_compared_with_a_floating_one() -> None:
    rng = Random(6)
    windows = [
        [
            Tuple(0, frozenset("a"), {"v": whole, "stream": "main"}),
            Tuple(0, frozenset("c"), {"w": part, "stream": "other"}),
        ]
        for whole in (None, -1, 0, 1, 2)
        for part in (None, nan, inf, -1.0, 0.5, 1.0, 1.5)
    ]
    tuples = frames(windows, {"v": pl.Int32, "w": pl.Float32}, rng)
    for comparator in COMPARATORS:
        condition = Comparison(comparator, Attribute("x", "v"), Attribute("y", "w"))
        pattern = Where(And(Name("c", "y"), Name("a", "x")), condition)
        assert not differences(pattern, windows, tuples)


def test_an_alias_in_the_branches_of_an_or_may_come_from_streams_of_different_types() -> None:
    rng = Random(7)
    windows = [
        [
            Tuple(0, frozenset("a"), {"v": 1, "stream": "main"}),
            Tuple(1, frozenset("c"), {"v": value, "stream": "other"}),
        ]
        for value in (0.5, 1.5, None)
    ]
    tuples = frames(windows, {"v": pl.Float64}, rng)
    tuples["main"] = tuples["main"].with_columns(pl.col("@v").cast(pl.UInt8))
    condition = Comparison(">", Attribute("x", "v"), Attribute("y", "v"))
    pattern = Where(Seq(Name("a", "y"), Or(Name("a", "x"), Name("c", "x"))), condition)
    assert not differences(pattern, windows, tuples)


def matcher(pattern: Pattern) -> Relational:
    return Relational(pattern, TYPES, STREAMS)


RISING = Comparison("<", Attribute("x", "v"), Attribute("y", "v"))


def test_no_tuples_give_no_buckets() -> None:
    tuples = frames([], NUMBERS, Random(0))
    assert matcher(Where(Seq(Name("a", "x"), Name("a", "y")), RISING)).detect(tuples).size == 0
    assert matcher(Not("a")).detect(tuples).size == 0


def test_a_negated_pattern_is_detected_in_buckets_of_other_streams() -> None:
    window = [Tuple(0, frozenset("c"), {"stream": "other"})]
    assert matcher(Not("a")).detect(frames([window], {}, Random(0))).tolist() == [0]


@pytest.mark.parametrize(
    "pattern",
    [
        Name("a"),
        Not("a"),
        Not(Not("a")),
        Seq(Not("a"), Not("b")),
        Seq(Not(Not("a")), Not("b")),
        Or("a", Not("b")),
        And("a", Not("b")),
        Repeat(Not("a"), 2, None),
        Within(Not("a"), 0),
        Where(Not("a"), Comparison("=", Constant(1), Constant(1))),
        Where(Not("a"), Comparison("=", Constant(1), Constant(2))),
    ],
    ids=repr,
)
def test_an_empty_window_is_judged_as_the_reference_does(pattern: Pattern) -> None:
    assert matcher(pattern).when_empty == reference.detect(pattern, [])


def test_a_pattern_nested_two_hundred_deep_is_matched() -> None:
    pattern: Pattern = Where(Seq(Name("a", "x"), Name("b", "y")), RISING)
    for depth in range(200):
        pattern = (Not(pattern), Seq(pattern, Not("c")), And(pattern))[depth % 3]
    windows = pair_windows([0, 1, None], Random(9), 20)
    assert not differences(pattern, windows, frames(windows, {"v": pl.Int64}, Random(9)))


def test_many_events_at_one_time_are_counted_not_listed() -> None:
    window = [Tuple(0, frozenset("a"), {"stream": "main"}) for _ in range(1000)]
    tuples = frames([window], {}, Random(0))
    assert matcher(Repeat(Name("a"), 1000, None)).detect(tuples).tolist() == [0]
    fewer = {stream: frame.head(999) for stream, frame in tuples.items()}
    assert matcher(Repeat(Name("a"), 1000, None)).detect(fewer).tolist() == []


def test_it_names_what_must_be_kept() -> None:
    condition = Conjunction(RISING, Comparison(">", Attribute("z", "w"), Constant(0)))
    pattern = Where(Seq(Name("a", "x"), Name("b", "y"), Not("unused1"), Name("c", "z")), condition)
    assert matcher(pattern).event_types == ("a", "b", "unused1", "c")
    assert matcher(pattern).attributes == {"main": ("v",), "other": ("w",)}


SCHEMAS: dict[str, pl.Schema] = {
    "main": pl.Schema({"v": pl.Int64, "text": pl.String, "flag": pl.Boolean, "raw": pl.Binary}),
    "other": pl.Schema({"v": pl.String, "w": pl.Float64}),
}


def check(condition: Condition, *, last: str = "b") -> None:
    matcher(Where(Seq(Name("a", "x"), Name(last, "y")), condition)).check(SCHEMAS)


def test_fitting_columns_pass_the_check() -> None:
    check(RISING)
    check(Comparison(">", Attribute("y", "w"), Attribute("x", "v")), last="c")
    check(Comparison("=", Attribute("y", "v"), Attribute("x", "text")), last="c")
    check(Comparison("=", Attribute("y", "flag"), Constant(True)))


def test_a_missing_column_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(SchemaError, match=r"stream 'main' has no column 'txt'.*'text'"):
        check(Comparison("=", Attribute("x", "txt"), Constant("a")))


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        (Comparison("<", Attribute("x", "text"), Constant(1)), "a text is compared with a number"),
        (Comparison("=", Attribute("x", "flag"), Constant(1)), "a truth value is compared"),
        (Comparison("=", Attribute("x", "v"), Constant(True)), "with a truth value"),
        (
            Negation(Disjunction(RISING, Comparison("=", Attribute("x", "v"), Constant("")))),
            "a text",
        ),
        (
            Comparison("=", Arithmetic("+", Attribute("x", "text"), Constant("a")), Constant("a")),
            "Arithmetic needs numbers",
        ),
        (Comparison("=", Attribute("x", "raw"), Constant(1)), "a Binary in stream 'main'"),
    ],
)
def test_unfit_types_are_refused(condition: Condition, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        check(condition)


def test_an_alias_of_two_kinds_is_refused() -> None:
    pattern = Or(Name("a", "x"), Name("c", "x"))
    with pytest.raises(SchemaError, match="a number in one stream and a text in stream 'other'"):
        matcher(Where(pattern, Comparison("=", Attribute("x", "v"), Constant(1)))).check(SCHEMAS)


def test_ranges_and_pairs_list_every_pair_once_however_they_are_cut() -> None:
    rng = np.random.default_rng(10)
    ours, theirs = (np.sort(rng.integers(0, 5, (40, 2)), axis=0) for _ in "ab")
    theirs = theirs[np.lexsort((theirs[:, 1], theirs[:, 0]))]
    latest = ours[:, 1] + 2
    found = find_ranges(
        ours[:, 0].copy(), ours[:, 1].copy(), latest, theirs[:, 0].copy(), theirs[:, 1].copy()
    )
    expected = [
        (left, right)
        for left in range(40)
        for right in range(40)
        if ours[left, 0] == theirs[right, 0] and ours[left, 1] <= theirs[right, 1] <= latest[left]
    ]
    for most in (1, 5, 1000):
        pieces = list(iterate_pairs(found, most))
        assert [p for left, right in pieces for p in zip(left, right, strict=True)] == expected
